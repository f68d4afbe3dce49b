/* link: qr_transport */
/* Topology files: what is read, what is refused and with which words, keys on disk. */
#include "base/error.h"
#include "transport/topology.h"
#include "transport/uplink.h"
#include "messages/message.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static qr_topology_t topology;
static char words[512];
static qr_text_t error;

static int parse(const char *text)
{
    qr_text_init(&error, words, sizeof words);
    return qr_topology_parse("f.conf", text, strlen(text), &topology, &error);
}

static void refuse(const char *text, const char *sentence)
{
    assert_true(parse(text) < 0);
    if (!strstr(words, sentence)) fail_msg("said \"%s\", expected \"%s\"", words, sentence);
}

#define NODE "version = 1\nnode = a\n    id = 1\n"

static void test_reads_the_documented_example(void **state)
{
    (void)state;
    assert_int_equal(parse("version = 1\n"
                           "node = device0\n"
                           "    id = 2\n"
                           "    public = \"g}-SmoBo[#<pW(&i7%E%(oF(KOi=p>-o2gFzdj!p\"\n"
                           "    listen\n"
                           "        control = \"tcp://127.0.0.1:7701\"\n"
                           "        bulk = \"tcp://127.0.0.1:7702\"\n"
                           "    host = device\n"
                           "        actor = scheduler\n"
                           "        actor = page_manager\n"
                           "node = edge\n"
                           "    id = 1\n"
                           "link\n"
                           "    connect = edge\n"
                           "    listen = device0\n"),
                     0);
    assert_int_equal(topology.node_count, 2);
    const qr_topology_node_t *node = &topology.nodes[0];
    assert_string_equal(node->name, "device0");
    assert_int_equal(node->id, 2);
    assert_string_equal(node->public_key, "g}-SmoBo[#<pW(&i7%E%(oF(KOi=p>-o2gFzdj!p");
    assert_string_equal(node->control, "tcp://127.0.0.1:7701");
    assert_string_equal(node->bulk, "tcp://127.0.0.1:7702");
    assert_int_equal(node->host_count, 1);
    assert_int_equal(node->actor_count, 2);
    assert_int_equal(node->actors[1].address, qr_address(2, 0, QR_ROLE_page_manager, 0));
    assert_int_equal(topology.link_count, 1);
    assert_int_equal(topology.links[0].connect, 1);
    assert_int_equal(topology.links[0].listen, 0);
}

static void test_refuses_with_words(void **state)
{
    (void)state;
    refuse(NODE "    hosts = x\n", "unknown key 'hosts' in a node; the nearest known one is 'host'");
    refuse("version = 1\nnodes = a\n", "the nearest known one is 'node'");
    refuse(NODE "    host = h\n        actr = worker\n", "the nearest known one is 'actor'");
    refuse(NODE "    host = h\n        actor = wroker\n", "there is no actor 'wroker'");
    refuse(NODE "    host = h\n        actor = mesh\n", "there is no actor 'mesh'");
    refuse(NODE "    host = h\n        actor = worker\n        actor = worker\n", "occurs twice");
    refuse(NODE "    public = \"short\"\n", "40 characters");
    refuse(NODE "    listen\n        bulk = \"tcp://127.0.0.1:1\"\n", "no control endpoint");
    refuse(NODE "    listen\n        control = \"ipc:///tmp/x\"\n", "does not begin with tcp://");
    refuse(NODE "node = a\n    id = 2\n", "occurs twice");
    refuse(NODE "node = b\n    id = 1\n", "occurs twice");
    refuse(NODE "link\n    connect = a\n    listen = b\n", "two different nodes");
    refuse(NODE "node = b\n    id = 2\nlink\n    connect = a\n    listen = b\n", "has no listen section");
    refuse("node = a\n    id = 1\n", "'version = 1' is missing");
    refuse("version = 2\nnode = a\n    id = 1\n", "not a number in its range");
    refuse("version = 1\n", "there is no node");
    refuse("version = 1\nnode = ../x\n    id = 1\n", "letters, digits");
    refuse("version = 1\nnode = a\n    id = 0\n", "not a number in its range");
    refuse("version = 1\nnode = a\n    id = 4294967296\n", "not a number in its range");
    refuse("version = 1\nnode = a\n  id = 1\n", "line 3: indent by four spaces");
    refuse("version = 1\n        node = a\n", "line 2: indent by four spaces");
    refuse("version = 1\nnode = a\n\tid = 1\n", "line 3: only plain ASCII");
    refuse("", "not a ZPL file");
    assert_true(qr_topology_parse("f", "version = 1\0node", 16, &topology, &error) < 0);
}

static void test_hostile_bytes_do_no_harm(void **state)
{
    (void)state;
    const char base[] = NODE "    host = h\n        actor = worker\n    listen\n        control = \"tcp://127.0.0.1:1\"\n";
    char bytes[sizeof base];
    uint64_t seed = 7;
    for (int i = 0; i < 2000; i++) {
        memcpy(bytes, base, sizeof base);
        for (int k = 0; k < 3; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            bytes[(seed >> 33) % (sizeof base - 1)] = (char)(32 + (seed >> 24) % 95);
        }
        qr_text_init(&error, words, sizeof words);
        (void)qr_topology_parse("f", bytes, sizeof base - 1, &topology, &error);
    }
}

static void test_files_of_examples(void **state)
{
    (void)state;
    static const char *const files[] = {"examples/deploy/default.conf", "examples/deploy/one-thread-each.conf",
                                        "examples/deploy/edge-device.conf"};
    for (size_t i = 0; i < QR_COUNT(files); i++) {
        qr_text_init(&error, words, sizeof words);
        if (qr_topology_read(files[i], &topology, &error) != 0) fail_msg("%s", words);
    }
    assert_int_equal(topology.node_count, 2);
    assert_string_equal(topology.keys, "examples/deploy/keys");
}

static void test_keys_are_private(void **state)
{
    (void)state;
    char folder[] = "/tmp/qr-keys-XXXXXX", path[64], public_key[QR_TOPOLOGY_KEY_BYTES], secret[QR_TOPOLOGY_KEY_BYTES];
    assert_non_null(mkdtemp(folder));
    qr_text_init(&error, words, sizeof words);
    assert_int_equal(qr_topology_keys_make(folder, "edge", public_key, &error), 0);
    assert_int_equal(strlen(public_key), 40);
    assert_int_equal(qr_topology_keys_make(folder, "edge", public_key, &error), -QR_E_IN_USE);
    assert_int_equal(qr_topology_secret_read(folder, "edge", secret, &error), 0);
    (void)snprintf(path, sizeof path, "%s/edge.secret", folder);
    struct stat stat_;
    assert_int_equal(stat(path, &stat_), 0);
    assert_int_equal(stat_.st_mode & 0777, 0600);
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(qr_topology_secret_read(folder, "edge", secret, &error), -QR_E_PERMISSION);
    assert_int_equal(qr_topology_secret_read(folder, "../edge", secret, &error), -QR_E_INVALID);
    (void)unlink(path);
    (void)rmdir(folder);
}

/* TR-09: a bind that others can reach needs keys, or the explicit word; TR-05: an old libzmq is refused with CURVE. */
static void test_TR_09(void **state)
{
    (void)state;
    static const char form[] =
        "version = 1\nnode = a\n    id = 1\n%s    listen\n        control = \"tcp://%s:7701\"\nnode = b\n    id = 2\n%slink\n"
        "    connect = b\n    listen = a\n";
    char text[512];
    static const char *const reachable[] = {"*", "0.0.0.0", "192.168.1.4", "[::]", "eth0"};
    for (size_t i = 0; i < QR_COUNT(reachable); i++) {
        (void)snprintf(text, sizeof text, form, "", reachable[i], "");
        assert_int_equal(parse(text), 0);
        assert_int_equal(qr_uplink_check(&topology, 0, &error), -QR_E_INVALID);
        assert_non_null(strstr(words, "outside this machine"));
        (void)snprintf(text, sizeof text, form, "    insecure = 1\n", reachable[i], "    insecure = 1\n");
        assert_int_equal(parse(text), 0);
        assert_int_equal(qr_uplink_check(&topology, 0, &error), 0);
    }
    (void)snprintf(text, sizeof text, form, "", "127.0.0.1", "");
    assert_int_equal(parse(text), 0);
    assert_int_equal(qr_uplink_check(&topology, 0, &error), -QR_E_INVALID);
    assert_non_null(strstr(words, "no public key"));
    (void)snprintf(text, sizeof text, form, "    insecure = 1\n", "127.0.0.1", "");
    assert_int_equal(parse(text), 0);
    assert_int_equal(qr_uplink_check(&topology, 0, &error), -QR_E_INVALID);
}

static void test_TR_05_old_libzmq(void **state)
{
    (void)state;
    qr_text_init(&error, words, sizeof words);
    assert_int_equal(qr_uplink_check_version(4, 3, 1, true, &error), -QR_E_UNSUPPORTED);
    assert_non_null(strstr(words, "4.3.2"));
    assert_int_equal(qr_uplink_check_version(4, 2, 9, true, &error), -QR_E_UNSUPPORTED);
    assert_int_equal(qr_uplink_check_version(4, 3, 1, false, &error), 0);
    assert_int_equal(qr_uplink_check_version(4, 3, 2, true, &error), 0);
    assert_int_equal(qr_uplink_check_version(5, 0, 0, true, &error), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_the_documented_example),
        cmocka_unit_test(test_refuses_with_words),
        cmocka_unit_test(test_hostile_bytes_do_no_harm),
        cmocka_unit_test(test_files_of_examples),
        cmocka_unit_test(test_keys_are_private),
        cmocka_unit_test(test_TR_09),
        cmocka_unit_test(test_TR_05_old_libzmq),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
