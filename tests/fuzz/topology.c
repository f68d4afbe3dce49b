/* link: qr_transport */
/* topology.c - topology files: whatever the bytes, an error or a topology whose parts refer to each other. */
#include "transport/topology.h"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static qr_topology_t topology;
    static FILE *quiet; /* zconfig speaks to stdout */
    char words[256];
    qr_text_t error;
    if (!quiet) quiet = freopen("/dev/null", "w", stdout);
    qr_text_init(&error, words, sizeof words);
    if (qr_topology_parse("fuzz", bytes, count, &topology, &error) != 0) return 0;
    qr_assert(topology.node_count > 0 && topology.node_count <= QR_NODES_MAX && topology.link_count <= QR_NODES_MAX);
    for (uint32_t n = 0; n < topology.node_count; n++)
        for (uint32_t i = 0; i < topology.nodes[n].actor_count; i++)
            qr_assert(topology.nodes[n].actors[i].host < topology.nodes[n].host_count);
    for (uint32_t l = 0; l < topology.link_count; l++)
        qr_assert(topology.links[l].connect < topology.node_count && topology.links[l].listen < topology.node_count);
    return 0;
}
