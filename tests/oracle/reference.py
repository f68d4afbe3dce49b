"""Judges Quire's logits with numpy over the weights that the `gguf` package dequantises.

    python3 tests/oracle/reference.py check MODEL.gguf BENCH_TEACHER [--count N]
        Runs BENCH_TEACHER over the tokens and compares with the full reference distribution: mean KL(reference || Quire) <= 0.005 nats,
        perplexity within 0.5 %, and an argmax may differ only where the reference's two best are less than 0.5 apart. Beside it: the same
        for a numpy emulation of the int8 activations and fp16 rows that Quire computes with.
    python3 tests/oracle/reference.py make MODEL.gguf
        Writes smollm2.tokens (ids) and smollm2.golden (per token: nll, eight best ids and their log probabilities).

Nothing here comes from Quire but the logits under test. Versions: README.md.
"""
import argparse
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np

HERE = Path(__file__).parent
COUNT = 2048


def tokenize(path, text):
    """Ids by Hugging Face `tokenizers` over the file's own vocabulary and merges, split as the model's publisher states."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    reader = gguf.GGUFReader(path)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in reader.fields["tokenizer.ggml.merges"].contents()]
    made = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return made.encode(text).ids


class Model:
    """Weights as float32 matrices [out][in], hyper-parameters by key."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.weights = {}
        for t in reader.tensors:
            self.weights[t.name] = np.asarray(gguf.quants.dequantize(t.data, t.tensor_type), np.float32).reshape([int(d) for d in t.shape][::-1])
        value = lambda key, absent=None: reader.fields[key].contents() if key in reader.fields else absent
        self.layers = value("llama.block_count")
        self.heads = value("llama.attention.head_count")
        self.kv_heads = value("llama.attention.head_count_kv", self.heads)
        self.hidden = value("llama.embedding_length")
        self.dim = value("llama.attention.key_length", self.hidden // self.heads)
        self.eps = value("llama.attention.layer_norm_rms_epsilon")
        self.theta = value("llama.rope.freq_base", 10000.0)
        self.scale = value("llama.rope.scaling.factor", 1.0)
        window = value("llama.attention.sliding_window", 0)
        self.window = list(window) if isinstance(window, list) else [window] * self.layers


def quantised(x):
    """Blocks of 32 as signed bytes with one float scale, as the cpu device takes the inputs of its products."""
    blocks = x.reshape(x.shape[0], -1, 32)
    d = (np.abs(blocks).max(axis=2, keepdims=True) / np.float32(127)).astype(np.float32)
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d > 0)
    return (np.rint(blocks * inverse) * d).reshape(x.shape).astype(np.float32)


def forward(model, tokens, emulate):
    """Logits of every position, float32; causal attention over all of them at once."""
    w, n, exact = model.weights, len(tokens), lambda x: x
    inputs, half = (quantised, lambda x: x.astype(np.float16).astype(np.float32)) if emulate else (exact, exact)
    norm = lambda x, g: (x / np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=1, keepdims=True) + model.eps) * g).astype(np.float32)
    angles = np.arange(n)[:, None] * (model.theta ** (-2.0 * np.arange(model.dim // 2) / model.dim) / model.scale)[None, :]
    cos, sin = np.cos(angles)[:, None, :].astype(np.float32), np.sin(angles)[:, None, :].astype(np.float32)

    def rotate(x):  # pairs (2i, 2i + 1)
        a, b, y = x[..., 0::2], x[..., 1::2], np.empty_like(x)
        y[..., 0::2], y[..., 1::2] = a * cos - b * sin, a * sin + b * cos
        return y

    x = w["token_embd.weight"][tokens].copy()
    position = np.arange(n)
    for layer in range(model.layers):
        name = lambda part: w[f"blk.{layer}.{part}.weight"]
        h = inputs(norm(x, name("attn_norm")))
        q = rotate((h @ name("attn_q").T).reshape(n, model.heads, model.dim))
        k = half(rotate((h @ name("attn_k").T).reshape(n, model.kv_heads, model.dim)))
        v = half((h @ name("attn_v").T).reshape(n, model.kv_heads, model.dim))
        hidden_keys = position[None, :] > position[:, None]
        if model.window[layer]:
            hidden_keys |= position[None, :] <= position[:, None] - model.window[layer]
        mixed = np.empty((n, model.heads, model.dim), np.float32)
        for head in range(model.heads):
            group = head // (model.heads // model.kv_heads)
            scores = (q[:, head] @ k[:, group].T) / np.float32(np.sqrt(model.dim))
            scores[hidden_keys] = -np.inf
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            mixed[:, head] = (scores @ v[:, group]) / scores.sum(axis=1, keepdims=True)
        x += inputs(mixed.reshape(n, -1)) @ name("attn_output").T
        h = inputs(norm(x, name("ffn_norm")))
        gate, up = h @ name("ffn_gate").T, h @ name("ffn_up").T
        x += inputs((gate / (1 + np.exp(-gate)) * up).astype(np.float32)) @ name("ffn_down").T
    head = w.get("output.weight", w["token_embd.weight"])
    return inputs(norm(x, w["output_norm.weight"])) @ head.T


def log_softmax(logits):
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def compare(name, reference, tested, tokens):
    """Prints and returns (mean KL, relative perplexity difference, widest reference gap at a different argmax)."""
    kls, nll_reference, nll_tested, gaps, differ = [], 0.0, 0.0, [0.0], 0
    for at in range(0, len(tokens), 128):
        a, b = log_softmax(reference[at:at + 128]), log_softmax(tested[at:at + 128])
        kls.append((np.exp(a) * (a - b)).sum(axis=1))
        following = tokens[at + 1:at + 129]
        rows = np.arange(len(following))
        nll_reference -= a[rows, following].sum()
        nll_tested -= b[rows, following].sum()
        best = np.sort(a, axis=1)[:, -2:]
        wrong = a.argmax(axis=1) != b.argmax(axis=1)
        differ += int(wrong.sum())
        gaps += list((best[:, 1] - best[:, 0])[wrong])
    kls, count = np.concatenate(kls), len(tokens) - 1
    perplexity_reference, perplexity = np.exp(nll_reference / count), np.exp(nll_tested / count)
    print(f"{name:24} mean KL {kls.mean():.6f} (max {kls.max():.4f})  perplexity {perplexity:.4f} against {perplexity_reference:.4f} "
          f"({100 * (perplexity / perplexity_reference - 1):+.3f} %)  argmax differs {differ}, widest gap there {max(gaps):.3f}")
    return kls.mean(), abs(perplexity / perplexity_reference - 1), max(gaps)


def quire_logits(program, path, tokens, vocabulary):
    with tempfile.TemporaryDirectory() as folder:
        ids, out = Path(folder) / "tokens", Path(folder) / "logits"
        ids.write_text(",".join(map(str, tokens)))
        done = subprocess.run([program, "--model", path, "--tokens", ids, "--logits", out], stderr=subprocess.PIPE, text=True)
        print(done.stderr.strip())
        if done.returncode:
            raise SystemExit(f"{program} failed with {done.returncode}")
        return np.fromfile(out, np.float32).reshape(len(tokens), vocabulary)


def tokens_read(count):
    return [int(t) for t in (HERE / "smollm2.tokens").read_text().split()][:count]


def make(path):
    tokens = tokenize(path, (HERE / "teacher.txt").read_text())[:COUNT]
    (HERE / "smollm2.tokens").write_text("\n".join(" ".join(map(str, tokens[i:i + 24])) for i in range(0, COUNT, 24)) + "\n")
    logits = forward(Model(path), tokens, False)
    with open(HERE / "smollm2.golden", "wb") as out:
        out.write(struct.pack("<8sI", b"QRGOLD1\0", COUNT - 1))
        for at in range(COUNT - 1):
            row = log_softmax(logits[at:at + 1])[0]
            best = np.lexsort((np.arange(len(row)), -row))[:8]
            out.write(struct.pack("<f8H8f", -row[tokens[at + 1]], *best, *row[best]))
    print(f"wrote {COUNT} tokens; numpy {np.__version__}, gguf from {gguf.__file__.split('site-packages')[-1]}")


def check(path, program, count):
    tokens = tokens_read(count)
    model = Model(path)
    reference = forward(model, tokens, False)
    compare("numpy, int8 and fp16", reference, forward(model, tokens, True), tokens)
    kl, perplexity, gap = compare("Quire", reference, quire_logits(program, path, tokens, reference.shape[1]), tokens)
    good = kl <= 0.005 and perplexity <= 0.005 and gap < 0.5
    print("within bounds" if good else "OUT OF BOUNDS: mean KL <= 0.005, perplexity within 0.5 %, argmax gap < 0.5")
    return 0 if good else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["check", "make"])
    parser.add_argument("model")
    parser.add_argument("program", nargs="?")
    parser.add_argument("--count", type=int, default=COUNT)
    given = parser.parse_args()
    if given.command == "make":
        sys.exit(make(given.model))
    sys.exit(check(given.model, given.program, given.count))
