/* link: qr_actor_detokenize qr_schema */
/* Tokens to text against CPython's decoder: in pieces, at once, with stop strings that cross every edge. */
#include "tests/unit/edge_harness.h"

#include "actors/detokenize.h"
#include "tests/unit/detokenize_vectors.h"

static uint32_t digit(char c) { return (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10); }

/* Hex of one list element into bytes; *hex moves behind it and its comma. */
static size_t take_hex(const char **hex, uint8_t *bytes)
{
    size_t count = 0;
    for (; **hex && **hex != ','; *hex += 2) bytes[count++] = (uint8_t)(digit((*hex)[0]) << 4 | digit((*hex)[1]));
    if (**hex == ',') ++*hex;
    return count;
}

typedef struct setting {
    words_t words;
    uint8_t stop[1024];
    uint32_t stop_lengths[16];
    uint64_t stop_bytes, stop_count;
    uint8_t text[1024];
    size_t text_bytes;
} setting_t;

static void read_vector(size_t i, bool joined, setting_t *s)
{
    memset(s, 0, sizeof *s);
    uint8_t bytes[1024];
    size_t count = 0;
    for (const char *at = vectors[i].pieces; *at;) {
        count += take_hex(&at, bytes + count);
        if (joined && *at) continue;
        words_add(&s->words, bytes, count, 0);
        count = 0;
    }
    for (const char *at = vectors[i].stops; *at;) {
        s->stop_lengths[s->stop_count] = (uint32_t)take_hex(&at, s->stop + s->stop_bytes);
        s->stop_bytes += s->stop_lengths[s->stop_count++];
    }
    const char *at = vectors[i].text;
    s->text_bytes = take_hex(&at, s->text);
}

/* D2 the slow way: bytes at the end of text that begin a stop string, but are not all of it. */
static uint32_t longest_beginning(const setting_t *s, const uint8_t *text, uint64_t count)
{
    uint32_t longest = 0;
    uint64_t at = 0;
    for (uint64_t i = 0; i < s->stop_count; at += s->stop_lengths[i++])
        for (uint32_t n = 1; n < s->stop_lengths[i] && n <= count; n++)
            if (memcmp(s->stop + at, text + count - n, n) == 0 && n > longest) longest = n;
    return longest;
}

/* Runs the tokens through; every piece given out must be valid UTF-8. Returns the bytes in out. */
static uint64_t run(const setting_t *s, uint8_t *out, bool *ret_stopped)
{
    static qr_detokenize_t state;
    assert_int_equal(qr_detokenize_init(&state, (qr_bytes_t){s->stop, s->stop_bytes}, (qr_u32s_t){s->stop_lengths, s->stop_count}), 0);
    uint64_t count = 0;
    for (uint32_t t = 0; t < s->words.vocabulary.count; t++) {
        uint64_t more = qr_detokenize_token(&state, &s->words.vocabulary, t, out + count, 8192);
        assert_true(qr_utf8_valid(out + count, more));
        count += more;
        uint8_t all[8192];
        memcpy(all, out, count);
        memcpy(all + count, state.held, state.held_count);
        if (!state.stopped) assert_int_equal(state.held_count, longest_beginning(s, all, count + state.held_count));
    }
    *ret_stopped = state.stopped;
    uint64_t more = qr_detokenize_finish(&state, out + count, 8192);
    assert_true(qr_utf8_valid(out + count, more));
    assert_int_equal(qr_detokenize_finish(&state, out, 8192), 0);
    return count + more;
}

static void test_vectors(void **unused)
{
    (void)unused;
    static setting_t s;
    static uint8_t out[65536];
    for (size_t i = 0; i < QR_COUNT(vectors); i++)
        for (int joined = 0; joined < 2; joined++) {
            read_vector(i, joined, &s);
            bool stopped;
            uint64_t count = run(&s, out, &stopped);
            assert_int_equal(count, s.text_bytes);
            assert_memory_equal(out, s.text, count);
        }
}

/* GPT-2's bytes of ids 40, 47249, 223. */
static void test_AP_01(void **unused)
{
    (void)unused;
    words_t words = {0};
    words_put(&words, "I");
    words_put(&words, "\xf0\x9f\x98");
    words_put(&words, "\x81");
    static qr_detokenize_t state;
    uint8_t out[1024];
    assert_int_equal(qr_detokenize_init(&state, (qr_bytes_t){0}, (qr_u32s_t){0}), 0);
    assert_int_equal(qr_detokenize_token(&state, &words.vocabulary, 0, out, sizeof out), 1);
    assert_int_equal(qr_detokenize_token(&state, &words.vocabulary, 1, out, sizeof out), 0); /* nothing yet, no U+FFFD */
    assert_int_equal(qr_detokenize_token(&state, &words.vocabulary, 2, out, sizeof out), 4);
    assert_memory_equal(out, "\xf0\x9f\x98\x81", 4);
    assert_int_equal(qr_detokenize_finish(&state, out, sizeof out), 0);
    assert_int_equal(qr_detokenize_init(&state, (qr_bytes_t){0}, (qr_u32s_t){0}), 0);
    (void)qr_detokenize_token(&state, &words.vocabulary, 0, out, sizeof out);
    (void)qr_detokenize_token(&state, &words.vocabulary, 1, out, sizeof out);
    assert_int_equal(qr_detokenize_finish(&state, out, sizeof out), 3); /* the documented choice: one U+FFFD */
    assert_memory_equal(out, "\xef\xbf\xbd", 3);
}

/* GPT-2's words of ids 464, 2068, 7586, 21831, 18045. */
static void test_AP_03(void **unused)
{
    (void)unused;
    words_t words = {0};
    const char *const texts[] = {"The", " quick", " brown", " fox", " jumps"}, *const shown[] = {"The", " quick", " br", "", ""};
    for (size_t i = 0; i < 5; i++) words_put(&words, texts[i]);
    static qr_detokenize_t state;
    uint8_t out[1024];
    uint32_t length = 7;
    assert_int_equal(qr_detokenize_init(&state, (qr_bytes_t)TEXT_COLUMN("own fox"), (qr_u32s_t){&length, 1}), 0);
    for (uint32_t i = 0; i < 5; i++) {
        uint64_t count = qr_detokenize_token(&state, &words.vocabulary, i, out, sizeof out);
        assert_int_equal(count, strlen(shown[i]));
        assert_memory_equal(out, shown[i], count);
        assert_int_equal(state.stopped, i >= 3);
    }
    assert_int_equal(qr_detokenize_finish(&state, out, sizeof out), 0);
}

static void test_specials_and_strangers_print_nothing(void **unused)
{
    (void)unused;
    words_t words = {0};
    words_put(&words, "\xe2\x82");
    words_add(&words, "<end>", 5, QR_TOKEN_SPECIAL | QR_TOKEN_END);
    words_put(&words, "\xac");
    static qr_detokenize_t state;
    uint8_t out[1024];
    assert_int_equal(qr_detokenize_init(&state, (qr_bytes_t){0}, (qr_u32s_t){0}), 0);
    const uint32_t tokens[] = {0, 1, UINT32_MAX, 3, 2};
    uint64_t count = 0;
    for (size_t i = 0; i < QR_COUNT(tokens); i++) count += qr_detokenize_token(&state, &words.vocabulary, tokens[i], out, sizeof out);
    assert_int_equal(count, 3);
    assert_memory_equal(out, "\xe2\x82\xac", 3);
}

static void test_bad_stop_strings_are_refused(void **unused)
{
    (void)unused;
    static qr_detokenize_t state;
    uint8_t many[QR_STOP_BYTES_MAX + 1];
    uint32_t lengths[QR_STOPS_MAX + 1];
    memset(many, 'x', sizeof many);
    for (size_t i = 0; i <= QR_STOPS_MAX; i++) lengths[i] = 1;
    assert_int_equal(qr_detokenize_init(&state, (qr_bytes_t){many, QR_STOPS_MAX + 1}, (qr_u32s_t){lengths, QR_STOPS_MAX + 1}), -QR_E_LIMIT);
    assert_int_equal(qr_detokenize_init(&state, (qr_bytes_t){many, QR_STOPS_MAX}, (qr_u32s_t){lengths, QR_STOPS_MAX}), 0);
    uint32_t length = QR_STOP_BYTES_MAX + 1;
    assert_int_equal(qr_detokenize_init(&state, (qr_bytes_t){many, length}, (qr_u32s_t){&length, 1}), -QR_E_LIMIT);
    length = 0;
    assert_int_equal(qr_detokenize_init(&state, (qr_bytes_t){many, 0}, (qr_u32s_t){&length, 1}), -QR_E_INVALID);
    length = 5;
    assert_int_equal(qr_detokenize_init(&state, (qr_bytes_t){many, 4}, (qr_u32s_t){&length, 1}), -QR_E_INVALID);
    assert_int_equal(qr_detokenize_init(&state, (qr_bytes_t){many, 6}, (qr_u32s_t){&length, 1}), -QR_E_INVALID);
    length = 2;
    assert_int_equal(qr_detokenize_init(&state, (qr_bytes_t)TEXT_COLUMN("a\xc3"), (qr_u32s_t){&length, 1}), -QR_E_INVALID);
}

/* Two tokens longer than the longest stop string, held back almost wholly: the buffers' bounds hold. */
static void test_longest_stop_string(void **unused)
{
    (void)unused;
    words_t words = {0};
    uint8_t stop[QR_STOP_BYTES_MAX], text[QR_STOP_BYTES_MAX - 1], out[4096];
    memset(stop, 'a', sizeof stop);
    stop[sizeof stop - 1] = 'b';
    memset(text, 'a', sizeof text);
    words_add(&words, text, sizeof text, 0);
    words_put(&words, "b");
    static qr_detokenize_t state;
    uint32_t length = sizeof stop;
    assert_int_equal(qr_detokenize_init(&state, (qr_bytes_t){stop, sizeof stop}, (qr_u32s_t){&length, 1}), 0);
    assert_int_equal(qr_detokenize_token(&state, &words.vocabulary, 0, out, sizeof out), 0);
    assert_int_equal(qr_detokenize_token(&state, &words.vocabulary, 0, out, sizeof out), QR_STOP_BYTES_MAX - 1);
    assert_int_equal(qr_detokenize_token(&state, &words.vocabulary, 1, out, sizeof out), 0);
    assert_int_equal(state.stopped, 1);
}

static void test_utf8_valid(void **unused)
{
    (void)unused;
    static const struct {
        const char *bytes;
        bool valid;
    } rows[] = {
        {"", true},
        {"abc", true},
        {"\xc3\xa9", true},
        {"\xed\x9f\xbf", true},
        {"\xf4\x8f\xbf\xbf", true},
        {"\xc3", false},
        {"\x80", false},
        {"\xc0\x80", false},
        {"\xed\xa0\x80", false},
        {"\xf4\x90\x80\x80", false},
        {"\xe0\x9f\xbf", false},
        {"\xf0\x8f\xbf\xbf", false},
    };
    for (size_t i = 0; i < QR_COUNT(rows); i++)
        assert_int_equal(qr_utf8_valid((const uint8_t *)rows[i].bytes, strlen(rows[i].bytes)), rows[i].valid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_AP_01),
        cmocka_unit_test(test_AP_03),
        cmocka_unit_test(test_specials_and_strangers_print_nothing),
        cmocka_unit_test(test_bad_stop_strings_are_refused),
        cmocka_unit_test(test_longest_stop_string),
        cmocka_unit_test(test_utf8_valid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
