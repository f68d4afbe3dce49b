/* http.h - the io actor `http`: the OpenAI-compatible edge (http.c says what it serves). */
#ifndef QR_HTTP_H
#define QR_HTTP_H

#include "actors/actor.h"

extern const qr_actor_class_t qr_http_class;

/* Whether its keys file and its address will do, before anything slow is done. 0, or a negative code with one sentence. */
int qr_http_check(const qr_params_t *params, char *message, size_t message_bytes);

/* The port it listens on after `start`, 0 before. For tests that listen on port 0. */
uint16_t qr_http_port(const void *self);

#endif
