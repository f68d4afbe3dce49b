/* document.c - a program: reads messages/schema.def, writes messages/README.md. Run it in the repository's root after a change
 * of the schema; tests/unit/document_test.c fails until it was run. */
#include "messages/describe.h"

#include <stdio.h>
#include <stdlib.h>

enum { BYTES_MAX = 1 << 20 };

int main(void)
{
    static char comments[BYTES_MAX], memory[BYTES_MAX];
    FILE *in = fopen("messages/schema.def", "rb");
    if (!in) {
        fprintf(stderr, "document: messages/schema.def is not here; run it in the repository's root\n");
        return 2;
    }
    size_t count = fread(comments, 1, sizeof comments - 1, in);
    fclose(in);
    comments[count] = 0;
    qr_text_t text;
    qr_text_init(&text, memory, sizeof memory);
    qr_describe_readme(&text, comments);
    FILE *out = fopen("messages/README.md", "wb");
    if (!out || text.cut || fwrite(text.data, 1, text.count, out) != text.count || fclose(out) != 0) {
        fprintf(stderr, "document: cannot write messages/README.md\n");
        return 1;
    }
    printf("messages/README.md: %zu bytes\n", text.count);
    return 0;
}
