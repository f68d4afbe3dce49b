/* gateway.h - the actor between whoever asks for text (http, prompt) and the router: see gateway.c. */
#ifndef QR_GATEWAY_H
#define QR_GATEWAY_H

#include "actors/actor.h"

extern const qr_actor_class_t qr_gateway_class;

#endif
