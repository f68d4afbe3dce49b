/* host.c - see host.h. */
#define _GNU_SOURCE
#include "transport/host.h"

#include "base/error.h"
#include "base/mutant.h"
#include "messages/codec.h"
#include "messages/schema.h"
#include "transport/clock.h"
#include "transport/log.h"
#include "transport/pair.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { ARENA_BYTES = QR_CODEC_ARENA_BYTES(QR_MESSAGE_BYTES_MAX), LOG_EVERY_US = 1000000 };

typedef struct held {
    uint8_t *bytes;
    size_t count;
} held_t;

typedef struct cell {
    const qr_actor_class_t *actor;
    uint64_t address;
    void *state;
    uint64_t state_bytes;
    uint64_t alarm_us; /* armed alarm, QR_NEVER_US = none */
    uint64_t look_us;  /* io actors: when work wants its next piece */
    int wake;          /* descriptor, -1 = none */
    bool started, stopped;
    bool recorded;                       /* a segment is open */
    bool too_large;                      /* to be snapshot; said once */
    uint64_t segment_used, segment_most; /* bytes of its entries; at which the next begins */
    uint32_t held_count, held_capacity, held_remote; /* held_remote: of other nodes */
    held_t *held;                                    /* [held_capacity] */
    qr_pairs_t *pairs;
} cell_t;

struct qr_host {
    qr_host_config_t config;
    qr_port_t port;
    uint32_t cell_count;
    cell_t *cells; /* [cell_count] */
    qr_outbox_t *outbox;
    uint64_t now_us; /* of this turn */
    uint64_t logged_us; /* last line that another node caused */
    uint64_t hash;   /* of what the current call emitted (record) */
    uint32_t place;  /* entries recorded in this turn */
    bool closing;
    uint8_t *wire; /* [wire_bytes] encoded message on its way out */
    uint64_t wire_bytes;
    qr_arena_t arena;      /* columns of the message being handled */
    qr_message_t message;  /* the message being handled */
    zmq_pollitem_t *items; /* inbox, then wake descriptors */
    uint32_t item_count;
    qr_recorder_t recorder;
    bool recording;
    qr_host_counts_t counts;
};

/* Single writer: a plain add that other threads may read. */
static void bump(_Atomic uint64_t *count)
{
    atomic_store_explicit(count, atomic_load_explicit(count, memory_order_relaxed) + 1, memory_order_relaxed);
}

_Noreturn void qr_host_fault(const char *from, const char *to, const char *type, const char *sentence)
{
    fprintf(stderr, "quire: fault: %s -> %s: %s: %s\n", from, to, type, sentence);
    abort();
}

static const char *type_name(uint16_t type)
{
    const qr_schema_t *row = qr_schema_find(type);
    return row ? row->name : "?";
}

static const char *name_of(const qr_host_t *host, uint64_t address)
{
    return qr_address_node(address) == host->config.directory->node ? qr_directory_name(host->config.directory, address) : "another node";
}

static void *pages_take(uint64_t bytes)
{
    void *memory = mmap(NULL, qr_max_u64(bytes, 1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void pages_give(void *memory, uint64_t bytes)
{
    if (memory) (void)munmap(memory, qr_max_u64(bytes, 1));
}

/* ---- making ------------------------------------------------------------------------------------------------------------ */

static bool cell_init(qr_host_t *host, cell_t *cell, const qr_actor_class_t *actor, uint64_t address)
{
    const qr_given_t *given = host->config.given;
    cell->actor = actor;
    cell->address = address;
    cell->alarm_us = cell->look_us = QR_NEVER_US;
    cell->wake = -1;
    cell->state_bytes = qr_max_u64(actor->bytes(given), 8);
    cell->pairs = pages_take(sizeof *cell->pairs);
    cell->state = pages_take(cell->state_bytes);
    if (!cell->state || !cell->pairs) return false;
    qr_pairs_init(cell->pairs, address);
    actor->init(cell->state, given, address);
    return true;
}

qr_host_t *qr_host_new(const qr_host_config_t *config, const qr_actor_class_t *const *classes, const uint64_t *addresses, uint32_t count)
{
    qr_host_t *host = calloc(1, sizeof *host);
    if (!host) return NULL;
    host->config = *config;
    host->cells = calloc(qr_max_u32(count, 1), sizeof *host->cells);
    host->items = calloc(count + 1, sizeof *host->items);
    host->outbox = calloc(1, sizeof *host->outbox);
    host->wire_bytes = QR_MESSAGE_BYTES_MAX;
    host->wire = pages_take(host->wire_bytes);
    void *arena = pages_take(ARENA_BYTES);
    void *columns = pages_take(QR_OUTBOX_BYTES);
    uint32_t most = 1;
    for (uint32_t i = 0; i < count; i++) most = qr_max_u32(most, classes[i]->max_out);
    qr_message_t *messages = calloc(most, sizeof *messages);
    if (arena) qr_arena_init(&host->arena, arena, ARENA_BYTES);
    if (host->outbox && messages && columns) qr_outbox_init(host->outbox, messages, most, columns, QR_OUTBOX_BYTES);
    bool fine = host->cells && host->items && host->outbox && host->wire && arena && columns && messages;
    for (uint32_t i = 0; fine && i < count; i++) {
        host->cell_count = i + 1;
        fine = cell_init(host, &host->cells[i], classes[i], addresses[i]);
    }
    if (fine) return host;
    free(messages);
    pages_give(columns, QR_OUTBOX_BYTES);
    if (host->outbox) host->outbox->messages = NULL;
    qr_host_destroy(&host);
    return NULL;
}

void qr_host_destroy(qr_host_t **self)
{
    qr_host_t *host = *self;
    if (!host) return;
    *self = NULL;
    for (uint32_t i = 0; i < host->cell_count; i++) {
        cell_t *cell = &host->cells[i];
        if (cell->state && cell->actor->done) cell->actor->done(cell->state);
        for (uint32_t h = 0; h < cell->held_count; h++) free(cell->held[h].bytes);
        free(cell->held);
        pages_give(cell->state, cell->state_bytes);
        pages_give(cell->pairs, sizeof *cell->pairs);
    }
    if (host->outbox && host->outbox->messages) {
        free(host->outbox->messages);
        pages_give(host->outbox->bytes, QR_OUTBOX_BYTES);
    }
    pages_give(host->wire, host->wire_bytes);
    pages_give(host->arena.memory, ARENA_BYTES);
    free(host->outbox);
    free(host->items);
    free(host->cells);
    free(host->recorder.on_the_way); /* every thread has ended, so every block came back */
    free(host);
}

static cell_t *cell_find(qr_host_t *host, uint64_t address)
{
    for (uint32_t i = 0; i < host->cell_count; i++)
        if (host->cells[i].address == address) return &host->cells[i];
    return NULL;
}

void *qr_host_state(qr_host_t *host, uint64_t address)
{
    cell_t *cell = cell_find(host, address);
    return cell ? cell->state : NULL;
}

const qr_host_counts_t *qr_host_counts(const qr_host_t *host) { return &host->counts; }

/* ---- record ------------------------------------------------------------------------------------------------------------- */

static uint32_t sum_u16(const uint16_t *counts)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < QR_MESSAGE_TYPES_MAX; i++) sum += counts[i];
    return sum;
}

/* Begins the actor's next segment with a snapshot of what stands before the entry that follows. */
static bool segment_begin(qr_host_t *host, cell_t *cell)
{
    bool pure = !cell->actor->owns_world && !cell->actor->work;
    qr_record_partner_t partners[QR_PAIRS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < QR_PAIR_SLOTS; i++) {
        const qr_pair_t *pair = &cell->pairs->slots[i];
        if (!pair->address) continue;
        partners[count++] = (qr_record_partner_t){pair->address,      pair->epoch_in,       pair->sequence_in,
                                                  pair->sequence_out, sum_u16(pair->asked), sum_u16(pair->owed)};
    }
    uint8_t *head = NULL, *runs = NULL;
    size_t run_bytes = pure ? qr_record_runs_make(cell->state, cell->state_bytes, 2 * host->config.segment_bytes, &runs) : 0;
    if (pure && !run_bytes && !cell->too_large) {
        cell->too_large = true;
        qr_log_line(host->config.log_level, QR_LEVEL_WARN, cell->actor->name,
                    "its state is too large for record_bytes: recorded, but not for replay");
    }
    qr_record_snapshot_t snapshot = {
        .alarm_us = cell->alarm_us, .now_us = host->now_us, .partner_count = count, .state_bytes = run_bytes ? cell->state_bytes : 0};
    size_t head_bytes = qr_record_head_make(&host->recorder, host->config.directory->node, cell->actor->name, cell->address,
                                            host->config.epoch, host->now_us, host->config.given, run_bytes != 0, &head);
    if (head) qr_record_head_seal(head, &snapshot, partners, runs, run_bytes);
    uint64_t address = cell->address;
    bool kept = head &&
                qr_recorder_put(&host->recorder, address, QR_PIECE_OPEN, head, head_bytes, &snapshot, sizeof snapshot, host->now_us) &&
                qr_recorder_put(&host->recorder, address, QR_PIECE_DATA, partners, count * sizeof *partners, runs, run_bytes, host->now_us);
    free(head);
    free(runs);
    cell->segment_used = 0;
    cell->segment_most = qr_max_u64(host->config.segment_bytes, 2 * run_bytes);
    return cell->recorded = kept;
}

/* Before a call: makes sure a segment is open, so that its snapshot is the state the entry acts on. */
static void record_before(qr_host_t *host, cell_t *cell)
{
    host->hash = 0;
    if (!host->recording) return;
    if (host->recorder.lost) {
        for (uint32_t i = 0; i < host->cell_count; i++) host->cells[i].recorded = false;
        if (!qr_recorder_recovered(&host->recorder)) return;
    }
    if (!cell->recorded || cell->segment_used > cell->segment_most) (void)segment_begin(host, cell);
}

/* The entry is one piece: its head and the message, then the hash of what was emitted; so it is whole or absent. */
static void record_after(qr_host_t *host, cell_t *cell, uint32_t kind, const void *bytes, size_t count)
{
    if (!host->recording || !cell->recorded) return;
    kind |= host->place++ << 8;
    uint64_t hash = qr_record_hash(host->hash, &cell->alarm_us, sizeof cell->alarm_us);
    qr_record_entry_t entry = {.now_us = host->now_us, .bytes = (uint32_t)count, .kind = kind, .hash = hash};
    if (!qr_recorder_put_entry(&host->recorder, cell->address, entry, bytes)) cell->recorded = false;
    cell->segment_used += sizeof entry + count;
}

/* ---- sending ------------------------------------------------------------------------------------------------------------ */

/* Whether another node may cause a line now (H6). */
static bool may_complain(qr_host_t *host)
{
    if (host->logged_us && host->now_us < host->logged_us + LOG_EVERY_US) return false;
    host->logged_us = host->now_us;
    return true;
}

static void dropped(qr_host_t *host, cell_t *cell, _Atomic uint64_t *count, uint16_t type, uint64_t other, qr_verdict_t verdict)
{
    bump(count);
    qr_note_t note = {QR_NOTE_protocol, QR_LEVEL_WARN, 0, type, other, (uint64_t)verdict};
    if (may_complain(host)) qr_log_note(host->config.log_level, cell->actor->name, type_name(type), &note, host->now_us);
}

static qr_pair_t *pair_of(qr_host_t *host, cell_t *cell, uint64_t other)
{
    qr_pair_t *pair = qr_pairs_get(cell->pairs, other);
    if (pair && pair->port == UINT32_MAX) pair->port = qr_directory_port(host->config.directory, other);
    return pair;
}

/* Sends one message of the outbox: stamps, judges, encodes, hands it to the port. */
static void send_one(qr_host_t *host, cell_t *cell, qr_message_t *message)
{
    bool remote = qr_address_node(message->to) != host->config.directory->node;
    qr_pair_t *pair = pair_of(host, cell, message->to);
    qr_verdict_t verdict = pair ? qr_pairs_send(cell->pairs, pair, message->type, &message->sequence) : QR_VERDICT_FULL;
    if (verdict == QR_VERDICT_QUESTION && remote) { /* its session ended while the actor worked on it */
        dropped(host, cell, &host->counts.dropped_answer, message->type, message->to, verdict);
        return;
    }
    if (verdict) qr_host_fault(cell->actor->name, name_of(host, message->to), type_name(message->type), qr_verdict_sentence(verdict));
    if (pair->port == UINT32_MAX) {
        if (!remote) qr_host_fault(cell->actor->name, name_of(host, message->to), type_name(message->type), "no such actor in this node");
        dropped(host, cell, &host->counts.dropped_role, message->type, message->to, QR_VERDICT_ROLE);
        return;
    }
    message->from = cell->address;
    message->epoch = host->config.epoch;
    int64_t bytes = qr_codec_encode(message, host->wire, host->wire_bytes);
    if (bytes <= 0)
        qr_host_fault(cell->actor->name, name_of(host, message->to), type_name(message->type), "the message does not fit its bound");
    if (host->recording) host->hash = qr_record_hash(host->hash, host->wire, (size_t)bytes);
    if (qr_port_send(&host->port, pair->port, host->wire, (size_t)bytes) != 0)
        qr_host_fault(cell->actor->name, name_of(host, message->to), type_name(message->type), "the send was refused");
    bump(&host->counts.sent);
}

/* The actor said its last word: nothing reaches it any more, and its descriptor no longer wakes the host. */
static void end(qr_host_t *host, cell_t *cell)
{
    cell->stopped = true;
    for (uint32_t i = 1; i < host->item_count; i++)
        if (host->items[i].fd == cell->wake) host->items[i].events = 0;
}

/* After a handler: notes are printed, the alarm is armed, everything emitted is sent. */
static void flush(qr_host_t *host, cell_t *cell)
{
    qr_outbox_t *outbox = host->outbox;
    cell->alarm_us = outbox->alarm_us;
    bool remote = host->message.type && qr_address_node(host->message.from) != host->config.directory->node;
    for (uint32_t i = 0; i < outbox->note_count; i++) {
        if (remote && outbox->notes[i].level <= QR_LEVEL_WARN && !may_complain(host)) continue;
        qr_log_note(host->config.log_level, cell->actor->name, type_name(host->message.type), &outbox->notes[i], host->now_us);
    }
    for (uint32_t i = 0; i < outbox->count; i++) {
        send_one(host, cell, &outbox->messages[i]);
        if (outbox->messages[i].type == QR_MESSAGE_stopped) end(host, cell);
    }
    if (host->config.scramble) {
        memset(outbox->messages, 0xa5, outbox->count * sizeof *outbox->messages);
        memset(outbox->bytes, 0xa5, outbox->bytes_used);
    }
    if (host->config.check && cell->actor->check) cell->actor->check(cell->state, host->config.given);
}

/* ---- receiving ---------------------------------------------------------------------------------------------------------- */

static void call(qr_host_t *host, cell_t *cell, const qr_message_t *message)
{
    qr_outbox_reset(host->outbox, cell->actor->max_out);
    host->outbox->alarm_us = cell->alarm_us;
    cell->actor->handle(cell->state, host->config.given, message, host->outbox);
    flush(host, cell);
    if (cell->actor->work && cell->started) cell->look_us = host->now_us;
}

static bool held_grow(cell_t *cell)
{
    if (cell->held_count < cell->held_capacity) return true;
    uint32_t capacity = qr_max_u32(2 * cell->held_capacity, QR_HELD_MAX);
    held_t *held = realloc(cell->held, capacity * sizeof *held);
    if (!held) return false;
    cell->held = held;
    cell->held_capacity = capacity;
    return true;
}

static void hold(qr_host_t *host, cell_t *cell, bool remote, const uint8_t *bytes, size_t count)
{
    bool room = !remote || cell->held_remote < QR_HELD_MAX;
    uint8_t *copy = room && held_grow(cell) ? malloc(qr_max_u64(count, 1)) : NULL;
    if (!copy) {
        bump(&host->counts.dropped_stale);
        return;
    }
    memcpy(copy, bytes, count);
    cell->held_remote += remote;
    cell->held[cell->held_count++] = (held_t){copy, count};
}

static void deliver(qr_host_t *host, cell_t *cell, const uint8_t *bytes, size_t count);

static void begin(qr_host_t *host, cell_t *cell)
{
    cell->started = true;
    if (cell->actor->wake_descriptor) cell->wake = cell->actor->wake_descriptor(cell->state);
    if (cell->wake >= 0) host->items[host->item_count++] = (zmq_pollitem_t){NULL, cell->wake, ZMQ_POLLIN, 0};
    if (cell->actor->work) cell->look_us = host->now_us;
    for (uint32_t i = 0; i < cell->held_count; i++) {
        deliver(host, cell, cell->held[i].bytes, cell->held[i].count);
        free(cell->held[i].bytes);
    }
    free(cell->held);
    cell->held = NULL;
    cell->held_count = cell->held_capacity = 0;
}

/* Whether a judged message may be handled; a wrong one is counted (other node) or a fault (this node). */
static bool judge(qr_host_t *host, cell_t *cell, const qr_message_t *message)
{
    bool remote = qr_address_node(message->from) != host->config.directory->node;
    qr_pair_t *pair = pair_of(host, cell, message->from);
    qr_verdict_t verdict = pair ? qr_pairs_receive(cell->pairs, pair, message->type, message->epoch, message->sequence) : QR_VERDICT_FULL;
    if (!verdict) return true;
    if (!remote) qr_host_fault(name_of(host, message->from), cell->actor->name, type_name(message->type), qr_verdict_sentence(verdict));
    _Atomic uint64_t *count = verdict == QR_VERDICT_QUESTION ? &host->counts.dropped_answer
                              : verdict == QR_VERDICT_STALE  ? &host->counts.dropped_stale
                                                             : &host->counts.dropped_role;
    dropped(host, cell, count, message->type, message->from, verdict);
    return false;
}

/* Decodes into the arena. In scramble mode every message has an arena of its own that ends with a page of no access. */
static bool decode(qr_host_t *host, cell_t *cell, const uint8_t *bytes, size_t count)
{
    if (host->config.scramble) qr_arena_init(&host->arena, pages_take(ARENA_BYTES), ARENA_BYTES);
    qr_arena_reset(&host->arena);
    int code = qr_codec_decode(bytes, count, &host->arena, &host->message);
    if (code == 0) return true;
    bump(&host->counts.dropped_malformed);
    qr_note_t note = {QR_NOTE_protocol, QR_LEVEL_WARN, 0, 0, count, (uint64_t)-code};
    if (may_complain(host)) qr_log_note(host->config.log_level, cell->actor->name, "malformed", &note, host->now_us);
    return false;
}

static void deliver(qr_host_t *host, cell_t *cell, const uint8_t *bytes, size_t count)
{
    uint8_t *own = host->arena.memory;
    qr_message_t *message = &host->message;
    if (decode(host, cell, bytes, count) && judge(host, cell, message)) {
        message->now_us = host->now_us;
        if (message->type == QR_MESSAGE_link_down) qr_pairs_close_node(cell->pairs, message->body.link_down.node);
        record_before(host, cell);
        bool first = message->type == QR_MESSAGE_start;
        call(host, cell, message);
        record_after(host, cell, QR_ENTRY_MESSAGE, bytes, count);
        bump(&host->counts.messages);
        if (first) begin(host, cell);
    }
    if (host->config.scramble) {
        pages_give(host->arena.memory, ARENA_BYTES);
        memset(&host->message.body, 0xa5, sizeof host->message.body);
        qr_arena_init(&host->arena, own, ARENA_BYTES);
    }
}

static void receive(qr_host_t *host, zmq_msg_t *frame)
{
    const uint8_t *bytes = zmq_msg_data(frame);
    size_t count = zmq_msg_size(frame);
    if (count == 0) {
        host->closing = true;
        return;
    }
    qr_peek_t head;
    if (qr_codec_peek(bytes, count, &head) != 0) {
        bump(&host->counts.dropped_malformed);
        return;
    }
    if (cell_find(host, head.from)) host->port.self_in_flight--;
    cell_t *cell = cell_find(host, head.to);
    if (!cell) {
        if (qr_address_node(head.from) == host->config.directory->node)
            qr_host_fault(name_of(host, head.from), "?", type_name(head.type), "sent to a host that does not have this actor");
        bump(&host->counts.dropped_role);
    } else if (cell->stopped) {
        bump(&host->counts.dropped_stale);
    } else if (!cell->started && head.type != QR_MESSAGE_start && head.type != QR_MESSAGE_stop && head.type != QR_MESSAGE_drain) {
        hold(host, cell, qr_address_node(head.from) != host->config.directory->node, bytes, count);
    } else {
        deliver(host, cell, bytes, count);
    }
}

/* ---- alarms, pieces, sleep ------------------------------------------------------------------------------------------------ */

static void fire(qr_host_t *host, cell_t *cell)
{
    qr_message_t *message = &host->message;
    memset(message, 0, sizeof *message);
    message->type = QR_MESSAGE_alarm;
    message->version = QR_MESSAGE_VERSION;
    message->from = message->to = cell->address;
    message->epoch = host->config.epoch;
    message->now_us = host->now_us;
    message->body.alarm.due_us = cell->alarm_us;
    record_before(host, cell);
    if (!QR_MUTANT(312)) cell->alarm_us = QR_NEVER_US;
    uint8_t wire[128];
    int64_t bytes = host->recording ? qr_codec_encode(message, wire, sizeof wire) : 0;
    call(host, cell, message);
    record_after(host, cell, QR_ENTRY_ALARM, wire, bytes > 0 ? (size_t)bytes : 0);
    bump(&host->counts.alarms);
}

static uint32_t fire_due(qr_host_t *host)
{
    uint32_t fired = 0;
    for (uint32_t i = 0; i < host->cell_count; i++) {
        cell_t *cell = &host->cells[i];
        if (cell->alarm_us > host->now_us || cell->stopped) continue;
        fire(host, cell);
        fired++;
    }
    return fired;
}

static uint32_t work(qr_host_t *host)
{
    uint32_t done = 0;
    for (uint32_t i = 0; i < host->cell_count; i++) {
        cell_t *cell = &host->cells[i];
        if (!cell->actor->work || !cell->started || cell->stopped || cell->look_us > host->now_us) continue;
        record_before(host, cell);
        host->message.type = 0;
        qr_outbox_reset(host->outbox, cell->actor->max_out);
        host->outbox->alarm_us = cell->alarm_us;
        cell->look_us = cell->actor->work(cell->state, host->config.given, host->now_us, host->outbox);
        bool said = host->outbox->count > 0;
        flush(host, cell);
        if (said) record_after(host, cell, QR_ENTRY_PIECE, NULL, 0);
        bump(&host->counts.pieces);
        done += said || cell->look_us <= host->now_us;
    }
    return done;
}

/* Earliest time anything of this host is due. */
static uint64_t due(qr_host_t *host)
{
    uint64_t at = QR_NEVER_US;
    for (uint32_t i = 0; i < host->cell_count; i++) {
        const cell_t *cell = &host->cells[i];
        if (cell->stopped) continue;
        at = qr_min_u64(at, cell->alarm_us);
        if (cell->actor->work) at = qr_min_u64(at, cell->look_us);
    }
    if (host->recording) at = qr_min_u64(at, qr_recorder_turn(&host->recorder, host->now_us, false));
    return at;
}

/* Sleeps until a message, a wake descriptor or the next due time; a due time within a millisecond is waited for by yielding for at
 * most 50 us first (kernels in flight on a device end within that). */
static void sleep_until(qr_host_t *host, uint64_t at)
{
    uint64_t now = qr_clock_us();
    if (at <= now) return;
    if (at - now < 1000) {
        uint64_t spin_end = now + 50;
        while (now < at && now < spin_end) {
            (void)sched_yield();
            now = qr_clock_us();
        }
        if (now >= at) return;
    }
    long timeout_ms = at == QR_NEVER_US ? -1 : (long)qr_min_u64(qr_div_up(at - now, 1000), 3600000);
    bump(&host->counts.sleeps);
    if (zmq_poll(host->items, (int)host->item_count, timeout_ms) <= 0) return;
    for (uint32_t i = 1; i < host->item_count; i++) {
        if (!host->items[i].revents) continue;
        for (uint32_t c = 0; c < host->cell_count; c++)
            if (host->cells[c].wake == host->items[i].fd) host->cells[c].look_us = 0;
    }
}

static void loop(qr_host_t *host)
{
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    while (!host->closing) {
        host->now_us = qr_clock_us();
        host->place = 0;
        uint32_t n = 0;
        while (n < QR_TURN && !host->closing && qr_port_receive(&host->port, &frame)) {
            receive(host, &frame);
            n++;
        }
        n += fire_due(host);
        n += work(host);
        atomic_store_explicit(&host->counts.self_in_flight_most, host->port.self_in_flight_most, memory_order_relaxed);
        if (n == 0) sleep_until(host, due(host));
    }
    zmq_msg_close(&frame);
}

/* The thread of a host whose actors all are `behind`. A system that does not allow it serves all the same. */
static void step_back(const qr_host_t *host)
{
    for (uint32_t i = 0; i < host->cell_count; i++)
        if (!host->cells[i].actor->behind) return;
    int niceness = getpriority(PRIO_PROCESS, 0); /* 0: of this thread */
    if (!QR_MUTANT(784)) (void)setpriority(PRIO_PROCESS, 0, niceness + QR_NICENESS_BEHIND);
}

void qr_host_run(qr_host_t *host, void (*opened)(void *context, int code), void *context)
{
    step_back(host);
    int code = qr_port_open(&host->port, host->config.directory, host->config.port);
    if (code == 0 && host->config.segment_bytes) {
        code = qr_recorder_init(&host->recorder, &host->port, host->config.given);
        host->recording = code == 0;
    }
    host->items[0] = (zmq_pollitem_t){host->port.inbox, 0, ZMQ_POLLIN, 0};
    host->item_count = 1;
    opened(context, code);
    if (code == 0) loop(host);
    if (host->recording) qr_recorder_done(&host->recorder);
}

void qr_host_close(qr_host_t *host) { qr_port_close(&host->port); }
