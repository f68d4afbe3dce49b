/* catalog_writer.h - the actor that orders the catalog's transactions: see catalog_writer.c. */
#ifndef QR_CATALOG_WRITER_H
#define QR_CATALOG_WRITER_H

#include "actors/actor.h"

extern const qr_actor_class_t qr_catalog_writer_class;

#endif
