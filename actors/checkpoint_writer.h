/* checkpoint_writer.h - the actor that makes resident rows durable and tells the catalog: see checkpoint_writer.c. */
#ifndef QR_CHECKPOINT_WRITER_H
#define QR_CHECKPOINT_WRITER_H

#include "actors/actor.h"

extern const qr_actor_class_t qr_checkpoint_writer_class;

#endif
