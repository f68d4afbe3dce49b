/* params.h - the configuration as one plain struct, generated from params.def. */
#ifndef QR_PARAMS_H
#define QR_PARAMS_H

#include "base/base.h"
#include "base/limits.h"

enum { QR_PARAM_TEXT_BYTES = 512 };
enum { QR_AUDIENCE_SERVE = 1, QR_AUDIENCE_GENERATE = 2, QR_AUDIENCE_BENCH = 4, QR_AUDIENCE_NODE = 8 };
enum { QR_DEVICE_CPU = 0, QR_DEVICE_OPENCL = 1 };
enum { QR_ISA_AUTO = 0, QR_ISA_SCALAR = 1, QR_ISA_AVX2 = 2, QR_ISA_AVX512 = 3 };

typedef struct qr_params {
#define NUMBER(name, least, most, default_value, unit, audience, sentence) uint64_t name;
#define CHOICE(name, default_value, choices, audience, sentence) uint64_t name;
#define TEXT(name, default_value, audience, sentence) char name[QR_PARAM_TEXT_BYTES];
#include "base/params.def"
} qr_params_t;

/* All defaults. */
void qr_params_init(qr_params_t *params);
/* Sets one value from text. Name with '_' or '-'. 0, or -QR_E_NOT_FOUND (message names the nearest one), -QR_E_INVALID or
 * -QR_E_LIMIT with one sentence in message[message_bytes]. params is untouched on failure. */
int qr_params_set(qr_params_t *params, const char *name, const char *value, uint32_t audience, char *message, size_t message_bytes);
/* Writes the --help lines of an audience: "  --name N   sentence (unit; default; range)". */
struct qr_text;
void qr_params_help(uint32_t audience, struct qr_text *text);
/* Writes `name = value` lines of everything that audience has. */
void qr_params_print(const qr_params_t *params, uint32_t audience, struct qr_text *text);

#endif
