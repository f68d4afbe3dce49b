/* facts.h - the io actor `facts`: it owns the catalog's log and its facts on LevelDB: see facts.c. */
#ifndef QR_IO_FACTS_H
#define QR_IO_FACTS_H

#include "actors/actor.h"

extern const qr_actor_class_t qr_facts_class;

#endif
