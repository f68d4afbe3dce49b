/* bench.c - see bench.h. A row is a list of rounds; every round is one repeat, the first does not count. */
#include "actors/io/bench.h"

#include "actors/io/generate.h"
#include "base/error.h"
#include "base/prng.h"

#include <jansson.h>
#include <stdlib.h>

enum { ROWS = 4, REPEATS_MAX = 1000, STREAMS_MAX = 64 };

typedef struct row {
    const char *name;
    uint32_t prompt, drawn, streams;
    uint32_t first; /* index of its first ask */
    bool fresh;     /* a new prompt for every repeat: the prefill is what is measured */
} row_t;

struct qr_bench {
    row_t rows[ROWS];
    uint32_t repeats, ask_count;
    qr_prompt_ask_t *asks;
    qr_prompt_result_t *results;
    uint32_t *tokens;
    qr_prompt_given_t list;
};

/* A size as asked, or the default cut to `most`. false: it was asked for and is not from 1 to most; message says so. */
static bool choose(const char *option, uint32_t asked, uint32_t default_value, uint32_t most, uint32_t *ret_value, char *message,
                   size_t message_bytes)
{
    *ret_value = asked ? asked : qr_min_u32(default_value, most);
    if (*ret_value >= 1 && *ret_value <= most) return true;
    snprintf(message, message_bytes, "%s %u is not from 1 to %u, what the context, --max-lanes and --max-requests allow", option,
             *ret_value, most);
    return false;
}

static bool choose_rows(qr_bench_t *bench, const qr_bench_options_t *o, const qr_given_t *given, char *message, size_t message_bytes)
{
    uint32_t context = given->layout.context_tokens, drawn, prefill, shorter, longer, streams;
    uint32_t lanes = (uint32_t)qr_min_u64(qr_min_u64(given->params.max_lanes, given->params.max_requests), STREAMS_MAX);
    if (o->decode_tokens == 1)
        return snprintf(message, message_bytes, "--decode needs at least 2: the first token has no step before it"), false;
    if (context < 4) return snprintf(message, message_bytes, "the context of %u tokens is too small", context), false;
    if (!choose("--decode", o->decode_tokens, 64, context - 2, &drawn, message, message_bytes) ||
        !choose("--prefill", o->prefill_tokens, 512, context - 1, &prefill, message, message_bytes) ||
        !choose("--short", o->context_short, 16, context - drawn, &shorter, message, message_bytes) ||
        !choose("--long", o->context_long, 2048, context - drawn, &longer, message, message_bytes) ||
        !choose("--streams", o->streams, 8, lanes, &streams, message, message_bytes) ||
        !choose("--repeats", o->repeats, 5, REPEATS_MAX, &bench->repeats, message, message_bytes))
        return false;
    bench->rows[0] = (row_t){"prefill", prefill, 1, 1, 0, true};
    bench->rows[1] = (row_t){"decode", shorter, drawn, 1, 0, false};
    bench->rows[2] = (row_t){"decode", longer, drawn, 1, 0, false};
    bench->rows[3] = (row_t){"streams", shorter, drawn, streams, 0, false};
    for (uint32_t i = 0; i < ROWS; i++) {
        bench->rows[i].first = bench->ask_count;
        bench->ask_count += bench->rows[i].streams * (bench->repeats + 1);
    }
    return true;
}

/* Seeded ids that are plain text; false when the vocabulary has none. */
static bool fill_tokens(const qr_vocabulary_t *vocabulary, qr_prng_t *prng, uint32_t *tokens, uint64_t count)
{
    uint32_t plain = 0;
    for (uint32_t t = 0; t < vocabulary->count && !plain; t++) plain = vocabulary->flags[t] == 0;
    if (!plain) return false;
    for (uint64_t i = 0; i < count;) {
        uint32_t token = (uint32_t)qr_prng_below(prng, vocabulary->count);
        if (vocabulary->flags[token] == 0) tokens[i++] = token;
    }
    return true;
}

static uint64_t tokens_needed(const qr_bench_t *bench)
{
    uint64_t need = 0;
    for (uint32_t i = 0; i < ROWS; i++) {
        const row_t *row = &bench->rows[i];
        need += (uint64_t)row->prompt * row->streams * (row->fresh ? bench->repeats + 1 : 1);
    }
    return need;
}

static void fill_asks(qr_bench_t *bench)
{
    uint64_t at = 0;
    uint32_t round = 0;
    for (uint32_t i = 0; i < ROWS; i++) {
        const row_t *row = &bench->rows[i];
        for (uint32_t k = 0; k < row->streams * (bench->repeats + 1); k++) {
            uint32_t repeat = k / row->streams, prompt = row->fresh ? k : k % row->streams;
            bench->asks[row->first + k] = (qr_prompt_ask_t){
                .kind = QR_INPUT_TOKENS,
                .tokens = bench->tokens + at + (uint64_t)prompt * row->prompt,
                .token_count = row->prompt,
                .max_tokens = row->drawn,
                .top_p = 1,
                .ignore_eos = true,
                .seed_given = true,
                .seed = k,
                .round = round + repeat,
            };
        }
        round += bench->repeats + 1;
        at += (uint64_t)row->prompt * row->streams * (row->fresh ? bench->repeats + 1 : 1);
    }
}

int qr_bench_new(const qr_bench_options_t *options, const qr_given_t *given, qr_bench_t **ret_bench, char *message, size_t message_bytes)
{
    qr_bench_t *bench = calloc(1, sizeof *bench);
    int status = bench ? 0 : -QR_E_MEMORY;
    qr_prng_t prng;
    qr_prng_init(&prng, 1);
    if (!status && !choose_rows(bench, options, given, message, message_bytes)) status = -QR_E_INVALID;
    if (!status) {
        uint64_t need = tokens_needed(bench);
        bench->asks = calloc(bench->ask_count, sizeof *bench->asks);
        bench->results = calloc(bench->ask_count, sizeof *bench->results);
        bench->tokens = calloc(need, sizeof *bench->tokens);
        if (!bench->asks || !bench->results || !bench->tokens)
            status = -QR_E_MEMORY;
        else if (!fill_tokens(&given->vocabulary, &prng, bench->tokens, need)) {
            snprintf(message, message_bytes, "the vocabulary has no plain token to ask with");
            status = -QR_E_INVALID;
        }
    }
    if (status == -QR_E_MEMORY) snprintf(message, message_bytes, "not enough memory; use fewer --streams, --repeats or tokens");
    if (status) {
        qr_bench_destroy(&bench);
        return status;
    }
    fill_asks(bench);
    bench->list = (qr_prompt_given_t){.asks = bench->asks, .results = bench->results, .ask_count = bench->ask_count};
    *ret_bench = bench;
    return 0;
}

const qr_prompt_given_t *qr_bench_given(const qr_bench_t *bench) { return &bench->list; }

void qr_bench_destroy(qr_bench_t **bench)
{
    qr_bench_t *b = *bench;
    *bench = NULL;
    if (!b) return;
    for (uint32_t i = 0; i < b->ask_count && b->results; i++) qr_prompt_result_done(&b->results[i]);
    free(b->asks);
    free(b->results);
    free(b->tokens);
    free(b);
}

/* ---- rates ------------------------------------------------------------------------------------------------------------------ */

/* Tokens of all streams between the moment the last one had its first token and the moment the first one had its last. */
static double streams_rate(const qr_prompt_result_t *results, uint32_t streams)
{
    uint64_t begin = 0, end = UINT64_MAX, count = 0;
    for (uint32_t i = 0; i < streams; i++) {
        const qr_prompt_result_t *r = &results[i];
        begin = qr_max_u64(begin, r->asked_us + r->token_us[0]);
        end = qr_min_u64(end, r->asked_us + r->token_us[r->token_count - 1]);
    }
    if (end <= begin) return 0;
    for (uint32_t i = 0; i < streams; i++)
        for (uint32_t k = 0; k < results[i].token_count; k++) {
            uint64_t us = results[i].asked_us + results[i].token_us[k];
            count += us > begin && us <= end;
        }
    return (double)count * 1e6 / (double)(end - begin);
}

/* One stream. Tokens that all came at once (this process had lost its core) count from when they were asked for: no less than that. */
static double stream_rate(const qr_prompt_result_t *result)
{
    double rate = qr_generate_decode_rate(result);
    if (rate > 0) return rate;
    return (double)result->token_count * 1e6 / (double)qr_max_u64(1, result->token_us[result->token_count - 1]);
}

static double rate_of(const row_t *row, const qr_prompt_result_t *results)
{
    if (row->drawn == 1) return (double)row->prompt * 1e6 / (double)qr_max_u64(1, results->first_us);
    if (row->streams == 1) return stream_rate(results);
    return streams_rate(results, row->streams);
}

static int compare_rates(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, uint32_t count)
{
    double sorted[REPEATS_MAX];
    memcpy(sorted, values, count * sizeof *values);
    qsort(sorted, count, sizeof *sorted, compare_rates);
    return count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

/* ---- print ------------------------------------------------------------------------------------------------------------------ */

static void measure(const qr_bench_t *bench, const row_t *row, double *rates)
{
    for (uint32_t k = 0; k < bench->repeats; k++) rates[k] = rate_of(row, &bench->results[row->first + (k + 1) * row->streams]);
}

static json_t *row_json(const qr_bench_t *bench, const row_t *row, const double *rates)
{
    json_t *object = json_object(), *all = json_array();
    json_object_set_new(object, "row", json_string(row->name));
    json_object_set_new(object, "prompt_tokens", json_integer(row->prompt));
    json_object_set_new(object, "drawn_tokens", json_integer(row->drawn));
    json_object_set_new(object, "streams", json_integer(row->streams));
    json_object_set_new(object, "tokens_per_s", json_real(median(rates, bench->repeats)));
    for (uint32_t k = 0; k < bench->repeats; k++) json_array_append_new(all, json_real(rates[k]));
    json_object_set_new(object, "repeats", all);
    return object;
}

static const qr_prompt_result_t *unfinished(const qr_bench_t *bench)
{
    for (uint32_t i = 0; i < bench->ask_count; i++)
        if (bench->results[i].finish != QR_FINISH_LENGTH || bench->results[i].token_count == 0) return &bench->results[i];
    return NULL;
}

static int print_json(const qr_bench_t *bench, uint64_t load_us, FILE *out)
{
    json_t *object = json_object(), *rows = json_array();
    double rates[REPEATS_MAX];
    for (uint32_t i = 0; i < ROWS; i++) {
        measure(bench, &bench->rows[i], rates);
        json_array_append_new(rows, row_json(bench, &bench->rows[i], rates));
    }
    json_object_set_new(object, "load_ms", json_real((double)load_us / 1000));
    json_object_set_new(object, "rows", rows);
    int code = json_dumpf(object, out, JSON_REAL_PRECISION(6)) == 0 && fputc('\n', out) != EOF ? 0 : -QR_E_IO;
    json_decref(object);
    return code;
}

int qr_bench_print(const qr_bench_t *bench, bool json, uint64_t load_us, FILE *out)
{
    const qr_prompt_result_t *bad = unfinished(bench);
    if (bad) {
        qr_generate_explain(bad, stderr);
        return -QR_E_CANCELLED;
    }
    double rates[REPEATS_MAX];
    for (uint32_t i = 0; i < ROWS; i++) {
        measure(bench, &bench->rows[i], rates);
        for (uint32_t k = 0; k < bench->repeats; k++) {
            if (rates[k] > 0) continue;
            fprintf(stderr, "quire: bench: the %u streams never ran together; raise --pages or --decode, or ask for fewer --streams\n",
                    bench->rows[i].streams);
            return -QR_E_CANCELLED;
        }
    }
    if (json) return print_json(bench, load_us, out);
    fprintf(out, "loaded in %.0f ms; medians of %u\n", (double)load_us / 1000, bench->repeats);
    for (uint32_t i = 0; i < ROWS; i++) {
        const row_t *row = &bench->rows[i];
        measure(bench, row, rates);
        if (row->drawn == 1)
            fprintf(out, "prefill %5u                %9.1f tokens/s\n", row->prompt, median(rates, bench->repeats));
        else
            fprintf(out, "decode  %5u  %2u stream%s   %9.1f tokens/s\n", row->prompt, row->streams, row->streams == 1 ? " " : "s",
                    median(rates, bench->repeats));
    }
    return ferror(out) ? -QR_E_IO : 0;
}
