"""One turn of the peer: llama.cpp through llama-cpp-python's own C interface. Prints one JSON object of rates in tokens per second.
usage: llama.py MODEL THREADS DECODE_TOKENS [LONG_CONTEXT]"""
import ctypes
import json
import sys
import time

import llama_cpp as L
import numpy as np


@L.llama_log_callback
def quiet(level, text, data):
    pass


def main():
    path, threads, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    long_context = int(sys.argv[4]) if len(sys.argv) > 4 else 2048
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    L.llama_backend_init()
    model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
    assert model, path
    vocabulary = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
    p = L.llama_context_default_params()
    p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = 8192, 512, 512, 8
    p.n_threads = p.n_threads_batch = threads
    p.flash_attn_type = 1  # enabled
    p.kv_unified = True
    context = L.llama_init_from_model(model, p)
    assert context
    memory = L.llama_get_memory(context)
    batch = L.llama_batch_init(512, 0, 1)

    def decode(rows):
        """rows: (token, position, sequence, wants logits)."""
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, logits) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, logits
            batch.seq_id[i][0] = sequence
        assert L.llama_decode(context, batch) == 0

    def greedy(index):
        logits = np.ctypeslib.as_array(L.llama_get_logits_ith(context, index), shape=(vocabulary,))
        return int(logits.argmax())

    def prompt(tokens, sequence=0):
        for start in range(0, tokens, 512):
            end = min(tokens, start + 512)
            decode([((i * 7919 + sequence * 31) % 40000 + 20, i, sequence, i == tokens - 1) for i in range(start, end)])
        return greedy(-1)

    def clear():
        L.llama_memory_clear(memory, True)

    def prefill(tokens):
        clear()
        begin = time.perf_counter()
        prompt(tokens)
        return tokens / (time.perf_counter() - begin)

    def generate(tokens, streams):
        clear()
        last = [prompt(tokens, s) for s in range(streams)]
        begin = time.perf_counter()
        for i in range(count):
            decode([(last[s], tokens + i, s, 1) for s in range(streams)])
            last = [greedy(s) for s in range(streams)]
        return count * streams / (time.perf_counter() - begin)

    prefill(64)
    generate(16, 1)
    rates = {"prefill_512": prefill(512), "decode_16": generate(16, 1), "decode_long": generate(long_context, 1), "streams_8": generate(16, 8)}
    print(json.dumps({"rates": rates, "info": L.llama_print_system_info().decode(), "version": L.__version__}))


main()
