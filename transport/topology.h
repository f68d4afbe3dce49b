/* topology.h - who runs where: nodes, their host threads and actors, the links between nodes. Read from a ZPL file, or the
 * built-in default (everything in one process). Plain data; nothing here opens a socket.
 *
 *   version = 1
 *   keys = "keys"                    folder of the secret keys, relative to the file; default "keys"
 *   node = device0                   repeated
 *       id = 2
 *       public = "..."               Z85, quoted; needed by nodes that have links
 *       insecure = 1                 optional: allows links without CURVE (tests on trusted wires)
 *       listen
 *           control = "tcp://127.0.0.1:7701"
 *           bulk = "tcp://127.0.0.1:7702"      optional
 *       host = device                repeated
 *           device = 0               optional: the device number in its actors' addresses
 *           actor = scheduler        repeated
 *   link                             repeated
 *       connect = edge
 *       listen = device0
 *
 * T1. Node ids and names are unique; an address (node, device, role, instance) is on one host only.
 * T2. Unknown keys are errors that name the nearest known one. */
#ifndef QR_TOPOLOGY_H
#define QR_TOPOLOGY_H

#include "base/base.h"
#include "base/limits.h"
#include "base/text.h"

enum { QR_TOPOLOGY_NAME_BYTES = 32, QR_TOPOLOGY_PATH_BYTES = 512, QR_TOPOLOGY_KEY_BYTES = 41, QR_TOPOLOGY_HOSTS_MAX = 32 };

typedef struct qr_topology_actor {
    uint16_t host;     /* index into the node's hosts */
    uint8_t role;      /* QR_ROLE_* */
    uint8_t device;    /* device number of the host */
    uint16_t instance; /* 0, or the how-manieth of its role on this device */
    uint64_t address;
} qr_topology_actor_t;

typedef struct qr_topology_host {
    char name[QR_TOPOLOGY_NAME_BYTES];
    uint8_t device;
} qr_topology_host_t;

typedef struct qr_topology_node {
    char name[QR_TOPOLOGY_NAME_BYTES];
    uint32_t id;
    bool insecure;
    char public_key[QR_TOPOLOGY_KEY_BYTES]; /* Z85; empty = none */
    char control[QR_TOPOLOGY_PATH_BYTES];   /* endpoint it listens at; empty = none */
    char bulk[QR_TOPOLOGY_PATH_BYTES];
    uint32_t host_count, actor_count;
    qr_topology_host_t hosts[QR_TOPOLOGY_HOSTS_MAX];
    qr_topology_actor_t actors[QR_ACTORS_MAX];
} qr_topology_node_t;

typedef struct qr_topology_link {
    uint32_t connect, listen;
} qr_topology_link_t; /* indexes of nodes */

typedef struct qr_topology {
    char keys[QR_TOPOLOGY_PATH_BYTES]; /* folder of secret keys, already relative to the working directory */
    uint32_t node_count, link_count;
    qr_topology_node_t nodes[QR_NODES_MAX];
    qr_topology_link_t links[QR_NODES_MAX];
} qr_topology_t;

/* The built-in default: node `local`, id 1, hosts edge {gateway router catalog_replica catalog_writer}, device {worker scheduler page_manager
 * executor}, text, http, heartbeat, facts. Who runs it without a store has no catalog and no facts: mesh leaves them out. */
void qr_topology_default(qr_topology_t *topology);
/* Reads a ZPL file or its bytes (`name` is for messages; `keys` is then relative to the working directory). 0, or -QR_E_IO,
 * -QR_E_FORMAT, -QR_E_INVALID, -QR_E_LIMIT with one sentence in `error`. ret_topology is untouched on failure. */
int qr_topology_read(const char *path, qr_topology_t *ret_topology, qr_text_t *error);
int qr_topology_parse(const char *name, const void *bytes, size_t count, qr_topology_t *ret_topology, qr_text_t *error);
/* Index of a node by name; an empty name means the only node. Negative code with a sentence when there is none. */
int qr_topology_node_find(const qr_topology_t *topology, const char *name, qr_text_t *error);

/* Makes a CURVE key pair for a node: writes FOLDER/NODE.secret (mode 0600; the folder is made 0700 if missing; an existing file
 * is -QR_E_IN_USE) and returns the Z85 public key, which belongs into the topology file. */
int qr_topology_keys_make(const char *folder, const char *node, char ret_public_key[QR_TOPOLOGY_KEY_BYTES], qr_text_t *error);
/* Reads FOLDER/NODE.secret; refuses a file that others may read (-QR_E_PERMISSION). */
int qr_topology_secret_read(const char *folder, const char *node, char ret_secret_key[QR_TOPOLOGY_KEY_BYTES], qr_text_t *error);

#endif
