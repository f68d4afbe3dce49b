/* catalog_replica.h - the actor that answers what can be restored: see catalog_replica.c. */
#ifndef QR_CATALOG_REPLICA_H
#define QR_CATALOG_REPLICA_H

#include "actors/actor.h"

extern const qr_actor_class_t qr_catalog_replica_class;

#endif
