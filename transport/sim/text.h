/* text.h - a fake text actor, kept honest by tests/conversations/contract_test.c: it refuses what the real one refuses, in its words,
 * and answers in the order asked, but after a while (the real one has a host thread of its own).
 *
 * E1. A text's tokens are its bytes. A chat is what ChatML makes of it: per message BEGIN, role, new line, content, END, new line; then
 *     BEGIN, `assistant`, new line. What a chat grows by stands behind the whole chat before it, without its last line.
 * E2. At the bound of open questions the oldest is answered at once; none is refused for it. */
#ifndef QR_SIM_TEXT_H
#define QR_SIM_TEXT_H

#include "actors/actor.h"

/* Above every byte, below the end token (device.h). */
enum { QR_SIM_CHAT_BEGIN_TOKEN = 256, QR_SIM_CHAT_END_TOKEN = 257 };

/* Tokens of an input (E1): the first `capacity` of them into tokens, *ret_count of all. 0, or the reason why it is refused. */
uint32_t qr_sim_text_tokens(const qr_text_encode_t *input, uint32_t *tokens, uint64_t capacity, uint64_t *ret_count);

extern const qr_actor_class_t qr_sim_text_class;

#endif
