/* text.h - the io actor `text`: it owns the tokenizer and the chat template (given->tokenizer). */
#ifndef QR_IO_TEXT_H
#define QR_IO_TEXT_H

#include "actors/actor.h"

extern const qr_actor_class_t qr_text_class;

#endif
