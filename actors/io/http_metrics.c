/* http_metrics.c - see http_metrics.h. */
#include "actors/io/http_metrics.h"

#include "base/mutant.h"

enum { COUNTER, GAUGE };
static const struct metric {
    const char *name, *help;
    uint32_t number;
    int kind;
} metrics[] = {
#define METRIC(name, number, kind, help) {"quire_" #name, help, number, kind},
#include "messages/metric.def"
};
#define METRIC(name, number, kind, help) _Static_assert((number) < QR_HTTP_METRICS_MAX, "the table of a source is too small");
#include "messages/metric.def"

static const struct metric *find_metric(uint32_t number)
{
    for (size_t i = 0; i < QR_COUNT(metrics); i++)
        if (metrics[i].number == number) return &metrics[i];
    return NULL;
}

void qr_http_source_take(qr_http_source_t *source, qr_u32s_t ids, qr_u64s_t values)
{
    for (uint64_t i = 0; i < ids.count && i < values.count; i++) {
        uint32_t id = ids.data[i];
        const struct metric *metric = find_metric(id);
        if (!metric) continue;
        if (metric->kind == COUNTER && values.data[i] < source->last[id] && !QR_MUTANT(250)) source->base[id] += source->last[id];
        source->last[id] = values.data[i];
        source->known[id] = true;
    }
}

/* The exposed name: times are shown in seconds, the unit that the format's readers expect. */
static bool put_name(qr_http_buffer_t *out, const char *name)
{
    static const char microseconds[] = "_us_total";
    size_t bytes = strlen(name), end = sizeof microseconds - 1;
    bool time = bytes > end && !strcmp(name + bytes - end, microseconds);
    qr_http_put_bytes(out, name, time ? bytes - end : bytes);
    if (time) qr_http_put(out, "_seconds_total");
    return time;
}

static void put_value(qr_http_buffer_t *out, uint64_t value, bool time)
{
    qr_http_put_u64(out, time ? value / 1000000 : value);
    if (!time) return;
    char digits[8] = ".000000";
    for (uint64_t i = 6, rest = value % 1000000; i > 0; i--, rest /= 10) digits[i] = (char)('0' + rest % 10);
    qr_http_put(out, digits);
}

void qr_http_put_metrics(qr_http_buffer_t *out, const qr_http_source_t *sources, size_t count)
{
    for (size_t i = 0; i < QR_COUNT(metrics); i++) {
        uint64_t sum = 0;
        bool known = false;
        for (size_t j = 0; j < count; j++) {
            known |= sources[j].known[metrics[i].number];
            sum += sources[j].base[metrics[i].number] + sources[j].last[metrics[i].number];
        }
        if (!known) continue;
        qr_http_put(out, "# HELP ");
        (void)put_name(out, metrics[i].name);
        qr_http_put(out, " ");
        qr_http_put(out, metrics[i].help);
        qr_http_put(out, "\n# TYPE ");
        (void)put_name(out, metrics[i].name);
        qr_http_put(out, metrics[i].kind == COUNTER ? " counter\n" : " gauge\n");
        bool time = put_name(out, metrics[i].name);
        qr_http_put(out, " ");
        put_value(out, sum, time);
        qr_http_put(out, "\n");
    }
}
