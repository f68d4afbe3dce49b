"""Draws by sampling.md with exact rational arithmetic and its own Philox: writes tests/unit/sampler_vectors.h.

    python3 tests/oracle/sampler.py > tests/unit/sampler_vectors.h

Every float step is done in fractions and rounded once to binary32, by integers. Philox4x32-10 follows the paper's definition. Needs nothing but Python.
"""
import random
import struct
from fractions import Fraction as F


def bits_float(b):
    return struct.unpack("<f", struct.pack("<I", b))[0]


def rounded(x):
    """Fraction to the nearest binary32, ties to even, as a Fraction (normal range and subnormals)."""
    if x == 0:
        return F(0)
    sign, x = (-1, -x) if x < 0 else (1, x)
    e = x.numerator.bit_length() - x.denominator.bit_length()
    while F(2) ** e > x:
        e -= 1
    while F(2) ** (e + 1) <= x:
        e += 1
    unit = F(2) ** (max(e, -126) - 23)
    q, r = divmod(x, unit)
    q = int(q)
    if r > unit / 2 or (r == unit / 2 and q & 1):
        q += 1
    return sign * q * unit


def fma(a, b, c):
    return rounded(a * b + c)


C = [F.from_float(float.fromhex(h)) for h in ("0x1.41fbbap-13", "0x1.5f3e54p-10", "0x1.3b2d4cp-7", "0x1.c6aee8p-5", "0x1.ebfbdcp-3", "0x1.62e43p-1")]
LOG2E = F.from_float(float.fromhex("0x1.715476p+0"))


def exp2n(x):
    if x < -64:
        return F(0)
    magic = F(12582912)
    t = rounded(x + magic)
    n = rounded(t - magic)
    f = rounded(x - n)
    p = C[0]
    for c in C[1:]:
        p = fma(p, f, c)
    p = fma(p, f, F(1))
    return p * F(2) ** int(n)


def philox(seed, position, choice):
    c = [position & 0xffffffff, position >> 32, choice & 0xffffffff, choice >> 32]
    k = [seed & 0xffffffff, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xffffffff, (a >> 32) ^ c[3] ^ k[1], a & 0xffffffff]
        k = [(k[0] + 0x9E3779B9) & 0xffffffff, (k[1] + 0xBB67AE85) & 0xffffffff]
    return c[1] << 32 | c[0]


def ceil(x):
    return -((-x.numerator) // x.denominator)


def draw(logits, temperature, top_k, top_p, min_p, seed, position, choice):
    if temperature == 0:
        return max(range(len(logits)), key=lambda i: (logits[i], -i))
    values = [rounded(x / temperature) for x in logits]
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    if top_k:
        order = order[:top_k]
    most = values[order[0]]
    weight = {i: int(exp2n(rounded(rounded(values[i] - most) * LOG2E)) * 2 ** 40) for i in order}
    if top_p < 1:
        target, total, kept = ceil(top_p * sum(weight.values())), 0, []
        for i in order:
            kept.append(i)
            total += weight[i]
            if total >= target:
                break
        order = kept
    if min_p > 0:
        order = [i for i in order if weight[i] >= min_p * 2 ** 40]
    r = philox(seed, position, choice) * sum(weight[i] for i in order) >> 64
    total = 0
    for i in order:
        total += weight[i]
        if total > r:
            return i
    raise AssertionError


def main():
    rng = random.Random(77)
    print("/* sampler_vectors.h - written by tests/oracle/sampler.py (exact rational arithmetic); do not edit. */")
    print("/* logits as bits of binary32; then temperature, top_k, top_p, min_p, seed, position, choice, the token drawn */")
    sets = [[rng.gauss(0, s) for _ in range(n)] for n, s in ((40, 3), (200, 1), (130, 8), (70, 0.01))]
    sets[3][10] = sets[3][20] = max(sets[3]) + 0.001  # a tie at the top
    sets = [[struct.unpack("<I", struct.pack("<f", v))[0] for v in s] for s in sets]
    for n, s in enumerate(sets):
        print(f"static const uint32_t vector_logits_{n}[] = {{" + ", ".join(f"0x{v:08x}u" for v in s) + "};")
    print("static const struct { const uint32_t *logits; uint32_t count; float temperature; uint32_t top_k; float top_p, min_p; uint64_t seed; "
          "uint32_t position, choice, token; } vectors[] = {")
    for n, s in enumerate(sets):
        logits = [F.from_float(bits_float(v)) for v in s]
        for _ in range(60):
            t = rng.choice([0, 0.3, 0.7, 1.0, 1.5, 4.0])
            k, p, m = rng.choice([0, 0, 1, 3, 20, 1000]), rng.choice([1.0, 1.0, 0.0, 0.1, 0.5, 0.9, 0.999]), rng.choice([0, 0, 0.001, 0.05, 0.5, 1.0])
            f = lambda x: F.from_float(struct.unpack("<f", struct.pack("<f", x))[0])
            seed, position, choice = rng.getrandbits(64), rng.randrange(131072), rng.randrange(4)
            token = draw(logits, f(t), k, f(p), f(m), seed, position, choice)
            print(f"    {{vector_logits_{n}, {len(s)}, {float(f(t)).hex()}f, {k}, {float(f(p)).hex()}f, {float(f(m)).hex()}f, {seed:#x}u, {position}, {choice}, {token}}},")
    print("};")


if __name__ == "__main__":
    main()
