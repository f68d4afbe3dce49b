/* link: qr_messages PkgConfig::JANSSON */
/* document_test.c - messages/README.md is what the schema says today, and its JSON block describes the schema completely. Runs in
 * the repository's root. When it fails: build and run `document` there. */
#include "messages/describe.h"
#include "messages/schema.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

enum { BYTES_MAX = 1 << 20 };

static char *file_read(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s is not here; run in the repository's root", path);
    char *text = calloc(1, BYTES_MAX);
    size_t count = fread(text, 1, BYTES_MAX - 1, file);
    assert_true(count > 0);
    fclose(file);
    return text;
}

static void test_readme_is_not_stale(void **state)
{
    (void)state;
    char *comments = file_read("messages/schema.def"), *readme = file_read("messages/README.md"), *now = malloc(BYTES_MAX);
    qr_text_t text;
    qr_text_init(&text, now, BYTES_MAX);
    qr_describe_readme(&text, comments);
    assert_false(text.cut);
    if (strcmp(now, readme) != 0) fail_msg("messages/README.md is stale: build and run `document` in the repository's root");
    free(comments);
    free(readme);
    free(now);
}

static const char *const kinds[] = {"", "u8", "u16", "u32", "u64", "hash", "bytes", "u32s", "u64s"};
static const char *const moods[] = {"", "ask", "answer", "notice"};

static void check_json_message(json_t *entry)
{
    const qr_schema_t *row = qr_schema_find_name(json_string_value(json_object_get(entry, "name")));
    assert_non_null(row);
    assert_int_equal(json_integer_value(json_object_get(entry, "number")), row->number);
    assert_string_equal(json_string_value(json_object_get(entry, "mood")), moods[row->mood]);
    assert_string_equal(json_string_value(json_object_get(entry, "scope")), row->scope == QR_SCOPE_LOCAL ? "local" : "node");
    json_t *question = json_object_get(entry, "question"), *fields = json_object_get(entry, "fields");
    assert_true(row->question ? json_is_string(question) : json_is_null(question));
    if (row->question) assert_int_equal(qr_schema_find_name(json_string_value(question))->number, row->question);
    assert_int_equal(json_array_size(fields), row->field_count);
    for (size_t i = 0; i < row->field_count; i++) {
        json_t *field = json_array_get(fields, i);
        assert_string_equal(json_string_value(json_array_get(field, 0)), row->fields[i].name);
        assert_string_equal(json_string_value(json_array_get(field, 1)), kinds[row->fields[i].kind]);
        assert_int_equal(json_boolean_value(json_array_get(field, 2)), row->fields[i].required);
    }
}

static void test_json_block(void **state)
{
    (void)state;
    char *readme = file_read("messages/README.md"), *start = strstr(readme, "```json\n"), *end = start ? strstr(start, "\n```\n") : NULL;
    assert_non_null(end);
    *end = 0;
    json_t *list = json_loads(start + 8, JSON_REJECT_DUPLICATES, NULL);
    assert_true(json_is_array(list));
    size_t types = 0;
    for (uint16_t type = 0; type < QR_MESSAGE_TYPES_MAX; type++) types += qr_schema_find(type) != NULL;
    assert_int_equal(json_array_size(list), types);
    for (size_t i = 0; i < types; i++) check_json_message(json_array_get(list, i));
    json_decref(list);
    free(readme);
}

/* The rules of schema.def that the compiler does not check: required fields first, answers close asks, canonical text ends. */
static void test_schema_rules(void **state)
{
    (void)state;
    for (uint16_t type = 0; type < QR_MESSAGE_TYPES_MAX; type++) {
        const qr_schema_t *row = qr_schema_find(type);
        if (!row) continue;
        uint32_t required = 0, columns = 0;
        for (uint32_t i = 0; i < row->field_count; i++) {
            if (row->fields[i].required) assert_int_equal(required++, i);
            columns += qr_kind_is_column(row->fields[i].kind);
            assert_true(row->fields[i].offset +
                            (qr_kind_is_column(row->fields[i].kind) ? sizeof(qr_column_t) : qr_kind_bytes(row->fields[i].kind)) <=
                        row->bytes);
            for (uint32_t j = 0; j < i; j++) assert_string_not_equal(row->fields[i].name, row->fields[j].name);
        }
        assert_int_equal(required, row->required_count);
        assert_int_equal(columns, row->column_count);
        if (row->mood == QR_MOOD_ANSWER) {
            const qr_schema_t *ask = qr_schema_find(row->question);
            assert_int_equal(ask->mood, QR_MOOD_ASK);
            assert_int_equal(ask->scope, row->scope); /* an answer travels as far as its question */
        }
        assert_ptr_equal(qr_schema_find_name(row->name), row);
    }
    assert_null(qr_schema_find(0));
    assert_null(qr_schema_find(QR_MESSAGE_TYPES_MAX));
    assert_null(qr_schema_find_name("offe"));
}

/* The hash is SHA-256 of the canonical text, and the README shows it. */
static void test_hash(void **state)
{
    (void)state;
    char shown[64], *readme = file_read("messages/README.md");
    snprintf(shown, sizeof shown, "0x%016llx\n", (unsigned long long)qr_describe_hash());
    assert_non_null(strstr(readme, shown));
    free(readme);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_readme_is_not_stale),
        cmocka_unit_test(test_json_block),
        cmocka_unit_test(test_schema_rules),
        cmocka_unit_test(test_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
