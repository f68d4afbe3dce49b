/* generate.c - see generate.h. */
#include "actors/io/generate.h"

#include "base/error.h"

#include <jansson.h>

const char *qr_finish_name(uint32_t finish)
{
    static const char *const names[] = {"none", "stop", "length", "cancelled", "error", "refused"};
    return finish < QR_COUNT(names) ? names[finish] : "none";
}

bool qr_generate_answered(const qr_prompt_result_t *result)
{
    return result->finish == QR_FINISH_STOP || result->finish == QR_FINISH_LENGTH || result->token_count > 0;
}

bool qr_generate_is_bad_input(const qr_prompt_result_t *result)
{
    if (result->finish != QR_FINISH_REFUSED) return false;
    return (result->param && *result->param) || result->error == QR_E_INVALID || result->error == QR_E_CONTEXT ||
           result->error == QR_E_NEVER_FITS;
}

void qr_generate_explain(const qr_prompt_result_t *result, FILE *out)
{
    bool named = result->param && *result->param;
    const char *sentence = result->refusal && *result->refusal ? result->refusal : qr_error_sentence((int)result->error);
    if (result->finish == QR_FINISH_NONE || result->finish == QR_FINISH_CANCELLED) sentence = "stopped before an answer came";
    fprintf(out, "quire: %s%s%s\n", named ? result->param : "", named ? ": " : "", sentence);
}

static double per_second(double count, uint64_t us) { return us ? count * 1e6 / (double)us : 0; }

double qr_generate_prefill_rate(const qr_prompt_result_t *result)
{
    uint64_t waited = qr_min_u64(result->queue_us, result->first_us);
    uint64_t us = result->prefill_us ? result->prefill_us : result->first_us - waited;
    return per_second((double)(result->prompt_tokens - qr_min_u32(result->cached_tokens, result->prompt_tokens)), us);
}

double qr_generate_decode_rate(const qr_prompt_result_t *result)
{
    if (result->token_count < 2) return 0;
    return per_second((double)(result->token_count - 1), result->token_us[result->token_count - 1] - result->token_us[0]);
}

static json_t *ids_of(const uint32_t *ids, uint32_t count)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < count; i++) json_array_append_new(array, json_integer(ids[i]));
    return array;
}

/* Thousandths are enough for a person and a script. */
static json_t *rounded(double value) { return json_real((double)(int64_t)(value * 1000 + 0.5) / 1000); }

int qr_generate_print_json(const qr_prompt_result_t *result, uint64_t load_us, FILE *out)
{
    json_t *timings = json_object(), *object = json_object();
    if (!timings || !object) return -QR_E_MEMORY;
    json_object_set_new(object, "text", json_stringn(result->text ? result->text : "", result->text_bytes));
    json_object_set_new(object, "prompt_tokens", ids_of(result->prompt_ids, result->prompt_id_count));
    json_object_set_new(object, "completion_tokens", ids_of(result->tokens, result->token_count));
    json_object_set_new(object, "finish_reason", json_string(qr_finish_name(result->finish)));
    json_object_set_new(object, "cached_tokens", json_integer(result->cached_tokens));
    json_object_set_new(timings, "load_ms", rounded((double)load_us / 1000));
    json_object_set_new(timings, "ttft_ms", rounded((double)result->first_us / 1000));
    json_object_set_new(timings, "prefill_tokens_per_s", rounded(qr_generate_prefill_rate(result)));
    json_object_set_new(timings, "decode_tokens_per_s", rounded(qr_generate_decode_rate(result)));
    json_object_set_new(object, "timings", timings);
    int code = json_dumpf(object, out, JSON_REAL_PRECISION(10)) == 0 && fputc('\n', out) != EOF ? 0 : -QR_E_IO;
    json_decref(object);
    return code;
}
