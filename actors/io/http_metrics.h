/* http_metrics.h - sums what the actors report and writes it as Prometheus text.
 *
 * Z1. A counter never goes down: a source that restarted begins again on top of what it had, one that is silent keeps its last. */
#ifndef QR_HTTP_METRICS_H
#define QR_HTTP_METRICS_H

#include "actors/io/http_json.h"

enum { QR_HTTP_METRICS_MAX = 256, QR_HTTP_SOURCES_MAX = QR_PARTNERS_MAX + 3 };

/* enum of messages/metric.def */
enum {
#define METRIC(name, number, kind, help) QR_METRIC_##name = (number),
#include "messages/metric.def"
    QR_METRIC_END
};

typedef struct qr_http_source {
    uint64_t address;
    bool known[QR_HTTP_METRICS_MAX];
    uint64_t base[QR_HTTP_METRICS_MAX], last[QR_HTTP_METRICS_MAX];
} qr_http_source_t;

/* Takes one report of a source. Ids outside the table are skipped. */
void qr_http_source_take(qr_http_source_t *source, qr_u32s_t ids, qr_u64s_t values);
/* Writes every metric that a source knows: HELP, TYPE, value. */
void qr_http_put_metrics(qr_http_buffer_t *out, const qr_http_source_t *sources, size_t count);

#endif
