/* restore_streamer.h - the actor that brings durable rows back into loading pages: see restore_streamer.c. */
#ifndef QR_RESTORE_STREAMER_H
#define QR_RESTORE_STREAMER_H

#include "actors/actor.h"

extern const qr_actor_class_t qr_restore_streamer_class;

#endif
