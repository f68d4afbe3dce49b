/* uplink.c - see uplink.h. */
#include "transport/uplink.h"

bool qr_uplink_needed(const qr_topology_t *topology, uint32_t node)
{
    for (uint32_t i = 0; i < topology->link_count; i++)
        if (topology->links[i].connect == node || topology->links[i].listen == node) return true;
    return false;
}

struct qr_uplink { qr_uplink_counts_t counts; };

int qr_uplink_check(const qr_topology_t *topology, uint32_t node, qr_text_t *error)
{
    (void)topology, (void)node;
    qr_text_put(error, "links between nodes are not built yet");
    return -6;
}
qr_uplink_t *qr_uplink_new(const qr_uplink_config_t *config) { (void)config; return NULL; }
void qr_uplink_run(qr_uplink_t *uplink, void (*opened)(void *context, int code), void *context) { (void)uplink; opened(context, -6); }
void qr_uplink_destroy(qr_uplink_t **uplink) { *uplink = NULL; }
