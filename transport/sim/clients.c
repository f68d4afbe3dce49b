/* clients.c - see clients.h. */
#include "transport/sim/clients.h"

#include "base/error.h"
#include "base/prng.h"
#include "messages/schema.h"
#include "transport/sim/device.h"
#include "transport/sim/judge.h"
#include "transport/sim/text.h"
#include "transport/sim/world.h"

enum {
    ASKS = 96,
    CONTEXT = 1024,
    TALKS = 6,
    SALTS = 3,
    TENANTS = 3,
    DROP_AGAIN_US = 50000,
    DEADLINE_SLACK_US = 100000,
    STOP_WAIT_US = 1000000, /* gateway.c: most time to wait for the usage after a stop string */
    PROBE_MOST_US = 1000000,
    ROUTER_RETRIES = 4,     /* how often a router offers a lost request again (router.c) */
    ALL_KNOWN_US = 2000000, /* after its start every worker of a world without faults has been heard of */
    STOPS = 2,
    STOP_MOST = 12,  /* bytes of one stop string */
    STOP_AHEAD = 40, /* tokens of the answer that a stop string is chosen from */
    CHAT_MESSAGES = 10,
    CHAT_BYTES = 1024,
    SOURCES = 2 + QR_PARTNERS_MAX
};
enum { TEMPERATURE_BITS = 0x3f400000, ONE_BITS = 0x3f800000 };
enum phase { BUSY, LAST, DROPPING, AGAIN, DONE };
enum {
#define METRIC(name, number, kind, help) METRIC_##name = (number),
#include "messages/metric.def"
    METRICS_END
};

typedef struct chat {
    uint32_t count, bytes; /* messages (0: no chat); of their text */
    uint32_t roles[CHAT_MESSAGES], lengths[CHAT_MESSAGES];
    uint8_t text[CHAT_BYTES];
} chat_t;

typedef struct ask {
    uint64_t key, seed, due_us; /* due_us: when the client leaves; QR_NEVER_US = it stays */
    uint64_t asked_us, budget_us;
    uint64_t reads_us; /* when a slow reader reads next; QR_NEVER_US = it is quick */
    uint32_t open, greedy, ignore_eos, prompt, count, max_tokens, cancelled, salt, text_at, last;
    uint32_t tenant, unread, cut_off, again;                             /* unread: bytes of text; cut_off: cancelled as a slow client */
    uint32_t stop_count, stop_lengths[STOPS], stopped, stop_at, all_out; /* stop_at: where the text ends once `stopped` */
    uint8_t stops[STOPS * STOP_MOST];
    qr_sim_sequence_t sequence; /* of tokens[0 .. count) */
    uint32_t tokens[CONTEXT + 1];
    uint8_t text[2 * CONTEXT];
    uint32_t text_count;
    chat_t chat;
} ask_t;

typedef struct talk {
    uint32_t count, salt, tenant;
    uint32_t tokens[CONTEXT];
    chat_t chat;
} talk_t;

typedef struct client {
    uint64_t address, gateway, next_us, key, last_by_us, drop_us;
    qr_prng_t prng;
    qr_sim_answers_t answers;
    uint64_t page_managers[QR_PARTNERS_MAX], workers[QR_PARTNERS_MAX];
    uint32_t dropped[QR_PARTNERS_MAX], emptied[QR_PARTNERS_MAX]; /* 0 not asked, 1 asked, 2 as it should be */
    uint32_t worker_count, page_manager_count, open, submitted, last_asked, last_answered, phase, draining;
    uint64_t sources[SOURCES]; /* whom it asks for numbers: gateway, router, then its partners */
    uint32_t source_count, probing, reading[SOURCES];
    uint64_t again_at_us, next_drop_us; /* K10: not before; of cache drops while clients ask */
    uint32_t again_asked, again_open;
    uint32_t was_ready, unused; /* 1: a probe was answered without a reason */
    uint64_t probe_id, probe_asked_us, next_probe_us, next_read_us, drain_asker, drain_by_us;
    talk_t talks[TALKS];
    ask_t asks[ASKS];
} client_t;

static const qr_sim_workload_t *work_of(const qr_given_t *given) { return qr_sim_given(given)->clients; }

/* ---- asking ----------------------------------------------------------------------------------------------------------------------------
 */

static uint32_t below(client_t *self, uint64_t bound) { return (uint32_t)qr_prng_below(&self->prng, qr_max_u64(1, bound)); }
static bool chance(client_t *self, uint32_t one_in) { return one_in && qr_prng_one_in(&self->prng, one_in); }

static void make_prompt(client_t *self, const qr_given_t *given, ask_t *ask)
{
    const qr_sim_workload_t *w = work_of(given);
    uint32_t room = qr_min_u32(w->prompt_most, given->layout.context_tokens);
    talk_t *talk = &self->talks[below(self, TALKS)];
    if (chance(self, w->grow_one_in) && talk->count && talk->count + 2 < room) { /* the next turn of a conversation */
        ask->prompt = talk->count;
        ask->salt = talk->salt;
        ask->tenant = talk->tenant;
        memcpy(ask->tokens, talk->tokens, 4 * (size_t)talk->count);
    } else if (w->prefixes && !chance(self, 3)) {
        uint32_t which = below(self, w->prefixes), most = qr_min_u32(w->prefix_tokens, room - 1);
        uint32_t take = chance(self, 4) ? 1 + below(self, most) : most;
        for (uint32_t i = 0; i < take; i++) ask->tokens[i] = (uint32_t)(qr_mix_u64(w->seed ^ (uint64_t)which << 32 ^ i) % QR_SIM_END_TOKEN);
        ask->prompt = take;
    }
    uint32_t more = 1 + below(self, chance(self, 4) ? room - ask->prompt : qr_min_u32(12, room - ask->prompt));
    while (more-- && ask->prompt < room) ask->tokens[ask->prompt++] = below(self, QR_SIM_END_TOKEN);
    if (!chance(self, 6)) return; /* like another prompt, but for the high byte of one token */
    uint32_t *token = &ask->tokens[below(self, ask->prompt)];
    *token = (*token & 0xff) + (*token < 256 ? 256 : 0);
}

static ask_t *free_ask(client_t *self, const qr_given_t *given)
{
    uint32_t most = (uint32_t)qr_min_u64(ASKS, given->params.max_requests + 4); /* a few too many: over capacity is part of life */
    for (uint32_t i = 0; i < most; i++)
        if (!self->asks[i].open) return &self->asks[i];
    return NULL;
}

/* What the answer may hold at most (gateway.c: the rules of the context). */
static uint32_t most_tokens(const qr_given_t *given, const ask_t *ask)
{
    uint32_t left = given->layout.context_tokens - ask->prompt;
    return qr_min_u32(ask->max_tokens ? ask->max_tokens : 1024, left ? left : 1);
}

/* ---- chats: what was said, the answer, and something new ------------------------------------------------------------------------------
 */

static bool chat_add(chat_t *chat, uint32_t role, const uint8_t *bytes, uint32_t count)
{
    if (chat->count == CHAT_MESSAGES || count > CHAT_BYTES - chat->bytes) return false;
    chat->roles[chat->count] = role;
    chat->lengths[chat->count++] = count;
    qr_copy(chat->text + chat->bytes, bytes, count);
    chat->bytes += count;
    return true;
}

static qr_text_encode_t chat_input(const chat_t *chat)
{
    return (qr_text_encode_t){.kind = QR_INPUT_CHAT,
                              .text = {chat->text, chat->bytes},
                              .roles = {chat->roles, chat->count},
                              .lengths = {chat->lengths, chat->count}};
}

/* The next turn of a chat, or a new one. false: it would not fit; nothing was made. */
static bool make_chat(client_t *self, const qr_given_t *given, ask_t *ask)
{
    const qr_sim_workload_t *w = work_of(given);
    const talk_t *talk = &self->talks[below(self, TALKS)];
    uint8_t words[16];
    uint32_t count = 1 + below(self, sizeof words);
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < count; i++) words[i] = (uint8_t)(' ' + below(self, 95));
    bool grows = talk->chat.count && chance(self, w->grow_one_in);
    if (grows) {
        ask->chat = talk->chat;
        ask->salt = talk->salt;
        ask->tenant = talk->tenant;
    } else
        (void)chat_add(&ask->chat, QR_CHAT_SYSTEM, (const uint8_t *)"Be kind.", 8);
    bool fits = chat_add(&ask->chat, QR_CHAT_USER, words, count);
    qr_text_encode_t input = chat_input(&ask->chat);
    fits = fits && qr_sim_text_tokens(&input, ask->tokens, CONTEXT, &tokens) == 0;
    fits = fits && tokens <= qr_min_u32(w->prompt_most, given->layout.context_tokens);
    ask->prompt = fits ? (uint32_t)tokens : 0;
    if (!fits) ask->chat.count = 0;
    self->answers.chats += fits;
    return fits;
}

/* ---- stop strings: judged without the gateway's matcher
 * ---------------------------------------------------------------------------------- */

/* The stop string that ends in the last of text[0 .. count), the longest if there are some; 0: none does. */
static uint32_t stop_ends(const ask_t *ask, uint32_t count)
{
    uint32_t longest = 0;
    for (uint32_t i = 0, at = 0; i < ask->stop_count; at += ask->stop_lengths[i++]) {
        uint32_t bytes = ask->stop_lengths[i];
        if (bytes <= count && !memcmp(ask->text + count - bytes, ask->stops + at, bytes)) longest = qr_max_u32(longest, bytes);
    }
    return longest;
}

/* Bytes at the end of the text that could begin a stop string. */
static uint32_t stop_begins(const ask_t *ask)
{
    uint32_t held = 0;
    for (uint32_t i = 0, at = 0; i < ask->stop_count; at += ask->stop_lengths[i++])
        for (uint32_t bytes = held + 1; bytes < ask->stop_lengths[i] && bytes <= ask->text_count; bytes++)
            if (!memcmp(ask->text + ask->text_count - bytes, ask->stops + at, bytes)) held = bytes;
    return held;
}

static void add_text(const qr_given_t *given, ask_t *ask, uint32_t token)
{
    if (token == QR_SIM_END_TOKEN) return; /* prints nothing */
    const uint8_t *bytes = given->vocabulary.bytes + given->vocabulary.offsets[token];
    for (uint32_t i = 0; i < 2; i++) {
        ask->text[ask->text_count++] = bytes[i];
        uint32_t stop = ask->stopped ? 0 : stop_ends(ask, ask->text_count);
        if (stop == 0) continue;
        ask->stopped = 1;
        ask->stop_at = ask->text_count - stop;
    }
}

/* Stop strings out of the answer to come, some of them spoiled in one byte. */
static void make_stops(client_t *self, const qr_given_t *given, ask_t *ask)
{
    static ask_t ahead;
    ahead = *ask;
    ahead.stop_count = 0;
    for (uint32_t i = 0, bits; i < qr_min_u32(STOP_AHEAD, most_tokens(given, ask)); i++) {
        uint32_t token = qr_sim_token_after(&ahead.sequence, given, ahead.tokens, ahead.greedy, ahead.seed, ahead.prompt, &bits);
        if (ahead.count == CONTEXT) break;
        ahead.tokens[ahead.count++] = token;
        qr_sim_sequence_add(&ahead.sequence, given, token);
        add_text(given, &ahead, token);
        if (token == QR_SIM_END_TOKEN && !ask->ignore_eos) break;
    }
    if (ahead.text_count == 0) return;
    uint32_t at = 0, count = 1 + below(self, STOPS);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t from = below(self, ahead.text_count), bytes = 1 + below(self, qr_min_u32(STOP_MOST, ahead.text_count - from));
        memcpy(ask->stops + at, ahead.text + from, bytes);
        if (chance(self, 3)) ask->stops[at + bytes - 1] = '~'; /* begins like the answer and never ends */
        ask->stop_lengths[i] = bytes;
        at += bytes;
    }
    ask->stop_count = count;
}

/* ---- one request
 * --------------------------------------------------------------------------------------------------------------------------- */

static void send_submit(const client_t *self, const qr_given_t *given, const ask_t *ask, bool text, uint32_t priority, qr_outbox_t *outbox)
{
    static const char *const salts[SALTS] = {"", "a", "b"}, *const tenants[TENANTS] = {"", "first tenant", "second tenant"};
    static uint8_t bytes[CONTEXT];
    char fresh[24];
    (void)snprintf(fresh, sizeof fresh, "%llx", (unsigned long long)ask->key);
    const char *salt = ask->salt < SALTS ? salts[ask->salt] : fresh, *tenant = tenants[ask->tenant];
    uint32_t stop_bytes = 0;
    for (uint32_t i = 0; i < ask->stop_count; i++) stop_bytes += ask->stop_lengths[i];
    for (uint32_t i = 0; text && i < ask->prompt; i++) bytes[i] = (uint8_t)ask->tokens[i];
    qr_request_submit_t body = {
        .key = ask->key,
        .kind = text ? QR_INPUT_TEXT : QR_INPUT_TOKENS,
        .text = {bytes, text ? ask->prompt : 0},
        .tokens = {ask->tokens, text ? 0 : ask->prompt},
        .max_tokens = ask->max_tokens,
        .temperature_bits = ask->greedy ? 0 : TEMPERATURE_BITS,
        .top_p_bits = ONE_BITS,
        .seed_given = 1,
        .seed = ask->seed,
        .logprobs = 1,
        .ignore_eos = (uint8_t)ask->ignore_eos,
        .stop = {ask->stops, stop_bytes},
        .stop_lengths = {ask->stop_lengths, ask->stop_count},
        .tenant_salt = {(const uint8_t *)tenant, strlen(tenant)},
        .cache_salt = {(const uint8_t *)salt, strlen(salt)},
        .priority = priority,
        .budget_us = ask->budget_us ? ask->budget_us : given->params.request_timeout_ms * 1000,
    };
    if (ask->chat.count) {
        qr_text_encode_t input = chat_input(&ask->chat);
        body.kind = QR_INPUT_CHAT;
        body.text = input.text;
        body.roles = input.roles;
        body.lengths = input.lengths;
        body.tokens.count = 0;
    }
    qr_send(outbox, self->gateway, request_submit, &body);
}

static void submit(client_t *self, const qr_given_t *given, uint64_t now_us, bool last, qr_outbox_t *outbox)
{
    const qr_sim_workload_t *w = work_of(given);
    ask_t *ask = self->draining ? NULL : free_ask(self, given);
    if (!ask) return;
    memset(ask, 0, sizeof *ask);
    ask->open = 1;
    ask->key = ++self->key << 8 | (uint64_t)(ask - self->asks);
    ask->last = last;
    ask->salt = chance(self, w->salt_one_in) ? 1 + below(self, SALTS) : 0; /* SALTS: one that nobody ever used */
    ask->tenant = chance(self, w->tenant_one_in) ? 1 + below(self, TENANTS - 1) : 0;
    bool chat = chance(self, w->chat_one_in) && make_chat(self, given, ask);
    if (!chat) make_prompt(self, given, ask);
    ask->greedy = chance(self, 2);
    ask->seed = qr_prng_next(&self->prng);
    ask->ignore_eos = chance(self, 2);
    ask->max_tokens = 1 + below(self, w->answer_most);
    ask->due_us = !last && chance(self, w->cancel_one_in) ? now_us + 1 + below(self, w->cancel_us ? w->cancel_us : 400000) : QR_NEVER_US;
    ask->budget_us = !last && chance(self, w->budget_one_in) ? 1 + below(self, 3000000) : 0;
    ask->asked_us = now_us;
    ask->count = ask->prompt;
    bool text = !chat && chance(self, w->text_one_in);
    for (uint32_t i = 0; text && i < ask->prompt; i++) ask->tokens[i] &= 0x7f; /* whole characters */
    for (uint32_t i = 0; i < ask->prompt; i++) qr_sim_sequence_add(&ask->sequence, given, ask->tokens[i]);
    uint32_t priority = below(self, 3);
    if (chance(self, w->stop_one_in)) make_stops(self, given, ask);
    ask->reads_us = !last && chance(self, w->slow_one_in) ? now_us + w->slow_us : QR_NEVER_US;
    self->open++;
    self->answers.submitted++;
    send_submit(self, given, ask, text, priority, outbox);
    qr_outbox_alarm(outbox, qr_min_u64(ask->due_us, ask->reads_us));
}

/* The prompt of K10, the same each time. */
static void submit_again(client_t *self, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox)
{
    const qr_sim_workload_t *w = work_of(given);
    ask_t *ask = self->draining ? NULL : free_ask(self, given);
    if (!ask) return;
    memset(ask, 0, sizeof *ask);
    ask->open = ask->last = ask->again = ask->greedy = ask->ignore_eos = ask->max_tokens = 1;
    ask->key = ++self->key << 8 | (uint64_t)(ask - self->asks);
    ask->prompt = ask->count = w->again_rows;
    ask->due_us = ask->reads_us = QR_NEVER_US;
    ask->asked_us = now_us;
    for (uint32_t i = 0; i < ask->prompt; i++) {
        ask->tokens[i] = (uint32_t)(qr_mix_u64(w->seed ^ self->address << 20 ^ i) % QR_SIM_END_TOKEN);
        qr_sim_sequence_add(&ask->sequence, given, ask->tokens[i]);
    }
    self->again_open = 1;
    self->again_asked++;
    self->open++;
    self->answers.submitted++;
    send_submit(self, given, ask, false, 0, outbox);
}

/* ---- judging ---------------------------------------------------------------------------------------------------------------------------
 */

static ask_t *find(client_t *self, uint64_t key, const char *what)
{
    uint32_t i = (uint32_t)(key & 0xff);
    if (i >= ASKS || !self->asks[i].open || self->asks[i].key != key)
        qr_sim_finding("%s of a request that is not open (key %llx)", what, (unsigned long long)key);
    return &self->asks[i];
}

static void expect_token(const qr_given_t *given, ask_t *ask, uint32_t token, uint32_t bits)
{
    uint32_t wanted_bits,
        wanted = qr_sim_token_after(&ask->sequence, given, ask->tokens, ask->greedy, ask->seed, ask->prompt, &wanted_bits);
    uint32_t index = ask->count - ask->prompt;
    if (index == most_tokens(given, ask)) qr_sim_finding("key %llx: more tokens than were asked for", (unsigned long long)ask->key);
    if (index && !ask->ignore_eos && ask->tokens[ask->count - 1] == QR_SIM_END_TOKEN) qr_sim_finding("a token after the end token");
    if (ask->stopped) qr_sim_finding("key %llx: token %u comes after a stop string", (unsigned long long)ask->key, index);
    if (ask->all_out) qr_sim_finding("key %llx: token %u comes after the last text", (unsigned long long)ask->key, index);
    if (token != wanted)
        qr_sim_finding("key %llx: token %u of the answer is %u, should be %u (prompt %u, %s)", (unsigned long long)ask->key, index, token,
                       wanted, ask->prompt, ask->greedy ? "greedy" : "sampled");
    if (bits != wanted_bits) qr_sim_finding("key %llx: log probability of token %u is wrong", (unsigned long long)ask->key, index);
    ask->tokens[ask->count++] = token;
    qr_sim_sequence_add(&ask->sequence, given, token);
    add_text(given, ask, token);
}

/* Where the text that may be shown ends (K7): at a stop string, or before what could become one; everything once the last text came. */
static void expect_text(ask_t *ask, const uint8_t *text, uint32_t bytes)
{
    unsigned long long key = ask->key;
    uint32_t most = ask->stopped ? ask->stop_at : ask->text_count, least = ask->stopped ? most : most - stop_begins(ask);
    if (bytes > most - qr_min_u32(ask->text_at, most) && ask->stopped)
        qr_sim_finding("key %llx: the text goes on behind its stop string", key);
    if (bytes > ask->text_count - ask->text_at || (bytes && memcmp(ask->text + ask->text_at, text, bytes)))
        qr_sim_finding("key %llx: the text is not that of the tokens", key);
    ask->text_at += bytes;
    if (ask->text_at < least) qr_sim_finding("key %llx: %u bytes of text are held back", key, least - ask->text_at);
    ask->all_out = ask->text_at > least; /* what was held back is given out at the end only */
}

/* K8 */
static void queue_text(client_t *self, const qr_given_t *given, ask_t *ask, uint32_t bytes, qr_outbox_t *outbox)
{
    if (ask->reads_us == QR_NEVER_US || ask->cancelled) return;
    ask->unread += bytes;
    if (ask->unread <= work_of(given)->slow_bytes) return;
    ask->cancelled = ask->cut_off = 1;
    self->answers.cut_off++;
    qr_send(outbox, self->gateway, request_cancel, &(qr_request_cancel_t){.key = ask->key, .reason = QR_E_SLOW_CLIENT});
}

static void on_deltas(client_t *self, const qr_given_t *given, const qr_request_deltas_t *b, qr_outbox_t *outbox)
{
    uint64_t text = 0, at = 0;
    for (uint64_t i = 0; i < b->keys.count; i++) {
        ask_t *ask = find(self, b->keys.data[i], "a delta");
        for (uint32_t k = 0; k < b->token_counts.data[i]; k++, at++) expect_token(given, ask, b->tokens.data[at], b->logprob_bits.data[at]);
        expect_text(ask, b->text.data + text, b->text_lengths.data[i]);
        queue_text(self, given, ask, b->text_lengths.data[i], outbox);
        text += b->text_lengths.data[i];
    }
}

/* Whether the largest pool can hold it and every worker had been heard of when it was asked. */
static bool fits_somewhere(const qr_given_t *given, const ask_t *ask)
{
    const qr_sim_workload_t *w = work_of(given);
    bool all_known = ask->last || (!w->faults && ask->asked_us > ALL_KNOWN_US);
    return all_known && w->rows_most && ask->prompt + most_tokens(given, ask) - 1 <= w->rows_most;
}

/* Whether a router had to give it up: it was told more often than it offers again that the worker which had it is gone. Where nobody may
 * notice a death that takes several units that begin anew next to each other: each ends every session of its node. */
static bool lost_too_often(const qr_given_t *given, const ask_t *ask)
{
    bool units = work_of(given)->faults >> QR_FAULT_UNIT & 1u;
    return units && !ask->last && qr_sim_judge_losses(given, ask->key) > ROUTER_RETRIES;
}

/* K4 */
static bool explained(const qr_given_t *given, const ask_t *ask, uint32_t reason)
{
    const qr_sim_workload_t *w = work_of(given);
    if ((reason == QR_E_PEER_DOWN || reason == QR_E_NO_WORKER) && lost_too_often(given, ask)) return true;
    uint32_t nodes = w->fail_over ? 0
                                  : 1u << QR_FAULT_KILL | 1u << QR_FAULT_PAUSE | 1u << QR_FAULT_CUT | 1u << QR_FAULT_BREAK |
                                        1u << QR_FAULT_LEAVE | 1u << QR_FAULT_STUCK | 1u << QR_FAULT_UNIT | 1u << QR_FAULT_APPEND |
                                        1u << QR_FAULT_FENCE; /* sessions end when the catalog's units begin anew */
    if (w->fail_over && ask->count > ask->prompt && reason != QR_E_DEADLINE) return false; /* what began goes on elsewhere */
    switch (reason) {
    case QR_E_BUSY: return true; /* the tables of these worlds are small */
    case QR_E_NEVER_FITS: return !fits_somewhere(given, ask);
    case QR_E_NO_WORKER: return !ask->last && !w->fail_over;
    case QR_E_PEER_DOWN: return !ask->last && (w->faults & nodes);
    case QR_E_DRAINING: return !ask->last && (w->faults & 1u << QR_FAULT_LEAVE) && !w->fail_over;
    case QR_E_DEVICE: return !ask->last && (w->faults & 1u << QR_FAULT_BATCHES);
    case QR_E_NUMERIC: return !ask->last && (w->faults & 1u << QR_FAULT_LANES);
    case QR_E_DEADLINE: return ask->budget_us || (!ask->last && (w->faults & (nodes | 1u << QR_FAULT_SLOW)));
    case QR_E_SLOW_CLIENT:
    case QR_E_STALE: return !ask->last && (w->faults & nodes);
    default: return false;
    }
}

/* K6: a deadline is an alarm of the gateway; only its own process can be late. */
static void check_deadline(const qr_given_t *given, const ask_t *ask, uint64_t now_us)
{
    bool paused = work_of(given)->faults >> QR_FAULT_PAUSE & 1u;
    uint64_t by_us = ask->asked_us + (ask->budget_us ? ask->budget_us : given->params.request_timeout_ms * 1000) + DEADLINE_SLACK_US;
    if (ask->stopped) by_us += STOP_WAIT_US;
    if (!paused && now_us > by_us)
        qr_sim_finding("key %llx ended %llu us after its deadline", (unsigned long long)ask->key, (unsigned long long)(now_us - by_us));
}

static void over(client_t *self, const qr_given_t *given, ask_t *ask, bool fine, uint32_t reason, uint64_t now_us)
{
    check_deadline(given, ask, now_us);
    if (!fine) {
        self->answers.reasons[reason % 64]++;
        if (!explained(given, ask, reason) && !ask->cancelled)
            qr_sim_finding("key %llx failed with %s after %u tokens; nothing explains it", (unsigned long long)ask->key,
                           qr_error_name((int)reason), ask->count - ask->prompt);
    }
    if (fine && !ask->cancelled) { /* a conversation may go on from here */
        talk_t *talk = &self->talks[below(self, TALKS)];
        talk->count = qr_min_u32(ask->count, CONTEXT);
        talk->salt = ask->salt;
        talk->tenant = ask->tenant;
        memcpy(talk->tokens, ask->tokens, 4 * (size_t)talk->count);
        talk->chat = ask->chat;
        if (talk->chat.count && !chat_add(&talk->chat, QR_CHAT_ASSISTANT, ask->text, ask->stopped ? ask->stop_at : ask->text_count))
            talk->chat.count = 0;
        for (uint32_t i = 0; i < talk->count; i++)
            if (talk->tokens[i] == QR_SIM_END_TOKEN) talk->count = i;
    }
    if (ask->again) self->again_open = 0;
    self->last_answered += ask->last && fine;
    if (ask->last && !fine) self->last_asked--; /* asked again */
    ask->open = 0;
    self->open--;
}

static void on_finished(client_t *self, const qr_given_t *given, const qr_request_finished_t *b, uint64_t now_us)
{
    ask_t *ask = find(self, b->key, "an end");
    uint32_t drawn = ask->count - ask->prompt;
    unsigned long long key = ask->key;
    bool ended = drawn && !ask->ignore_eos && ask->tokens[ask->count - 1] == QR_SIM_END_TOKEN;
    /* With faults a second attempt may reuse what the first one computed. */
    if (ask->salt == SALTS && b->cached_tokens && !work_of(given)->faults)
        qr_sim_finding("key %llx: %u rows reused under a salt that nobody used", key, b->cached_tokens);
    bool fine = b->finish == QR_FINISH_STOP || b->finish == QR_FINISH_LENGTH;
    if (b->prompt_tokens != ask->prompt && (fine || b->prompt_tokens))
        qr_sim_finding("key %llx: usage says %u prompt tokens of %u", key, b->prompt_tokens, ask->prompt);
    if (b->cached_tokens > b->prompt_tokens) qr_sim_finding("key %llx: more cached than prompt tokens", key);
    if (fine && b->completion_tokens != drawn) qr_sim_finding("key %llx: usage says %u of %u tokens", key, b->completion_tokens, drawn);
    uint32_t text = ask->stopped ? ask->stop_at : ask->text_count;
    if (fine && ask->text_at != text) qr_sim_finding("key %llx: %u bytes of text never came", key, text - ask->text_at);
    if (b->finish == QR_FINISH_STOP && !ended && !ask->stopped) qr_sim_finding("key %llx: finish STOP without an end token", key);
    if (ask->stopped && !fine && !ask->cancelled) qr_sim_finding("key %llx: finish %u after a stop string", key, b->finish);
    if (b->finish == QR_FINISH_LENGTH && ask->stopped) qr_sim_finding("key %llx: finish LENGTH after a stop string", key);
    if (b->finish == QR_FINISH_LENGTH && !ask->stopped && drawn != most_tokens(given, ask))
        qr_sim_finding("key %llx: finish LENGTH after %u of %u", key, drawn, most_tokens(given, ask));
    if (b->finish == QR_FINISH_LENGTH && ended) qr_sim_finding("key %llx: finish LENGTH after the end token", key);
    if (b->finish == QR_FINISH_CANCELLED && !ask->cancelled) qr_sim_finding("key %llx: cancelled by nobody", key);
    bool left = b->finish == QR_FINISH_CANCELLED && b->error == (ask->cut_off ? QR_E_SLOW_CLIENT : QR_E_CANCELLED);
    if (b->finish != QR_FINISH_ERROR && b->error && !left)
        qr_sim_finding("key %llx: finish %u with error %s", key, b->finish, qr_error_name((int)b->error));
    self->answers.finished += fine;
    self->answers.cancelled += b->finish == QR_FINISH_CANCELLED;
    self->answers.failed += b->finish == QR_FINISH_ERROR;
    self->answers.tokens += drawn;
    self->answers.stopped += ask->stopped && fine;
    self->answers.slow += ask->cut_off && b->finish == QR_FINISH_CANCELLED;
    self->answers.cached += b->cached_tokens;
    self->answers.again += fine && ask->again && b->cached_tokens;
    over(self, given, ask, fine || b->finish == QR_FINISH_CANCELLED, b->error, now_us);
}

static void on_refused(client_t *self, const qr_given_t *given, const qr_request_refused_t *b, uint64_t now_us)
{
    ask_t *ask = find(self, b->key, "a refusal");
    if (ask->count != ask->prompt) qr_sim_finding("key %llx: refused after tokens", (unsigned long long)ask->key);
    self->answers.refused++;
    over(self, given, ask, false, b->reason, now_us);
}

/* ---- the last phase
 * ---------------------------------------------------------------------------------------------------------------------- */

void qr_sim_client_last(void *http_state, uint64_t now_us)
{
    client_t *self = http_state;
    self->phase = LAST;
    self->next_us = now_us;
    self->last_by_us = QR_NEVER_US;
}
bool qr_sim_client_is_done(const void *http_state) { return ((const client_t *)http_state)->phase == DONE; }
bool qr_sim_client_is_quiet(const void *http_state) { return ((const client_t *)http_state)->open == 0; }
void qr_sim_client_count(const void *http_state, qr_sim_answers_t *answers)
{
    const uint64_t *from = (const uint64_t *)&((const client_t *)http_state)->answers;
    uint64_t *to = (uint64_t *)answers;
    for (size_t i = 0; i < sizeof *answers / 8; i++) to[i] += from[i];
}

static void on_cache_dropped(client_t *self, const qr_message_t *message)
{
    const qr_cache_dropped_t *b = &message->body.cache_dropped;
    self->answers.drops++;
    for (uint32_t i = 0; i < self->page_manager_count; i++)
        if (self->page_managers[i] == message->from) self->dropped[i] = b->pages_held == 0 && b->pages_free == b->pages_pool ? 2 : 0;
}

/* ---- numbers and probes (K9)
 * ---------------------------------------------------------------------------------------------------------------- */

static uint64_t number_of(const qr_metrics_t *b, uint32_t id)
{
    uint64_t value = 0;
    for (uint64_t i = 0; i < b->ids.count; i++) value += b->ids.data[i] == id ? b->values.data[i] : 0;
    return value;
}

/* Order is kept from the gateway to here, so that it has told exactly what it counts. */
static void check_numbers(const client_t *self, const qr_metrics_t *b)
{
    const qr_sim_answers_t *a = &self->answers;
    const struct {
        const char *name;
        uint64_t said, seen;
    } rows[] = {{"finished", number_of(b, METRIC_requests_finished_total), a->finished},
                {"refused", number_of(b, METRIC_requests_refused_total), a->refused},
                {"cancelled", number_of(b, METRIC_requests_cancelled_total), a->cancelled},
                {"failed", number_of(b, METRIC_requests_failed_total), a->failed}};
    for (size_t i = 0; i < QR_COUNT(rows); i++)
        if (rows[i].said != rows[i].seen)
            qr_sim_finding("the gateway says that %llu requests were %s, its client saw %llu", (unsigned long long)rows[i].said,
                           rows[i].name, (unsigned long long)rows[i].seen);
    uint64_t submitted = number_of(b, METRIC_requests_submitted_total), open = number_of(b, METRIC_requests_open);
    if (submitted > a->submitted || submitted - (a->finished + a->refused + a->cancelled + a->failed) > open)
        qr_sim_finding("the gateway says that %llu of %llu requests are open", (unsigned long long)open, (unsigned long long)submitted);
    if (number_of(b, METRIC_slow_clients_total) > a->cut_off)
        qr_sim_finding("the gateway counts %llu slow clients", (unsigned long long)number_of(b, METRIC_slow_clients_total));
}

static uint32_t find_source(const client_t *self, uint64_t address)
{
    for (uint32_t i = 0; i < self->source_count; i++)
        if (self->sources[i] == address) return i;
    qr_sim_finding("numbers from an actor that was not asked");
}

static void read_source(client_t *self, uint32_t i, qr_outbox_t *outbox)
{
    if (self->reading[i]) return; /* still silent: its last values stand */
    self->reading[i] = 1;
    qr_send(outbox, self->sources[i], metrics_read, &(qr_metrics_read_t){.version = 1});
}

static void on_metrics(client_t *self, const qr_message_t *message)
{
    const qr_metrics_t *b = &message->body.metrics;
    uint64_t open = number_of(b, METRIC_worker_requests_open);
    uint32_t source = find_source(self, message->from);
    self->reading[source] = 0;
    self->answers.reads++;
    if (source == 0) check_numbers(self, b);
    for (uint32_t i = 0; i < self->worker_count; i++)
        if (self->workers[i] == message->from && self->emptied[i] == 1) self->emptied[i] = open ? 0 : 2;
}

static void on_probe_done(client_t *self, const qr_given_t *given, const qr_probe_done_t *b, uint64_t now_us)
{
    uint64_t took_us = now_us - self->probe_asked_us;
    if (!self->probing || b->probe_id != self->probe_id)
        qr_sim_finding("an answer to probe %llu, which is not open", (unsigned long long)b->probe_id);
    self->probing = 0;
    self->answers.probes++;
    if (work_of(given)->faults) return;
    if (took_us > PROBE_MOST_US) qr_sim_finding("a probe took %llu us", (unsigned long long)took_us);
    if (b->reason && self->was_ready) qr_sim_finding("a probe was answered %s after one that was ready", qr_error_name((int)b->reason));
    if (!b->reason) self->was_ready = 1; /* until then the catalog is read; requests are served meanwhile */
}

/* What http asks beside its requests. */
static void ask_more(client_t *self, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox)
{
    const qr_sim_workload_t *w = work_of(given);
    if (w->probe_us && now_us >= self->next_probe_us && !self->draining) {
        self->next_probe_us = now_us + 1 + below(self, 2 * (uint64_t)w->probe_us);
        if (!self->probing) {
            self->probing = 1;
            self->probe_asked_us = now_us;
            qr_send(outbox, self->gateway, probe, &(qr_probe_t){.probe_id = ++self->probe_id});
        }
    }
    if (w->read_us && now_us >= self->next_read_us) {
        self->next_read_us = now_us + 1 + below(self, 2 * (uint64_t)w->read_us);
        for (uint32_t i = 0; i < self->source_count; i++) read_source(self, i, outbox);
    }
    if (w->probe_us) qr_outbox_alarm(outbox, self->next_probe_us);
    if (w->read_us) qr_outbox_alarm(outbox, self->next_read_us);
}

/* Asks every worker until none holds a request any more. true: none does. */
static bool ask_workers(client_t *self, qr_outbox_t *outbox)
{
    uint32_t empty = 0;
    for (uint32_t i = 0; i < self->worker_count; i++) {
        empty += self->emptied[i] == 2;
        if (self->emptied[i]) continue;
        self->emptied[i] = 1;
        read_source(self, find_source(self, self->workers[i]), outbox);
    }
    return empty == self->worker_count;
}

/* Drops every cache until all pools are full; whoever is not by the deadline leaks. */
static void drop_caches(client_t *self, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox)
{
    uint32_t full = 0;
    for (uint32_t i = 0; i < self->page_manager_count; i++) full += self->dropped[i] == 2;
    bool empty = ask_workers(self, outbox);
    if (full == self->page_manager_count && empty) {
        const qr_sim_workload_t *w = work_of(given);
        self->phase = w->again_rows > given->layout.chunk_tokens && !self->answers.again ? AGAIN : DONE;
        return;
    }
    if (now_us >= self->last_by_us && full == self->page_manager_count) qr_sim_finding("a worker holds requests that nobody waits for");
    if (now_us >= self->last_by_us)
        qr_sim_finding("%u of %u pools are not full after cache_drop", self->page_manager_count - full, self->page_manager_count);
    for (uint32_t i = 0; i < self->page_manager_count; i++) {
        if (self->dropped[i]) continue;
        self->dropped[i] = 1;
        qr_send(outbox, self->page_managers[i], cache_drop, &(qr_cache_drop_t){.version = 1});
    }
    qr_outbox_alarm(outbox, now_us + DROP_AGAIN_US);
}

static void begin_drops(client_t *self, const qr_sim_workload_t *w, uint64_t now_us)
{
    self->phase = DROPPING;
    self->last_by_us = now_us + w->last_us;
    for (uint32_t i = 0; i < self->page_manager_count; i++) self->dropped[i] = self->dropped[i] == 1;
    for (uint32_t i = 0; i < self->worker_count; i++) self->emptied[i] = self->emptied[i] == 1;
}

/* K10: asked, given time to become durable, and dropped from every cache, until it is restored. */
static void ask_again(client_t *self, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox)
{
    const qr_sim_workload_t *w = work_of(given);
    if (self->again_at_us == 0) {
        if (self->again_asked == w->again_tries) qr_sim_finding("a prompt was asked %u times and was never restored", self->again_asked);
        submit_again(self, given, now_us, outbox);
        self->again_at_us = now_us + w->again_us;
    }
    if (now_us >= self->again_at_us && !self->again_open) {
        self->again_at_us = 0;
        begin_drops(self, w, now_us);
        drop_caches(self, given, now_us, outbox);
        return;
    }
    qr_outbox_alarm(outbox, qr_max_u64(self->again_at_us, now_us + 10000));
}

/* While clients ask somebody drops the caches now and then. */
static void drop_sometimes(client_t *self, const qr_sim_workload_t *w, uint64_t now_us, qr_outbox_t *outbox)
{
    if (!w->drop_us) return;
    if (now_us >= self->next_drop_us) {
        self->next_drop_us = now_us + 1 + below(self, 2 * (uint64_t)w->drop_us);
        for (uint32_t i = 0; i < self->page_manager_count; i++) {
            if (self->dropped[i] == 1) continue;
            self->dropped[i] = 1;
            qr_send(outbox, self->page_managers[i], cache_drop, &(qr_cache_drop_t){.version = 1});
        }
    }
    qr_outbox_alarm(outbox, self->next_drop_us);
}

static void last_phase(client_t *self, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox)
{
    const qr_sim_workload_t *w = work_of(given);
    if (self->last_by_us == QR_NEVER_US) self->last_by_us = now_us + w->last_us;
    if (self->probing && now_us >= self->probe_asked_us + w->last_us) qr_sim_finding("a probe was never answered");
    if (self->phase == LAST) {
        if (now_us >= self->last_by_us && (self->open || self->last_answered < w->last_requests))
            qr_sim_finding("no progress after healing: %u open, %u of %u last requests answered", self->open, self->last_answered,
                           w->last_requests);
        if (now_us >= self->next_us && self->last_asked < w->last_requests) {
            self->last_asked++;
            submit(self, given, now_us, true, outbox);
            self->next_us = now_us + 1 + below(self, 2 * w->gap_us);
        }
        qr_outbox_alarm(outbox, qr_max_u64(self->next_us, now_us + 1000));
        if (self->last_answered < w->last_requests || self->open) return;
        begin_drops(self, w, now_us);
    }
    if (self->phase == DROPPING) drop_caches(self, given, now_us, outbox);
    if (self->phase == AGAIN) ask_again(self, given, now_us, outbox);
}

/* ---- the actors
 * -------------------------------------------------------------------------------------------------------------------------- */

/* What a client does by itself: a slow one reads now and then, some leave. */
static void read_or_leave(client_t *self, const qr_sim_workload_t *w, ask_t *ask, uint64_t now_us, qr_outbox_t *outbox)
{
    if (!ask->open) return;
    if (ask->reads_us <= now_us) {
        ask->unread = 0;
        ask->reads_us = now_us + w->slow_us;
    }
    if (ask->due_us <= now_us) {
        ask->due_us = QR_NEVER_US;
        if (!ask->cancelled)
            qr_send(outbox, self->gateway, request_cancel, &(qr_request_cancel_t){.key = ask->key, .reason = QR_E_CANCELLED});
        ask->cancelled = 1;
    }
    qr_outbox_alarm(outbox, qr_min_u64(ask->reads_us, ask->due_us));
}

static void settle_drain(client_t *self, uint64_t now_us, qr_outbox_t *outbox)
{
    if (!self->drain_asker || (self->open && now_us < self->drain_by_us)) return;
    qr_send(outbox, self->drain_asker, drained, &(qr_drained_t){.open_count = self->open});
    self->drain_asker = 0;
    self->drain_by_us = QR_NEVER_US;
}

/* Nothing new is asked; drained when every client has its answer, or in time. */
static void on_drain(client_t *self, const qr_message_t *message, qr_outbox_t *outbox)
{
    self->draining = 1;
    self->drain_asker = message->from;
    self->drain_by_us = message->now_us + message->body.drain.budget_us;
    qr_outbox_alarm(outbox, self->drain_by_us);
    settle_drain(self, message->now_us, outbox);
}

static void on_time(client_t *self, const qr_given_t *given, uint64_t now_us, qr_outbox_t *outbox)
{
    const qr_sim_workload_t *w = work_of(given);
    outbox->alarm_us = self->drain_by_us;
    for (uint32_t i = 0; i < ASKS; i++) read_or_leave(self, w, &self->asks[i], now_us, outbox);
    if (self->phase == BUSY || self->phase == LAST) ask_more(self, given, now_us, outbox);
    if (self->phase == BUSY) drop_sometimes(self, w, now_us, outbox);
    settle_drain(self, now_us, outbox);
    if (self->phase == LAST || self->phase == DROPPING || self->phase == AGAIN) last_phase(self, given, now_us, outbox);
    if (self->phase != BUSY || self->submitted >= w->requests || now_us >= w->busy_until_us) {
        if (self->phase == BUSY) qr_outbox_alarm(outbox, now_us + 100000); /* to hear of the last phase */
        return;
    }
    if (now_us >= self->next_us) {
        uint32_t count = chance(self, w->burst_one_in) ? 2 + below(self, 12) : 1;
        for (; count && self->submitted < w->requests; count--, self->submitted++) submit(self, given, now_us, false, outbox);
        self->next_us = now_us + 1 + below(self, 2 * w->gap_us);
    }
    qr_outbox_alarm(outbox, self->next_us);
}

static uint64_t client_bytes(const qr_given_t *given)
{
    (void)given;
    return sizeof(client_t);
}

static void client_init(void *block, const qr_given_t *given, uint64_t address)
{
    client_t *self = block;
    self->address = address;
    self->gateway = self->sources[0] = qr_address_partner(address, QR_ROLE_gateway);
    self->sources[1] = qr_address_partner(address, QR_ROLE_router);
    self->source_count = 2;
    self->drain_by_us = QR_NEVER_US;
    (void)given;
}

static void client_start(client_t *self, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    const qr_start_t *b = &message->body.start;
    qr_prng_init(&self->prng, work_of(given)->seed ^ b->seed);
    for (uint64_t i = 0; i < b->partners.count && self->source_count < SOURCES; i++)
        if (qr_address_role(b->partners.data[i]) != QR_ROLE_text) /* no numbers for http (roles.def) */
            self->sources[self->source_count++] = b->partners.data[i];
    for (uint64_t i = 0; i < b->partners.count; i++)
        if (qr_address_role(b->partners.data[i]) == QR_ROLE_page_manager)
            self->page_managers[self->page_manager_count++] = b->partners.data[i];
        else if (qr_address_role(b->partners.data[i]) == QR_ROLE_worker)
            self->workers[self->worker_count++] = b->partners.data[i];
    self->next_us = message->now_us + below(self, 200000);
    self->key = b->epoch << 24;
    qr_send(outbox, message->from, ready, &(qr_ready_t){0});
    on_time(self, given, message->now_us, outbox);
}

static void client_handle(void *block, const qr_given_t *given, const qr_message_t *message, qr_outbox_t *outbox)
{
    client_t *self = block;
    switch (message->type) {
    case QR_MESSAGE_start: client_start(self, given, message, outbox); break;
    case QR_MESSAGE_alarm: on_time(self, given, message->now_us, outbox); break;
    case QR_MESSAGE_request_deltas: on_deltas(self, given, &message->body.request_deltas, outbox); break;
    case QR_MESSAGE_request_finished:
        on_finished(self, given, &message->body.request_finished, message->now_us);
        settle_drain(self, message->now_us, outbox);
        break;
    case QR_MESSAGE_request_refused:
        on_refused(self, given, &message->body.request_refused, message->now_us);
        settle_drain(self, message->now_us, outbox);
        break;
    case QR_MESSAGE_probe_done: on_probe_done(self, given, &message->body.probe_done, message->now_us); break;
    case QR_MESSAGE_drain: on_drain(self, message, outbox); break;
    case QR_MESSAGE_stop: qr_send(outbox, message->from, stopped, &(qr_stopped_t){0}); break;
    case QR_MESSAGE_metrics: on_metrics(self, message); break;
    case QR_MESSAGE_cache_dropped: on_cache_dropped(self, message); break;
    case QR_MESSAGE_link_down: /* its questions are closed: they are asked again */
        for (uint32_t i = 0; i < self->source_count; i++)
            if (qr_address_node(self->sources[i]) == message->body.link_down.node) self->reading[i] = 0;
        for (uint32_t i = 0; i < self->page_manager_count; i++)
            if (qr_address_node(self->page_managers[i]) == message->body.link_down.node && self->dropped[i] == 1) self->dropped[i] = 0;
        for (uint32_t i = 0; i < self->worker_count; i++)
            if (qr_address_node(self->workers[i]) == message->body.link_down.node && self->emptied[i] == 1) self->emptied[i] = 0;
        break;
    default: break;
    }
}

static void client_print(const void *block, const qr_given_t *given, qr_text_t *text)
{
    const client_t *self = block;
    (void)given;
    qr_text_put(text, "http: phase ");
    qr_text_put_u64(text, self->phase);
    qr_text_put(text, ", open ");
    qr_text_put_u64(text, self->open);
    qr_text_put(text, "\n");
    for (uint32_t i = 0; i < ASKS; i++) {
        const ask_t *ask = &self->asks[i];
        if (!ask->open) continue;
        qr_text_put(text, "  key ");
        qr_text_put_u64(text, ask->key);
        qr_text_put(text, ": prompt ");
        qr_text_put_u64(text, ask->prompt);
        qr_text_put(text, ", drawn ");
        qr_text_put_u64(text, ask->count - ask->prompt);
        qr_text_put(text, ask->cancelled ? ", cancelled\n" : "\n");
    }
}

const qr_actor_class_t qr_sim_http_class = {
    .name = "http",
    .role = QR_ROLE_http,
    .max_out = 2 * ASKS + 3 * QR_PARTNERS_MAX + 16,
    .owns_world = true,
    .bytes = client_bytes,
    .init = client_init,
    .handle = client_handle,
    .print = client_print,
};
