/* link: qr_model qr_base */
/* template_test.c - chat templates against what Jinja2 renders (template_vectors.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/error.h"
#include "messages/message.h"
#include "model/template.h"
#include "tests/unit/template_vectors.h"

static qr_template_t *open_template(const char *source)
{
    char message[400];
    qr_template_t *t = NULL;
    if (qr_template_new(source, &t, message, sizeof message)) fail_msg("%s: %s", message, source);
    return t;
}

/* (a)-(d) of TK-11 are white space: the vectors hold every form of it that the known shapes can have. */
static void test_TK_11(void **state)
{
    (void)state;
    for (size_t i = 0; i < QR_COUNT(template_vectors); i++) {
        qr_template_t *t = open_template(template_vectors[i].source);
        size_t messages = template_vectors[i].messages;
        size_t bytes = qr_template_bytes(t, template_vectors[i].roles, template_vectors[i].lengths, messages);
        char *to = malloc(bytes + 1);
        qr_template_range_t contents[8];
        qr_template_render(t, template_vectors[i].roles, template_vectors[i].lengths, messages, template_vectors[i].text, to, contents);
        to[bytes] = 0;
        if (strcmp(to, template_vectors[i].rendered) != 0)
            fail_msg("vector %zu: \"%s\" is not \"%s\"", i, to, template_vectors[i].rendered);
        assert_int_equal(bytes, strlen(template_vectors[i].rendered));
        const char *text = template_vectors[i].text; /* (f): contents appear as they are, at their ranges */
        for (size_t j = 0; j < messages; j++) {
            assert_int_equal(contents[j].bytes, template_vectors[i].lengths[j]);
            assert_memory_equal(to + contents[j].first, text, contents[j].bytes);
            text += contents[j].bytes;
        }
        free(to);
        qr_template_destroy(&t);
    }
}

/* A developer's message is a system message. */
static void test_developer(void **state)
{
    (void)state;
    qr_template_t *t = open_template(template_vectors[0].source);
    const uint32_t developer = QR_CHAT_DEVELOPER, system = QR_CHAT_SYSTEM, two = 2;
    char a[256], b[256];
    qr_template_range_t range;
    size_t bytes = qr_template_bytes(t, &developer, &two, 1);
    assert_true(bytes < sizeof a && bytes == qr_template_bytes(t, &system, &two, 1));
    qr_template_render(t, &developer, &two, 1, "hi", a, &range);
    qr_template_render(t, &system, &two, 1, "hi", b, &range);
    assert_memory_equal(a, b, bytes);
    qr_template_destroy(&t);
}

static void test_unknown_templates(void **state)
{
    (void)state;
    static const char *const sources[] = {
        "",
        "garbage",
        "{% for message in messages %}",
        "{{ messages[0].content }}",
        "{% for message in messages %}{{ message.content + message.role }}{% endfor %}{% if add_generation_prompt %}{{ 'x' }}{% endif %}",
        "{% for m in messages %}{{ m.role + 'x' + m.content }}{% endfor %}{% if add_generation_prompt %}{{ 'x' }}{% endif %}",
        "{% for message in messages %}{{ message.role + 'x' + message.content | trim }}{% endfor %}{% if add_generation_prompt %}{{ 'x' "
        "}}{% endif %}",
        "{% for message in messages %}{{ message.role + 'x' + message.content }}{% endfor %}",
        "{% for message in messages %}{{ message.role + 'x' + message.content }}{% endfor %}{% if add_generation_prompt %}{{ 'x' }}{% "
        "endif %}{{ eos }}",
        "{% for message in messages %}{% if message.role == 'user' %}{{ message.role + 'x' + message.content }}{% endif %}{% endfor %}",
        "{{ raise_exception('no') }}",
        "{# a comment #}{% for message in messages %}{{ message.role + 'x' + message.content }}{% endfor %}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ 'unclosed",
        "{% for message in messages",
        "{{ '\\x' }}",
    };
    for (size_t i = 0; i < QR_COUNT(sources); i++) {
        qr_template_t *t = NULL;
        char message[400] = "";
        assert_int_equal(qr_template_new(sources[i], &t, message, sizeof message), -QR_E_UNSUPPORTED);
        assert_null(t);
        assert_non_null(strstr(message, "supported: ChatML"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_TK_11), cmocka_unit_test(test_developer),
                                       cmocka_unit_test(test_unknown_templates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
