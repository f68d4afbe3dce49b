/* port.c - see port.h. */
#include "transport/port.h"

#include "base/error.h"
#include "messages/message.h"

#include <errno.h>

uint32_t qr_directory_port(const qr_directory_t *directory, uint64_t address)
{
    if (qr_address_node(address) != directory->node) return directory->uplink;
    for (uint32_t i = 0; i < directory->actor_count; i++)
        if (directory->actors[i].address == address) return directory->actors[i].port;
    return UINT32_MAX;
}

const char *qr_directory_name(const qr_directory_t *directory, uint64_t address)
{
    for (uint32_t i = 0; i < directory->actor_count; i++)
        if (directory->actors[i].address == address) return directory->actors[i].name;
    return "?";
}

/* A socket without marks and without linger: queued words are no reason to stay, completion is always a message. */
static void *socket_open(qr_directory_t *directory, int type)
{
    void *socket = zmq_socket(directory->context, type);
    if (!socket) return NULL;
    atomic_fetch_add(&directory->sockets_open, 1);
    int none = 0;
    (void)zmq_setsockopt(socket, ZMQ_SNDHWM, &none, sizeof none);
    (void)zmq_setsockopt(socket, ZMQ_RCVHWM, &none, sizeof none);
    (void)zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none);
    return socket;
}

static void socket_close(qr_directory_t *directory, void **socket)
{
    if (!*socket) return;
    (void)zmq_close(*socket);
    *socket = NULL;
    atomic_fetch_sub(&directory->sockets_open, 1);
}

int qr_port_open(qr_port_t *port, qr_directory_t *directory, uint32_t index)
{
    memset(port, 0, sizeof *port);
    port->directory = directory;
    port->index = index;
    port->inbox = socket_open(directory, ZMQ_PULL);
    if (!port->inbox) return -QR_E_IO;
    if (zmq_bind(port->inbox, directory->endpoints[index]) != 0) {
        socket_close(directory, &port->inbox);
        return -QR_E_IO;
    }
    return 0;
}

void qr_port_close(qr_port_t *port)
{
    if (!port->directory) return;
    for (uint32_t i = 0; i < port->directory->port_count; i++) socket_close(port->directory, &port->pushes[i]);
    socket_close(port->directory, &port->inbox);
}

/* The PUSH towards a port, connected once at its first use. NULL: no socket could be made. */
static void *push_get(qr_port_t *port, uint32_t to)
{
    qr_assert(to < port->directory->port_count);
    if (port->pushes[to]) return port->pushes[to];
    void *push = socket_open(port->directory, ZMQ_PUSH);
    if (!push) return NULL;
    if (zmq_connect(push, port->directory->endpoints[to]) != 0) {
        socket_close(port->directory, &push);
        return NULL;
    }
    return port->pushes[to] = push;
}

static void count_self(qr_port_t *port, uint32_t to)
{
    if (to != port->index) return;
    port->self_in_flight++;
    if (port->self_in_flight > port->self_in_flight_most) port->self_in_flight_most = port->self_in_flight;
    qr_assert(port->self_in_flight <= QR_PORT_IN_FLIGHT_MAX);
}

/* Looking at the events makes libzmq read its mailbox, after which a queue that is not full says so (host.md 4). */
static void look(void *push)
{
    int events;
    size_t size = sizeof events;
    (void)zmq_getsockopt(push, ZMQ_EVENTS, &events, &size);
}

int qr_port_send(qr_port_t *port, uint32_t to, const void *bytes, size_t count)
{
    void *push = push_get(port, to);
    if (!push) return -QR_E_IO;
    QR_HAND_OVER(&port->directory->marks[to]);
    if (zmq_send(push, bytes, count, ZMQ_DONTWAIT) < 0) {
        look(push);
        if (zmq_send(push, bytes, count, ZMQ_DONTWAIT) < 0) return -QR_E_BUSY;
    }
    count_self(port, to);
    return 0;
}

int qr_port_send_block(qr_port_t *port, uint32_t to, void *bytes, size_t count, void (*release)(void *bytes, void *hint), void *hint)
{
    void *push = push_get(port, to);
    if (!push) return -QR_E_IO;
    zmq_msg_t frame;
    if (zmq_msg_init_data(&frame, bytes, count, release, hint) != 0) return -QR_E_MEMORY;
    QR_HAND_OVER(&port->directory->marks[to]);
    if (zmq_msg_send(&frame, push, ZMQ_DONTWAIT) < 0) {
        look(push);
        /* An inproc PUSH without marks is never refused while its context lives; closing the frame releases the block. */
        if (zmq_msg_send(&frame, push, ZMQ_DONTWAIT) < 0) (void)zmq_msg_close(&frame);
    }
    count_self(port, to);
    return 0;
}

bool qr_port_receive(qr_port_t *port, zmq_msg_t *frame)
{
    if (zmq_msg_recv(frame, port->inbox, ZMQ_DONTWAIT) < 0) return false;
    QR_TAKE_OVER(&port->directory->marks[port->index]);
    return true;
}
