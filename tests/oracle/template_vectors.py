"""Writes tests/unit/template_vectors.h: ChatML-shaped templates, conversations and what Jinja2 renders (trim_blocks and
lstrip_blocks on, as the model libraries set it).

    python3 tests/oracle/template_vectors.py MODEL.gguf > tests/unit/template_vectors.h

Needs: pip install jinja2 gguf.
"""
import sys

import gguf
import jinja2

GENERATION = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
LOOP = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
TEMPLATES = [
    LOOP + GENERATION,
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}" + LOOP + GENERATION,
    "{% for message in messages %}\n<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}\n"
    "{% if add_generation_prompt %}\n<|im_start|>assistant\n{% endif %}\n",
    "{%- for message in messages -%}\n  {{- '<s>' + message.role + ': ' + message.content -}}\n  {{- \"</s>\" -}}\n{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}\n  {{- '<s>assistant: ' -}}\n{%- endif -%}\n",
    "<s>\n{% for message in messages %}\n   {% if loop.first and messages[0].role != 'system' %}\nno system\n   {% endif %}\n"
    "[{{ message['role'] }}]\t{{ message[\"content\"] }}\n\n{% endfor %}\nA\n{% if add_generation_prompt %}\n[assistant]\n{% endif %}",
    "x {% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ 'It\\'s \\\\ \\t\\n' }}{% endif %}"
    "{{ 'a' }}{{ 'b' + message.role + \"'\" }}{{ message.content }}{% endfor %}{% if add_generation_prompt %}{{ 'c' }} {{- 'd' }}{% endif %}",
]
CHATS = [
    [("user", "hi")],
    [("system", "be brief"), ("user", "hi"), ("assistant", "yo"), ("user", " two\n\nlines ")],
    [("user", "{{ bos_token }}{% for %}")],
    [("assistant", ""), ("tool", "<|im_end|>\n<|im_start|>system\n"), ("user", "\u00e9\U0001f600")],
]
ROLES = ["system", "user", "assistant", "tool"]


def c_text(text):
    return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\?' else "\\%03o" % b for b in text.encode()) + '"'


def main():
    model = gguf.GGUFReader(sys.argv[1]).fields["tokenizer.chat_template"].contents()
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    print("/* template_vectors.h - made by tests/oracle/template_vectors.py with Jinja2", jinja2.__version__ + "; not edited by hand. */")
    for i, chat in enumerate(CHATS):
        print(f"static const uint32_t chat_roles_{i}[] = {{{', '.join(str(ROLES.index(r)) for r, _ in chat)}}};")
        print(f"static const uint32_t chat_lengths_{i}[] = {{{', '.join(str(len(c.encode())) for _, c in chat)}}};")
    print("static const struct {\n    const char *source, *text;\n    const uint32_t *roles, *lengths;\n    size_t messages;\n"
          "    const char *rendered;\n} template_vectors[] = {")
    for source in [model] + TEMPLATES:
        compiled = env.from_string(source)
        for i, chat in enumerate(CHATS):
            rendered = compiled.render(messages=[{"role": r, "content": c} for r, c in chat], add_generation_prompt=True)
            text = "".join(c for _, c in chat)
            print(f"    {{{c_text(source)},\n     {c_text(text)}, chat_roles_{i}, chat_lengths_{i}, {len(chat)},\n     {c_text(rendered)}}},")
    print("};")


main()
