/* link: qr_model */
/* tiny_model.c - writes a seeded tiny model as a GGUF file.   usage: tool_tiny_model FILE [FORMAT 0|1|2|3|8|14] [SEED] [CONTEXT] */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "model/tiny.h"

int main(int count, char **word)
{
    qr_tiny_config_t config;
    qr_tiny_config_init(&config);
    if (count < 2) return fprintf(stderr, "usage: tool_tiny_model FILE [FORMAT] [SEED] [CONTEXT]\n"), 2;
    if (count > 2) config.format = (uint32_t)strtoul(word[2], NULL, 10);
    if (count > 3) config.seed = strtoull(word[3], NULL, 10);
    config.context = count > 4 ? (uint32_t)strtoul(word[4], NULL, 10) : 4096;
    qr_tiny_config_fit(&config);
    int status = qr_tiny_write(&config, word[1]);
    if (status) fprintf(stderr, "%s: %s\n", word[1], qr_error_sentence(status));
    return status ? 1 : 0;
}
