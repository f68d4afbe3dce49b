/* storage_errand.h - a thread that does one slow thing at a time (write a file, sync it), so that storage's own thread answers meanwhile.
 *
 * ER1. One errand at a time: give only when none is out. What it uses belongs to the thread until qr_errand_back says that it has ended.
 * ER2. Its end makes the descriptor readable; nobody has to wait for it. */
#ifndef QR_STORAGE_ERRAND_H
#define QR_STORAGE_ERRAND_H

#include "base/base.h"

typedef struct qr_errand qr_errand_t;

/* Starts the thread. 0, -QR_E_MEMORY or -QR_E_IO. */
int qr_errand_new(qr_errand_t **ret_errand);
/* Waits for the errand that is out, ends the thread. Accepts NULL. */
void qr_errand_destroy(qr_errand_t **errand);
/* Sends the thread off to call run(context). */
void qr_errand_give(qr_errand_t *errand, void (*run)(void *context), void *context);
/* Whether the errand has ended since it was given; true once each. */
bool qr_errand_back(qr_errand_t *errand);
int qr_errand_descriptor(const qr_errand_t *errand);

#endif
