/* facts_tool.c - see facts_tool.h. */
#include "actors/io/facts_tool.h"

#include "actors/io/facts_book.h"
#include "base/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { EXIT_DAMAGE = 1, EXIT_USAGE = 2, PAGE_ITEMS = 256 };

typedef enum verb { VERB_NONE, VERB_QUERY, VERB_SHOW, VERB_HISTORY, VERB_VERIFY, VERB_REBUILD, VERB_DEMAND, VERB_POLICY } verb_t;
static const char *const verbs[] = {"", "query", "show", "history", "verify", "rebuild", "demand", "policy"};
/* The last three are this node's own and not in the log. */
enum { KIND_DECISIONS = QR_FACTS_KINDS, KIND_DEMANDS, KIND_POLICIES, KINDS };
static const char *const kinds[KINDS] = {"",       "nodes",      "parts",     "replicas", "layouts",
                                         "owners", "publishers", "decisions", "demands",  "policies"};
static const char *const sources[] = {"none", "resident", "ram", "ssd", "peer", "object", "recompute"};
static const char *const tiers[] = {"any", "ram", "ssd", "object"};

typedef struct options {
    verb_t verb;
    const char *store;
    bool json, accept_loss;
    bool cancel;
    uint64_t as_of, from, limit, ttl_s;
    uint32_t priority;
    qr_fact_policy_t policy;
    uint32_t weights; /* how many of the policy's were named */
    uint8_t fingerprint[32], chain[32];
    qr_facts_filter_t filter;
} options_t;

static const char help[] =
    "usage: quire catalog query|show|history|verify|rebuild|demand|policy [--store FOLDER] [--json]\n"
    "  query [KIND]   facts, one a line; filters:\n"
    "    KIND or --kind KIND   nodes|parts|replicas|layouts|owners|publishers   (default nodes)\n"
    "                       decisions|demands|policies: of this node, not of the log; filters: --since, --until, --limit,\n"
    "                       --from NUMBER and --as-of N (noted when N was the newest transaction, or before) of decisions\n"
    "    --as-of N          as of transaction N (default: now)\n"
    "    --model HEX        fingerprint of a model (64 digits; quire inspect prints it)\n"
    "    --chain HEX        one chunk's chain hash\n"
    "    --tier ram|ssd|object   --owner NODE   that have a copy there\n"
    "    --tokens A:B       chunks that overlap tokens [A, B)\n"
    "    --since US --until US   facts said in that time (microseconds of the wall clock)\n"
    "    --reuse N          chunks reused at least N times\n"
    "    --limit N          at most N lines (default 1000)\n"
    "  show      how large the catalog is and how far back it reaches\n"
    "  history   transactions of the log; --from N, --limit N\n"
    "  verify    read every record, snapshot and fact; status 0: clean, 1: not\n"
    "  rebuild   make the facts again from the log; --accept-loss: go on without records that cannot be read\n"
    "  demand    states that a chunk should stand somewhere: --chain HEX --tier ram|ssd|object --owner NODE [--priority N]\n"
    "            [--ttl-s SECONDS] (default 86400); --cancel takes it back. It is kept and listed; nobody acts on it yet\n"
    "  policy    states a new policy, which a server goes by from its next start on; what is not named stays:\n"
    "            --restore-ns N --restore-byte-ps N --ram-ns N --ram-byte-ps N --recompute-row-ns N\n"
    "  --store FOLDER       the store (default: quire/store in the XDG state folder); no server may have it open\n"
    "  --json               one JSON object a line\n";

static int usage(const char *what, const char *why)
{
    fprintf(stderr, "quire: catalog: %s%s%s; quire catalog --help lists what there is\n", what, *why ? ": " : "", why);
    return EXIT_USAGE;
}

/* ---- words ------------------------------------------------------------------------------------------------------------------- */

static bool number(const char *word, uint64_t *ret_value)
{
    char *end;
    errno = 0;
    if (*word < '0' || *word > '9') return false;
    *ret_value = strtoull(word, &end, 10);
    return *end == 0 && errno == 0;
}

static bool hex(const char *word, uint8_t ret_bytes[32])
{
    if (strlen(word) != 64) return false;
    for (uint32_t i = 0; i < 64; i++) {
        char c = word[i];
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                                : 16;
        if (digit == 16) return false;
        ret_bytes[i / 2] = (uint8_t)(i % 2 ? (uint32_t)ret_bytes[i / 2] << 4 | digit : digit);
    }
    return true;
}

static bool one_of(const char *word, const char *const *names, uint32_t count, uint32_t *ret_index)
{
    for (uint32_t i = 1; i < count; i++)
        if (strcmp(word, names[i]) == 0) return *ret_index = i, true;
    return false;
}

static bool tokens(const char *word, options_t *o)
{
    char first[24];
    uint64_t from, to;
    const char *colon = strchr(word, ':');
    if (!colon || colon - word >= (int)sizeof first) return false;
    memcpy(first, word, (size_t)(colon - word));
    first[colon - word] = 0;
    if (!number(first, &from) || !number(colon + 1, &to) || to > UINT32_MAX || from >= to) return false;
    o->filter.token_from = (uint32_t)from;
    o->filter.token_to = (uint32_t)to;
    return true;
}

static bool small(const char *word, uint32_t *ret_value)
{
    uint64_t value;
    if (!number(word, &value) || value > UINT32_MAX) return false;
    *ret_value = (uint32_t)value;
    return true;
}

static bool weight(const char *word, uint64_t *ret_value, options_t *o)
{
    o->weights++;
    return number(word, ret_value) && *ret_value <= 1000000000000;
}

/* Of demand and policy. NULL: taken. */
static const char *take_statement(options_t *o, const char *name, const char *value)
{
    bool good = true;
    qr_fact_policy_t *p = &o->policy;
    if (o->verb == VERB_DEMAND && !strcmp(name, "--chain"))
        good = hex(value, o->chain), o->filter.chain = o->chain;
    else if (o->verb == VERB_DEMAND && !strcmp(name, "--tier"))
        good = one_of(value, tiers, QR_COUNT(tiers), &o->filter.tier);
    else if (o->verb == VERB_DEMAND && !strcmp(name, "--owner"))
        good = small(value, &o->filter.owner);
    else if (o->verb == VERB_DEMAND && !strcmp(name, "--priority"))
        good = small(value, &o->priority);
    else if (o->verb == VERB_DEMAND && !strcmp(name, "--ttl-s"))
        good = number(value, &o->ttl_s) && o->ttl_s <= 1000000000;
    else if (o->verb == VERB_POLICY && !strcmp(name, "--restore-ns"))
        good = weight(value, &p->restore_ns, o);
    else if (o->verb == VERB_POLICY && !strcmp(name, "--restore-byte-ps"))
        good = weight(value, &p->restore_byte_ps, o);
    else if (o->verb == VERB_POLICY && !strcmp(name, "--ram-ns"))
        good = weight(value, &p->ram_ns, o);
    else if (o->verb == VERB_POLICY && !strcmp(name, "--ram-byte-ps"))
        good = weight(value, &p->ram_byte_ps, o);
    else if (o->verb == VERB_POLICY && !strcmp(name, "--recompute-row-ns"))
        good = weight(value, &p->recompute_row_ns, o);
    else
        return "is not an option of this command";
    return good ? NULL : "has a value that makes no sense";
}

/* An option with a value. 0: taken; else why not. */
static const char *take(options_t *o, const char *name, const char *value)
{
    bool query = o->verb == VERB_QUERY, good = true;
    if (!strcmp(name, "--store")) return o->store = value, NULL;
    if (o->verb == VERB_DEMAND || o->verb == VERB_POLICY) return take_statement(o, name, value);
    if (!strcmp(name, "--limit") && (query || o->verb == VERB_HISTORY))
        good = number(value, &o->limit);
    else if (!strcmp(name, "--from") && (query || o->verb == VERB_HISTORY))
        good = number(value, &o->from);
    else if (!query)
        return "is not an option of this command";
    else if (!strcmp(name, "--kind"))
        good = one_of(value, kinds, KINDS, &o->filter.kind);
    else if (!strcmp(name, "--tier"))
        good = one_of(value, tiers, QR_COUNT(tiers), &o->filter.tier);
    else if (!strcmp(name, "--as-of"))
        good = number(value, &o->as_of);
    else if (!strcmp(name, "--owner"))
        good = small(value, &o->filter.owner);
    else if (!strcmp(name, "--reuse"))
        good = small(value, &o->filter.reuse_least);
    else if (!strcmp(name, "--tokens"))
        good = tokens(value, o);
    else if (!strcmp(name, "--since"))
        good = number(value, &o->filter.time_from_us);
    else if (!strcmp(name, "--until"))
        good = number(value, &o->filter.time_to_us);
    else if (!strcmp(name, "--model"))
        good = hex(value, o->fingerprint), o->filter.fingerprint = o->fingerprint;
    else if (!strcmp(name, "--chain"))
        good = hex(value, o->chain), o->filter.chain = o->chain;
    else
        return "is not an option of this command";
    return good ? NULL : "has a value that makes no sense";
}

static int read_words(int count, char **word, options_t *o)
{
    uint32_t index = 0;
    if (count < 1) return usage("name what to do", "query, show, history, verify, rebuild, demand or policy");
    if (!one_of(word[0], verbs, QR_COUNT(verbs), &index)) return usage("there is no such command", word[0]);
    o->verb = (verb_t)index;
    for (int i = 1; i < count; i++) {
        if (!strcmp(word[i], "--json")) {
            o->json = true;
        } else if (!strcmp(word[i], "--accept-loss") && o->verb == VERB_REBUILD) {
            o->accept_loss = true;
        } else if (!strcmp(word[i], "--cancel") && o->verb == VERB_DEMAND) {
            o->cancel = true;
        } else if (i == 1 && o->verb == VERB_QUERY && one_of(word[i], kinds, KINDS, &o->filter.kind)) {
            continue;
        } else {
            if (strncmp(word[i], "--", 2) != 0) return usage("unexpected argument", word[i]);
            if (i + 1 >= count) return usage(word[i], "needs a value, or is not an option");
            const char *why = take(o, word[i], word[i + 1]);
            char both[160];
            (void)snprintf(both, sizeof both, "%.60s %.60s", word[i], word[i + 1]);
            if (why) return usage(both, why);
            i++;
        }
    }
    if (o->verb == VERB_DEMAND && (!o->filter.chain || !o->filter.tier || !o->filter.owner))
        return usage("a demand needs", "--chain, --tier and --owner");
    if (o->verb == VERB_POLICY && !o->weights) return usage("a policy needs a weight that changes", "--restore-ns N, ...");
    return o->store[0] ? 0 : usage("no store", "name one with --store FOLDER");
}

/* ---- what is printed --------------------------------------------------------------------------------------------------------------- */

static const char *hex_of(const uint8_t bytes[32], char text[65])
{
    for (uint32_t i = 0; i < 32; i++) (void)snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return text;
}

static void time_of(uint64_t us, char text[32])
{
    time_t seconds = (time_t)(us / 1000000);
    struct tm tm;
    text[0] = '-', text[1] = 0;
    if (us && gmtime_r(&seconds, &tm)) (void)strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

static void print_item(const qr_fact_item_t *i, bool json)
{
    char chain[65], digest[65], when[32];
    time_of(i->time_us, when);
    hex_of(i->chain, chain);
    hex_of(i->digest, digest);
    if (json) {
        printf("{\"kind\":\"%s\",\"tx\":%llu,\"time_us\":%llu,\"chain\":\"%s\",\"digest\":\"%s\",\"layout\":%u,\"group\":%u,\"tier\":%u,"
               "\"owner\":%u,\"start\":%u,"
               "\"count\":%u,\"bytes\":%llu,\"reuse\":%u,\"publisher\":%llu}\n",
               kinds[i->kind], (unsigned long long)i->tx, (unsigned long long)i->time_us, chain, digest, i->layout, i->group, i->tier,
               i->owner, i->start, i->count, (unsigned long long)i->bytes, i->reuse, (unsigned long long)i->publisher);
        return;
    }
    printf("tx %-8llu %s  ", (unsigned long long)i->tx, when);
    switch (i->kind) {
    case QR_FACTS_NODES:
        printf("node %s  tokens %u:%u  layout %u  reused %u\n", chain, i->start, i->start + i->count, i->layout, i->reuse);
        break;
    case QR_FACTS_PARTS:
        printf("part %s  group %u  %llu bytes  content %s\n", chain, i->group, (unsigned long long)i->bytes, digest);
        break;
    case QR_FACTS_REPLICAS:
        printf("replica %s  group %u  %s  node %u  %llu bytes\n", chain, i->group, i->tier < QR_COUNT(tiers) ? tiers[i->tier] : "?",
               i->owner, (unsigned long long)i->bytes);
        break;
    case QR_FACTS_LAYOUTS: printf("layout %u  model %s  chunks of %u tokens  %u groups\n", i->layout, digest, i->count, i->group); break;
    case QR_FACTS_OWNERS: printf("owner node %u  epoch %llu\n", i->owner, (unsigned long long)i->bytes); break;
    default:
        printf("publisher %u.%u.%u  epoch %llu\n", i->owner, (uint32_t)(i->publisher >> 24 & 255), (uint32_t)(i->publisher >> 16 & 255),
               (unsigned long long)i->bytes);
        break;
    }
}

static int refused(uint32_t reason, const qr_facts_book_state_t *state)
{
    if (reason == QR_E_STALE)
        fprintf(stderr, "quire: catalog: the log reaches back to transaction %llu only\n", (unsigned long long)state->oldest_tx);
    else if (reason == QR_E_NOT_FOUND)
        fprintf(stderr, "quire: catalog: there is no such transaction yet; the newest is %llu\n", (unsigned long long)state->log.newest);
    else
        fprintf(stderr, "quire: catalog: %s\n", qr_error_sentence((int)reason));
    return EXIT_DAMAGE;
}

/* ---- what is of this node ---------------------------------------------------------------------------------------------------------- */

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

/* One way of a decision, as JSON. */
static void print_way(const char *name, uint32_t rows, uint64_t ns, uint64_t row_ns, uint64_t samples)
{
    printf("\"%s\":", name);
    if (ns == UINT64_MAX)
        printf("null,");
    else
        printf("{\"rows\":%u,\"ns\":%llu,\"row_ns\":%llu,\"samples\":%llu},", rows, (unsigned long long)ns, (unsigned long long)row_ns,
               (unsigned long long)samples);
}

static void print_decision(const qr_fact_decision_t *d, bool json)
{
    char chain[65], when[32];
    uint32_t most = d->resident_rows > d->ram_rows ? d->resident_rows : d->ram_rows;
    if (d->ssd_rows > most) most = d->ssd_rows;
    const char *choice = d->choice < QR_COUNT(sources) ? sources[d->choice] : "?", *reason = d->reason ? qr_error_name((int)d->reason) : "";
    uint64_t predicted = d->choice == QR_SOURCE_RAM   ? d->predicted_ram_ns
                         : d->choice == QR_SOURCE_SSD ? d->predicted_ssd_ns
                                                      : d->predicted_recompute_ns;
    if (d->choice == QR_SOURCE_RESIDENT) predicted = 0;
    time_of(d->time_us, when);
    if (!json) {
        printf("decision %-8llu %s  %s  policy %llu  %s: predicted %llu us, took %llu us (waited %llu us), %u of %u rows%s%s\n",
               (unsigned long long)d->number, when, "load", (unsigned long long)d->policy_version, choice,
               (unsigned long long)predicted / 1000, (unsigned long long)d->outcome_ns / 1000, (unsigned long long)d->queue_ns / 1000,
               d->outcome_rows, most, *reason ? ", " : "", reason);
        return;
    }
    printf("{\"number\":%llu,\"tx\":%llu,\"time_us\":%llu,\"sender\":%llu,\"epoch\":%llu,\"request\":%llu,\"kind\":\"%s\",\"policy\":%llu,"
           "\"choice\":\"%s\",\"predicted_ns\":%llu,\"resident_rows\":%u,\"rows\":%u,",
           (unsigned long long)d->number, (unsigned long long)d->tx, (unsigned long long)d->time_us, (unsigned long long)d->sender,
           (unsigned long long)d->epoch, (unsigned long long)d->request_id, "load", (unsigned long long)d->policy_version, choice,
           (unsigned long long)predicted, d->resident_rows, most);
    print_way("ram", d->ram_rows, d->predicted_ram_ns, d->ram_row_ns, d->ram_samples);
    print_way("ssd", d->ssd_rows, d->predicted_ssd_ns, d->ssd_row_ns, d->ssd_samples);
    print_way("recompute", most, d->predicted_recompute_ns, d->recompute_row_ns, d->recompute_samples);
    printf("\"outcome\":{\"rows\":%u,\"reason\":\"%s\",\"device_ns\":%llu,\"queue_ns\":%llu,\"elapsed_ns\":%llu},\"chain\":\"%s\"}\n",
           d->outcome_rows, reason, (unsigned long long)d->outcome_ns, (unsigned long long)d->queue_ns, (unsigned long long)d->elapsed_ns,
           hex_of(d->chain, chain));
}

static bool in_time(const options_t *o, uint64_t us)
{
    return us >= o->filter.time_from_us && (!o->filter.time_to_us || us < o->filter.time_to_us);
}

static int query_decisions(qr_facts_t *facts, const options_t *o)
{
    qr_fact_decision_t d = {.number = o->from ? o->from - 1 : 0};
    int code;
    for (uint64_t left = o->limit; left && (code = qr_facts_decision_next(facts, d.number, &d)) != -QR_E_NOT_FOUND;) {
        if (code) return code;
        if ((o->as_of && d.tx > o->as_of) || !in_time(o, d.time_us)) continue;
        print_decision(&d, o->json);
        left--;
    }
    return 0;
}

/* The greatest priority first, then by chain. */
static int before(const void *a, const void *b)
{
    const qr_fact_demand_t *x = a, *y = b;
    return x->priority != y->priority ? (x->priority < y->priority ? 1 : -1) : memcmp(x->chain, y->chain, 32);
}

static int query_demands(qr_facts_t *facts, const options_t *o)
{
    static qr_fact_demand_t demands[QR_FACTS_DEMANDS_MAX];
    uint32_t count;
    char chain[65], when[32];
    int code = qr_facts_demands(facts, now_us(), demands, QR_FACTS_DEMANDS_MAX, &count);
    if (!code) qsort(demands, count, sizeof demands[0], before);
    for (uint32_t i = 0; !code && i < count && i < o->limit; i++) {
        const qr_fact_demand_t *d = &demands[i];
        if ((o->filter.tier && o->filter.tier != d->tier) || (o->filter.owner && o->filter.owner != d->owner)) continue;
        if (o->filter.chain && memcmp(o->filter.chain, d->chain, 32) != 0) continue;
        time_of(d->expires_us, when);
        hex_of(d->chain, chain);
        const char *tier = d->tier < QR_COUNT(tiers) ? tiers[d->tier] : "?";
        if (o->json)
            printf("{\"kind\":\"demands\",\"chain\":\"%s\",\"tier\":\"%s\",\"owner\":%u,\"priority\":%u,\"expires_us\":%llu}\n", chain,
                   tier, d->owner, d->priority, (unsigned long long)d->expires_us);
        else
            printf("demand %s  %s  node %u  priority %u  until %s\n", chain, tier, d->owner, d->priority, when);
    }
    return code;
}

static void print_policy(const qr_fact_policy_t *p, bool json)
{
    char when[32];
    time_of(p->time_us, when);
    printf(json ? "{\"kind\":\"policies\",\"version\":%llu,\"time_us\":%llu,\"restore_ns\":%llu,\"restore_byte_ps\":%llu,\"ram_ns\":%llu,"
                  "\"ram_byte_ps\":%llu,\"recompute_row_ns\":%llu}\n"
                : "policy %llu  at %llu us  restore_ns %llu  restore_byte_ps %llu  ram_ns %llu  ram_byte_ps %llu  recompute_row_ns %llu\n",
           (unsigned long long)p->version, (unsigned long long)p->time_us, (unsigned long long)p->restore_ns,
           (unsigned long long)p->restore_byte_ps, (unsigned long long)p->ram_ns, (unsigned long long)p->ram_byte_ps,
           (unsigned long long)p->recompute_row_ns);
}

static qr_fact_policy_t built_in(void)
{
    const qr_policy_snapshot_t p = QR_POLICY_BUILT_IN;
    return (qr_fact_policy_t){p.version, 0, p.restore_ns, p.restore_byte_ps, p.ram_ns, p.ram_byte_ps, p.recompute_row_ns};
}

static int query_policies(qr_facts_t *facts, const options_t *o)
{
    qr_fact_policy_t p = built_in();
    uint64_t left = o->limit;
    int code = 0;
    for (uint64_t version = 1; left && !code; code = qr_facts_policy_get(facts, ++version, &p))
        if (in_time(o, p.time_us)) print_policy(&p, o->json), left--;
    return code == -QR_E_NOT_FOUND ? 0 : code;
}

static int state_demand(qr_facts_t *facts, const options_t *o)
{
    qr_fact_demand_t d = {
        .tier = o->filter.tier, .owner = o->filter.owner, .priority = o->priority, .expires_us = now_us() + o->ttl_s * 1000000};
    memcpy(d.chain, o->chain, 32);
    return o->cancel ? qr_facts_demand_remove(facts, d.chain, d.tier, d.owner) : qr_facts_demand_put(facts, &d);
}

/* What is not named stays as it is. */
static int state_policy(qr_facts_t *facts, const options_t *o)
{
    qr_fact_policy_t p = built_in();
    int code = qr_facts_policy_get(facts, 0, &p);
    if (code && code != -QR_E_NOT_FOUND) return code;
    const uint64_t *named = &o->policy.restore_ns;
    uint64_t *own = &p.restore_ns;
    for (uint32_t i = 0; i < 5; i++)
        if (named[i] != UINT64_MAX) own[i] = named[i];
    p.time_us = now_us();
    code = qr_facts_policy_put(facts, &p);
    if (!code) print_policy(&p, o->json);
    return code;
}

static int local(qr_facts_book_t *book, const options_t *o)
{
    qr_facts_t *facts = qr_facts_book_view(book);
    int code = !facts                             ? -QR_E_BUSY
               : o->verb == VERB_DEMAND           ? state_demand(facts, o)
               : o->verb == VERB_POLICY           ? state_policy(facts, o)
               : o->filter.kind == KIND_DECISIONS ? query_decisions(facts, o)
               : o->filter.kind == KIND_DEMANDS   ? query_demands(facts, o)
                                                  : query_policies(facts, o);
    if (code == -QR_E_NOT_FOUND) return fprintf(stderr, "quire: catalog: there is no such demand\n"), EXIT_DAMAGE;
    if (code) return fprintf(stderr, "quire: catalog: %s\n", qr_error_sentence(code)), EXIT_DAMAGE;
    return 0;
}

static int query(qr_facts_book_t *book, options_t *o)
{
    if (o->filter.kind >= KIND_DECISIONS) return local(book, o);
    static qr_fact_item_t items[PAGE_ITEMS];
    qr_facts_cursor_t cursor = {.bytes = 0};
    qr_facts_book_state_t state;
    qr_facts_book_state(book, &state);
    if (o->filter.kind == 0) o->filter.kind = QR_FACTS_NODES;
    uint64_t left = o->limit, tx;
    do {
        uint32_t count, most = (uint32_t)qr_min_u64(left, PAGE_ITEMS);
        uint32_t reason = qr_facts_book_query(book, o->as_of, &o->filter, &cursor, items, most, &count, &tx);
        if (reason) return refused(reason, &state);
        for (uint32_t i = 0; i < count; i++) print_item(&items[i], o->json);
        left -= count;
    } while (cursor.bytes && left);
    if (cursor.bytes && !o->json) fprintf(stderr, "quire: catalog: there is more (--limit)\n");
    return 0;
}

static int show(qr_facts_book_t *book, const options_t *o)
{
    qr_facts_book_state_t s;
    qr_facts_book_state(book, &s);
    if (o->json)
        printf("{\"log_id\":\"%016llx\",\"transaction\":%llu,\"oldest_transaction\":%llu,\"writer_epoch\":%llu,\"log_bytes\":%llu,"
               "\"snapshots\":%u,\"facts\":%llu,\"nodes\":%llu,\"layouts\":%u}\n",
               (unsigned long long)s.log.log_id, (unsigned long long)s.log.newest, (unsigned long long)s.oldest_tx,
               (unsigned long long)s.log.newest_epoch, (unsigned long long)s.log.bytes, s.log.snapshot_count,
               (unsigned long long)s.facts.fact_count, (unsigned long long)s.facts.node_count, s.facts.layout_count);
    else
        printf("log          %016llx\ntransaction  %llu (reaches back to %llu)\nwriter       epoch %llu\nlog bytes    %llu, %u "
               "snapshots\nfacts        %llu: %llu chunks, %u models\n",
               (unsigned long long)s.log.log_id, (unsigned long long)s.log.newest, (unsigned long long)s.oldest_tx,
               (unsigned long long)s.log.newest_epoch, (unsigned long long)s.log.bytes, s.log.snapshot_count,
               (unsigned long long)s.facts.fact_count, (unsigned long long)s.facts.node_count, s.facts.layout_count);
    return 0;
}

static int history(qr_facts_book_t *book, const options_t *o)
{
    qr_facts_book_state_t s;
    qr_facts_book_state(book, &s);
    uint64_t from = qr_max_u64(o->from, s.log.oldest), bad = 0;
    for (uint64_t tx = from, left = o->limit; tx <= s.log.newest && left; tx++, left--) {
        const qr_append_t *a;
        uint32_t of_kind[QR_FACT_DROP + 1] = {0};
        char when[32];
        if (qr_facts_book_record(book, tx, &a)) {
            fprintf(stderr, "quire: catalog: record %llu is damaged\n", (unsigned long long)tx);
            bad++;
            continue;
        }
        for (uint64_t i = 0; i < a->kinds.count; i++) of_kind[a->kinds.data[i] <= QR_FACT_DROP ? a->kinds.data[i] : 0]++;
        time_of(a->time_us, when);
        printf(o->json
                   ? "{\"tx\":%llu,\"writer_epoch\":%llu,\"time_us\":%llu,\"publishes\":%llu,\"nodes\":%u,\"parts\":%u,\"replicas\":%u,"
                     "\"withdrawn\":%u,\"dropped\":%u}\n"
                   : "tx %-8llu writer epoch %llu  at %llu us  publishes %llu  nodes %u  parts %u  replicas %u  withdrawn %u  dropped %u\n",
               (unsigned long long)tx, (unsigned long long)a->writer_epoch, (unsigned long long)a->time_us,
               (unsigned long long)a->txs.count, of_kind[QR_FACT_NODE], of_kind[QR_FACT_PART], of_kind[QR_FACT_REPLICA],
               of_kind[QR_FACT_WITHDRAW], of_kind[QR_FACT_DROP]);
    }
    return bad ? EXIT_DAMAGE : 0;
}

static int verify(qr_facts_book_t *book, const options_t *o, bool healed)
{
    qr_facts_book_state_t s;
    uint32_t bad = qr_facts_book_verify(book);
    const char *lines = qr_facts_book_report(book);
    qr_facts_book_state(book, &s);
    fprintf(stderr, "%s", lines);
    if (o->json)
        printf("{\"clean\":%s,\"healed\":%s,\"damaged\":%u,\"transaction\":%llu,\"facts\":%llu}\n", bad || healed ? "false" : "true",
               healed ? "true" : "false", bad, (unsigned long long)s.log.newest, (unsigned long long)s.facts.fact_count);
    else if (bad)
        printf("not clean: %u damaged; `quire catalog rebuild --store %s` makes the facts again and the log whole; facts that are still "
               "held are kept\n",
               bad, o->store);
    else
        printf("%s: %llu facts as of transaction %llu\n", healed ? "was damaged, and is clean now" : "clean",
               (unsigned long long)s.facts.fact_count, (unsigned long long)s.log.newest);
    return bad || healed ? EXIT_DAMAGE : 0;
}

/* The facts were made again when the book was opened; a damaged record that they hold gives way to a snapshot now. */
static int rebuild(qr_facts_book_t *book, const options_t *o)
{
    int code = 0;
    if (qr_facts_book_verify(book)) code = qr_facts_book_renew(book);
    fprintf(stderr, "%s", qr_facts_book_report(book));
    if (code) return fprintf(stderr, "quire: catalog: the log cannot be made whole: %s\n", qr_error_sentence(code)), EXIT_DAMAGE;
    return show(book, o);
}

int qr_facts_tool_main(int count, char **word, const char *default_store)
{
    options_t o = {.store = default_store,
                   .limit = 1000,
                   .ttl_s = 86400,
                   .policy = {0, 0, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}};
    char message[1400];
    qr_facts_book_t *book;
    for (int i = 0; i < count; i++)
        if (!strcmp(word[i], "--help") || !strcmp(word[i], "-h")) return printf("%s", help), 0;
    int status = read_words(count, word, &o);
    if (status) return status;
    const qr_facts_book_config_t config = {
        .store = o.store, .history_bytes = UINT64_MAX, .existing = true, .accept_loss = o.accept_loss, .rebuild = o.verb == VERB_REBUILD};
    if (qr_facts_book_open(&config, &book, message, sizeof message)) return fprintf(stderr, "quire: catalog: %s\n", message), EXIT_DAMAGE;
    const char *lines = qr_facts_book_report(book);
    bool healed = *lines != 0;
    fprintf(stderr, "%s", lines);
    switch (o.verb) {
    case VERB_QUERY: status = query(book, &o); break;
    case VERB_SHOW: status = show(book, &o); break;
    case VERB_HISTORY: status = history(book, &o); break;
    case VERB_DEMAND:
    case VERB_POLICY: status = local(book, &o); break;
    case VERB_VERIFY: status = verify(book, &o, healed); break;
    default: status = rebuild(book, &o); break;
    }
    qr_facts_book_close(&book);
    return status;
}
