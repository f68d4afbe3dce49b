/* decisions.c - see decisions.h. */
#include "actors/decisions.h"

#include "base/mutant.h"

/* The message's columns. */
typedef struct columns {
    uint64_t request_ids[QR_DECISIONS_MAX], policy_versions[QR_DECISIONS_MAX], predicted_ram_ns[QR_DECISIONS_MAX],
        predicted_ssd_ns[QR_DECISIONS_MAX], predicted_recompute_ns[QR_DECISIONS_MAX], ram_row_ns[QR_DECISIONS_MAX],
        ssd_row_ns[QR_DECISIONS_MAX], recompute_row_ns[QR_DECISIONS_MAX], ram_samples[QR_DECISIONS_MAX], ssd_samples[QR_DECISIONS_MAX],
        recompute_samples[QR_DECISIONS_MAX], outcome_ns[QR_DECISIONS_MAX], queue_ns[QR_DECISIONS_MAX], elapsed_ns[QR_DECISIONS_MAX],
        ages_us[QR_DECISIONS_MAX];
    uint32_t resident_rows[QR_DECISIONS_MAX], ram_rows[QR_DECISIONS_MAX], ssd_rows[QR_DECISIONS_MAX], outcome_rows[QR_DECISIONS_MAX],
        reasons[QR_DECISIONS_MAX];
    uint8_t kinds[QR_DECISIONS_MAX], choices[QR_DECISIONS_MAX], chains[32 * QR_DECISIONS_MAX];
} columns_t;

void qr_decisions_add(qr_decisions_t *self, const qr_decision_t *decision, uint64_t now_us)
{
    if (!self->facts) return;
    if (self->count == QR_DECISIONS_MAX) {
        self->dropped += !QR_MUTANT(744);
        return;
    }
    if (self->count == 0) self->due_us = now_us + QR_DECISIONS_US;
    self->entries[self->count++] = *decision;
}

static void put(columns_t *c, uint32_t i, const qr_decision_t *d, uint64_t now_us)
{
    c->request_ids[i] = d->request_id, c->policy_versions[i] = d->policy_version;
    c->kinds[i] = d->kind, c->choices[i] = d->choice;
    c->resident_rows[i] = d->resident_rows, c->ram_rows[i] = d->ram_rows, c->ssd_rows[i] = d->ssd_rows;
    c->predicted_ram_ns[i] = d->predicted_ram_ns, c->predicted_ssd_ns[i] = d->predicted_ssd_ns;
    c->predicted_recompute_ns[i] = d->predicted_recompute_ns;
    c->ram_row_ns[i] = d->ram_row_ns, c->ssd_row_ns[i] = d->ssd_row_ns, c->recompute_row_ns[i] = d->recompute_row_ns;
    c->ram_samples[i] = d->ram_samples, c->ssd_samples[i] = d->ssd_samples, c->recompute_samples[i] = d->recompute_samples;
    c->outcome_rows[i] = d->outcome_rows, c->reasons[i] = d->reason;
    c->outcome_ns[i] = d->outcome_ns, c->queue_ns[i] = d->queue_ns, c->elapsed_ns[i] = d->elapsed_ns;
    c->ages_us[i] = now_us - qr_min_u64(d->made_us, now_us);
    memcpy(c->chains + 32 * (size_t)i, d->chain, 32);
}

static void send(const qr_decisions_t *self, const columns_t *c, qr_outbox_t *outbox)
{
    uint64_t n = self->count;
    qr_decisions_note_t body = {.sequence = self->sequence, .dropped = self->dropped};
    body.request_ids = (qr_u64s_t){c->request_ids, n};
    body.policy_versions = (qr_u64s_t){c->policy_versions, n};
    body.kinds = (qr_bytes_t){c->kinds, n};
    body.choices = (qr_bytes_t){c->choices, n};
    body.resident_rows = (qr_u32s_t){c->resident_rows, n};
    body.ram_rows = (qr_u32s_t){c->ram_rows, n};
    body.ssd_rows = (qr_u32s_t){c->ssd_rows, n};
    body.predicted_ram_ns = (qr_u64s_t){c->predicted_ram_ns, n};
    body.predicted_ssd_ns = (qr_u64s_t){c->predicted_ssd_ns, n};
    body.predicted_recompute_ns = (qr_u64s_t){c->predicted_recompute_ns, n};
    body.ram_row_ns = (qr_u64s_t){c->ram_row_ns, n};
    body.ssd_row_ns = (qr_u64s_t){c->ssd_row_ns, n};
    body.recompute_row_ns = (qr_u64s_t){c->recompute_row_ns, n};
    body.ram_samples = (qr_u64s_t){c->ram_samples, n};
    body.ssd_samples = (qr_u64s_t){c->ssd_samples, n};
    body.recompute_samples = (qr_u64s_t){c->recompute_samples, n};
    body.outcome_rows = (qr_u32s_t){c->outcome_rows, n};
    body.reasons = (qr_u32s_t){c->reasons, n};
    body.outcome_ns = (qr_u64s_t){c->outcome_ns, n};
    body.queue_ns = (qr_u64s_t){c->queue_ns, n};
    body.elapsed_ns = (qr_u64s_t){c->elapsed_ns, n};
    body.ages_us = (qr_u64s_t){c->ages_us, n};
    body.chains = (qr_bytes_t){c->chains, 32 * n};
    qr_send(outbox, self->facts, decisions_note, &body);
}

void qr_decisions_send(qr_decisions_t *self, uint64_t now_us, bool all, qr_outbox_t *outbox)
{
    if (self->count == 0 || (self->open && !QR_MUTANT(745))) return;
    if (!all && self->count < QR_DECISIONS_MAX / 2 && now_us < self->due_us) {
        qr_outbox_alarm(outbox, self->due_us);
        return;
    }
    columns_t columns;
    for (uint32_t i = 0; i < self->count; i++) put(&columns, i, &self->entries[i], now_us);
    self->sequence++;
    self->open = 1;
    send(self, &columns, outbox);
    self->count = 0;
}

void qr_decisions_answered(qr_decisions_t *self) { self->open = 0; }
