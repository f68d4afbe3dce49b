#include "base/error.h"

#define NAME(code, name, sentence) #name,
static const char *const names[] = {QR_ERROR_MAP(NAME)};
#undef NAME
#define SENTENCE(code, name, sentence) sentence,
static const char *const sentences[] = {QR_ERROR_MAP(SENTENCE)};
#undef SENTENCE

static unsigned place(int code)
{
    unsigned u = code < 0 ? 0u - (unsigned)code : (unsigned)code;
    return u < QR_COUNT(names) ? u : QR_COUNT(names);
}
const char *qr_error_name(int code)
{
    unsigned at = place(code);
    return at < QR_COUNT(names) ? names[at] : "UNKNOWN_CODE";
}
const char *qr_error_sentence(int code)
{
    unsigned at = place(code);
    return at < QR_COUNT(sentences) ? sentences[at] : "unknown error code";
}
