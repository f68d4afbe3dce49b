/* keys.c - see keys.h. */
#include "transport/keys.h"

#include "transport/topology.h"

#include <stdio.h>

int qr_keys_main(int count, char **words)
{
    const char *name = NULL, *folder = "keys";
    bool fine = true;
    for (int i = 0; i < count; i++) {
        if (strcmp(words[i], "--folder") == 0 && i + 1 < count) folder = words[++i];
        else if (words[i][0] != '-' && !name) name = words[i];
        else fine = false;
    }
    if (!fine || !name) {
        fprintf(stderr, "usage: quire keys NAME [--folder DIR]   (DIR defaults to `keys`, beside the topology file)\n");
        return 2;
    }
    char public_key[QR_TOPOLOGY_KEY_BYTES], buffer[512];
    qr_text_t error;
    qr_text_init(&error, buffer, sizeof buffer);
    if (qr_topology_keys_make(folder, name, public_key, &error) != 0) {
        fprintf(stderr, "quire keys: %s\n", buffer);
        return 2;
    }
    printf("public = \"%s\"\n", public_key);
    return 0;
}
