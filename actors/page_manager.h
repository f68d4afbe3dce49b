/* page_manager.h - the actor that owns every page and the prefix tree of one device: see page_manager.c. */
#ifndef QR_PAGE_MANAGER_H
#define QR_PAGE_MANAGER_H

#include "actors/actor.h"

enum {
    QR_LEASES_MAX = 16,          /* leases of one page_manager; more: pages_pinned(BUSY) */
    QR_FENCES_MAX = QR_LANES_MAX /* loads and fences open together (a load may end in a fence); more: pages_loading(BUSY) */
};

extern const qr_actor_class_t qr_page_manager_class;

#endif
