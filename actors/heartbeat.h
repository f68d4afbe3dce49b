/* heartbeat.h - the actor that tells nodes apart that live from nodes that are silent: see heartbeat.c. */
#ifndef QR_HEARTBEAT_H
#define QR_HEARTBEAT_H

#include "actors/actor.h"

extern const qr_actor_class_t qr_heartbeat_class;

#endif
