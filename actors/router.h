/* router.h - the actor that chooses a worker for each request and fences its tokens: see router.c. */
#ifndef QR_ROUTER_H
#define QR_ROUTER_H

#include "actors/actor.h"

extern const qr_actor_class_t qr_router_class;

#endif
