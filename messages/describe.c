#include "messages/describe.h"

#include "base/sha256.h"
#include "messages/schema.h"

static const char *const kinds[] = {"", "u8", "u16", "u32", "u64", "hash", "bytes", "u32s", "u64s"};
static const char *const moods[] = {"", "ask", "answer", "notice"};
static const char *const scopes[] = {"", "local", "node"};

/* The next row from `type` on, NULL at the end. */
static const qr_schema_t *row_from(uint32_t type)
{
    for (; type < QR_MESSAGE_TYPES_MAX; type++)
        if (qr_schema_find((uint16_t)type)) return qr_schema_find((uint16_t)type);
    return NULL;
}
#define EACH_ROW(row)                                                                                                                      \
    const qr_schema_t *row = row_from(0);                                                                                                  \
    row;                                                                                                                                   \
    row = row_from(row->number + 1u)

static const char *question_of(const qr_schema_t *row) { return row->question ? qr_schema_find(row->question)->name : "none"; }

static void put_words(qr_text_t *text, const char *a, const char *b, const char *c)
{
    qr_text_put(text, a);
    qr_text_put(text, b);
    qr_text_put(text, c);
}

/* ---- canonical text ------------------------------------------------------------------------------------------------- */

void qr_describe_canonical(qr_text_t *text)
{
    for (EACH_ROW(row)) {
        qr_text_put_u64(text, row->number);
        put_words(text, " ", row->name, " ");
        put_words(text, moods[row->mood], " ", question_of(row));
        put_words(text, " ", scopes[row->scope], "\n");
        for (uint32_t i = 0; i < row->field_count; i++) {
            put_words(text, "  ", row->fields[i].name, " ");
            put_words(text, kinds[row->fields[i].kind], row->fields[i].required ? " required" : " optional", "\n");
        }
    }
}

uint64_t qr_describe_hash(void)
{
    char memory[32768];
    uint8_t digest[32];
    uint64_t hash;
    qr_text_t text;
    qr_text_init(&text, memory, sizeof memory);
    qr_describe_canonical(&text);
    qr_assert(!text.cut);
    qr_sha256(memory, text.count, digest);
    memcpy(&hash, digest, sizeof hash);
    return hash;
}

/* ---- comments of schema.def ----------------------------------------------------------------------------------------- */

static bool starts_with(const char *at, const char *word)
{
    while (*word && *at == *word) at++, word++;
    return *word == 0;
}

/* Where BEGIN(name, stands in schema.def, NULL if it does not. */
static const char *begin_find(const char *comments, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = comments; *at; at++)
        if (starts_with(at, "BEGIN(") && starts_with(at + 6, name) && at[6 + length] == ',') return at;
    return NULL;
}

/* Writes the comment that ends on the line before `begin` as one line. */
static void put_comment(qr_text_t *text, const char *comments, const char *begin)
{
    if (begin - comments < 4 || memcmp(begin - 3, "*/\n", 3) != 0) return;
    const char *end = begin - 3, *at = end;
    while (at > comments && memcmp(at, "/*", 2) != 0) at--;
    at += 2;
    if (*at == ' ' && at[1] == '-') return; /* a heading, not a comment of this message */
    bool space = false, any = false;
    for (; at < end; at++) {
        bool blank = *at == ' ' || *at == '\n' || (*at == '*' && at[-1] == ' ');
        if (blank) {
            space = any;
            continue;
        }
        if (space) qr_text_put(text, " ");
        qr_text_put_bytes(text, at, 1);
        space = false;
        any = true;
    }
    qr_text_put(text, "\n\n");
}

/* ---- the README ----------------------------------------------------------------------------------------------------- */

static void put_message(qr_text_t *text, const qr_schema_t *row, const char *comments)
{
    const char *begin = begin_find(comments, row->name);
    put_words(text, "### ", row->name, " (");
    qr_text_put_u64(text, row->number);
    put_words(text, ")\n\n",
              row->mood == QR_MOOD_ANSWER ? "Answers `"
              : row->mood == QR_MOOD_ASK  ? "Asks"
                                          : "Notice",
              row->question ? question_of(row) : "");
    put_words(text, row->question ? "`" : "", row->scope == QR_SCOPE_LOCAL ? "; stays on its node." : "; may cross nodes.", "\n\n");
    if (begin) put_comment(text, comments, begin);
    qr_text_put(text, "| field | kind | presence |\n| --- | --- | --- |\n");
    for (uint32_t i = 0; i < row->field_count; i++) {
        const qr_field_t *field = &row->fields[i];
        put_words(text, "| `", field->name, "` | ");
        put_words(text, kinds[field->kind], field->required ? " | required |\n" : " | optional |\n", "");
    }
    qr_text_put(text, "\n");
}

static void put_json_message(qr_text_t *text, const qr_schema_t *row)
{
    put_words(text, "  {\"name\": \"", row->name, "\", \"number\": ");
    qr_text_put_u64(text, row->number);
    put_words(text, ", \"mood\": \"", moods[row->mood], "\", \"question\": ");
    put_words(text, row->question ? "\"" : "", row->question ? question_of(row) : "null", row->question ? "\"" : "");
    put_words(text, ", \"scope\": \"", scopes[row->scope], "\", \"fields\": [");
    for (uint32_t i = 0; i < row->field_count; i++) {
        const qr_field_t *field = &row->fields[i];
        put_words(text, i ? ", [\"" : "[\"", field->name, "\", \"");
        put_words(text, kinds[field->kind], field->required ? "\", true]" : "\", false]", "");
    }
    qr_text_put(text, "]}");
}

static const char opening[] =
    "# Messages\n\n"
    "Generated from `schema.def` by `build/document`; do not edit. Who may say what to whom, and how much of it, is `actors/roles.def`.\n\n"
    "A message is one flat msgpack array: type, version (1), from, to, epoch, sequence, then the fields below in order. Numbers are\n"
    "unsigned integers within their kind; `hash` is a bin of 32 bytes; `bytes`, `u32s` and `u64s` are bins, the latter two packed\n"
    "little-endian. There are no maps and nothing is nested. At most 64 elements. A reader refuses a missing required field, takes a\n"
    "missing optional one as zero or empty and ignores what stands behind the fields it knows. An address is\n"
    "node << 32 | device << 24 | role << 16 | instance.\n\n";

/* What a program in another language needs beside the tables (transport/uplink.h has the rules of the other side). */
static const char between_nodes[] =
    "\n## Between nodes\n\n"
    "A node that connects opens one ZeroMQ DEALER to the other's `control` endpoint, with routing id `n` and its node id in decimal\n"
    "(`n1`), and CURVE with the keys of the topology file, unless both nodes are `insecure = 1` there. One frame is one message.\n\n"
    "1. First `link_hello`, from this node's uplink to the other's (role uplink, device 0, instance 0), every 200 ms until the link is up\n"
    "   and then at least four times per `peer_down_ms`: silence for that long ends the session. protocol is 1; schema_hash is the number\n"
    "   above; node is one's own id; node_epoch is a number that is not 0 and new at every start, and also the `epoch` of every message;\n"
    "   session is a random number that is not 0, a new one after every end; echo is the session of the peer's last hello, 0 before the\n"
    "   first; chunk_tokens and fingerprints must be the peer's, whose hello comes first and shows them;\n"
    "   sent counts the session's messages that are no hellos and went before it: a hello that counts more than came in ends it.\n"
    "2. The link is up for a node while the peer's last hello echoes its session. A hello with another session or another echo ends the "
    "old\n"
    "   one: every open question is closed and must not be answered.\n"
    "3. Then messages of scope `node` that `actors/roles.def` lets the two roles exchange. `from` is an actor that the topology file "
    "gives\n"
    "   this node, `to` one of the other's. `sequence` counts 1, 2, 3, ... for each pair of from and to. Open questions stay within the\n"
    "   windows of `actors/roles.def`; every ask is answered once, by an answer of its own kind.\n"
    "4. A message that breaks these rules is dropped; 16 of them in a session end it for 10 s.\n\n"
    "`examples/peer.py` is such a node, made from this file.\n";

void qr_describe_readme(qr_text_t *text, const char *comments)
{
    uint64_t hash = qr_describe_hash();
    uint8_t big[8];
    for (unsigned i = 0; i < 8; i++) big[i] = (uint8_t)(hash >> (56 - 8 * i));
    qr_text_put(text, opening);
    qr_text_put(text, "Schema hash (link_hello): 0x");
    qr_text_put_hex(text, big, sizeof big);
    qr_text_put(text, "\n\n## Roles\n\n| number | role |\n| --- | --- |\n");
    for (uint8_t role = 1; role < QR_ROLES_MAX; role++) {
        if (qr_role_find(qr_role_name(role)) != role) continue;
        qr_text_put(text, "| ");
        qr_text_put_u64(text, role);
        put_words(text, " | ", qr_role_name(role), " |\n");
    }
    qr_text_put(text, between_nodes);
    qr_text_put(text, "\n## Vocabulary\n\n");
    for (EACH_ROW(row)) put_message(text, row, comments);
    qr_text_put(text, "## For other languages\n\nEach field is [name, kind, required].\n\n```json\n[\n");
    for (EACH_ROW(row)) {
        put_json_message(text, row);
        qr_text_put(text, row_from(row->number + 1u) ? ",\n" : "\n");
    }
    qr_text_put(text, "]\n```\n");
}
