#!/usr/bin/env python3
"""Writes tests/unit/detokenize_vectors.h: pieces of bytes, stop strings, and the text they show. The reference is CPython's own UTF-8
decoder (errors="replace", which follows the Unicode practice of maximal subparts) and a plain search over the whole text.

    python3 tests/oracle/detokenize.py > tests/unit/detokenize_vectors.h
"""
import random
import sys

SPECIAL = ["F09F9881", "E282AC", "EDA080", "F4908080", "C080", "E08080", "F08080", "F0808080", "F09F98", "E282", "C3", "FF", "80", "BF", "EFBFBD",
           "F48FBFBF", "EFBBBF", "CC81", "E0A080", "ED9FBF", "EE8080", "F0908080", "C280", "DFBF", "F5808080", "FE", "41", "0A", "00"]


def shown(pieces, stops):
    text = b"".join(pieces).decode("utf-8", "replace").encode()
    best = None
    for end in range(1, len(text) + 1):
        ended = [s for s in stops if text[:end].endswith(s)]
        if ended:
            best = text[: end - max(map(len, ended))]
            break
    return text if best is None else best


def cut(draw, data):
    pieces = []
    while data:
        n = draw.randint(1, min(4, len(data)))
        pieces.append(data[:n])
        data = data[n:]
    return pieces


def cases():
    draw = random.Random(20240501)
    yield [b"I", bytes.fromhex("F09F98"), bytes.fromhex("81")], []
    yield [b"I", bytes.fromhex("F09F98")], []
    yield [b"The", b" quick", b" brown", b" fox", b" jumps"], [b"own fox"]
    yield [b"aaab"], [b"aab"]
    yield [b"a", b"b", b"a", b"b", b"a", b"c"], [b"ababac"]
    yield [b"abab", b"ac"], [b"abac", b"bab"]
    yield [b"xabc"], [b"b", b"abc"]
    yield [b"xabc"], [b"abc", b"bc", b"c"]
    yield [b"ab", b"cd"], [b"abce"]
    yield [bytes.fromhex("41C3"), b"B"], ["\ufffdB".encode()]
    yield [bytes.fromhex("41C3")], ["\ufffd".encode()]
    yield [bytes.fromhex("C3A8"), bytes.fromhex("C3A9")], ["é".encode()]
    for _ in range(160):
        data = b""
        for _ in range(draw.randint(1, 8)):
            data += bytes.fromhex(draw.choice(SPECIAL)) if draw.random() < 0.7 else bytes([draw.randrange(256)])
        yield cut(draw, data), []
    for _ in range(160):
        alphabet = draw.choice([b"ab", b"abc", "aé".encode()])
        letters = [b"a", b"b"] if alphabet == b"ab" else [b"a", b"b", b"c"] if alphabet == b"abc" else [b"a", "é".encode(), "è".encode()]
        data = b"".join(draw.choice(letters) for _ in range(draw.randint(3, 24)))
        stops = [b"".join(draw.choice(letters) for _ in range(draw.randint(1, 7))) for _ in range(draw.randint(1, 4))]
        yield cut(draw, data), stops


def hexed(pieces):
    return ",".join(p.hex() for p in pieces)


print("/* Written by tests/oracle/detokenize.py (CPython %d.%d); do not edit. */" % sys.version_info[:2])
print("static const struct { const char *pieces, *stops, *text; } vectors[] = {")
for pieces, stops in cases():
    print('    {"%s", "%s", "%s"},' % (hexed(pieces), hexed(stops), shown(pieces, stops).hex()))
print("};")
