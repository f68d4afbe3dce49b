"""S4: one answer, whatever the settings. Every configuration (build, instruction set, threads, page size, tile) runs the same requests
cold, with strangers in the batch, from resident pages, forked, and after eviction; texts, tokens and log probabilities must equal those of
the scalar kernels computing one row at a time, to the last bit.
usage: matrix.py MODEL BUILDS(comma) HOW_MANY(all or a number) SEED"""
import itertools
import os
import random
import sys
import threading

MODEL, BUILDS, HOW_MANY, SEED = sys.argv[1], sys.argv[2].split(","), sys.argv[3], int(sys.argv[4])
os.environ["QUIRE_MODEL"] = MODEL
os.environ["QUIRE_BUILD"] = BUILDS[0]
import quire_program  # noqa: E402  (reads the environment)
from quire_program import Server  # noqa: E402

SHARED = [3 + (i * 7919) % 250 for i in range(300)]
ASKS = [
    {"prompt": SHARED[:1], "max_tokens": 20, "temperature": 0},
    {"prompt": SHARED[:70], "max_tokens": 20, "temperature": 0},
    {"prompt": SHARED[:300], "max_tokens": 12, "temperature": 0.8, "seed": 3, "top_p": 0.9},
    {"prompt": SHARED[:200] + [9, 8, 7], "max_tokens": 12, "temperature": 1.2, "seed": 4, "top_k": 40},
    {"prompt": SHARED[:64], "max_tokens": 16, "temperature": 0.7, "seed": 5, "min_p": 0.05},
]


def ask(server, body):
    choice = server.complete(**body, logprobs=1, ignore_eos=True)["choices"][0]
    return choice["text"], choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"], choice["finish_reason"]


def stranger(server, i):
    server.complete(prompt=[3 + (j * 31 + i * 17) % 250 for j in range(5 + 9 * i)], max_tokens=15, temperature=0.5, seed=i, ignore_eos=True)


def together(calls):
    errors = []

    def one(call):
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(call,)) for call in calls]
    [t.start() for t in threads]
    [t.join() for t in threads]
    if errors:
        raise errors[0]


def run(build, isa, threads, page, tile):
    quire_program.QUIRE = os.path.join(build, "quire")
    pages = -(-8 * 1024 // page)  # room for a few requests: strangers evict
    with Server("--isa", isa, "--threads", threads, "--page-tokens", page, "--prefill-tile", tile, "--pages", pages, "--poison", 1) as server:
        results = {}

        def keep(name):
            def call(i):
                results[name, i] = ask(server, ASKS[i])

            return call

        for i in range(len(ASKS)):
            server.drop_cache()
            keep("cold")(i)
        server.drop_cache()
        calls = [lambda i=i: keep("company")(i) for i in range(len(ASKS))] + [lambda i=i: stranger(server, i) for i in range(27)]
        random.Random(tile * page).shuffle(calls)
        together(calls)
        for i in range(len(ASKS)):
            keep("resident")(i)
        together([lambda i=i: keep("forked")(i) for i in range(len(ASKS))])
        for i in range(40, 60):  # more rows than the pool has: everything else is evicted
            server.complete(prompt=[3 + (j * 13 + i * 7) % 250 for j in range(420)], max_tokens=2, temperature=0, ignore_eos=True)
        for i in range(len(ASKS)):
            keep("evicted")(i)
        m = server.metrics()
        assert m["quire_page_evictions_total"] > 0, m
        assert m["quire_cached_tokens_total"] > 0, m
        server.settle("quire_lanes_open", 0)
        pages_now = server.drop_cache()
        assert pages_now["pages_free"] == pages_now["pages_pool"], pages_now
    return results


def main():
    reference = run(BUILDS[0], "scalar", 1, 8, 1)
    wanted = {i: reference["cold", i] for i in range(len(ASKS))}
    all_of_them = list(itertools.product(BUILDS, ("scalar", "avx2", "avx512"), (1, 2, 4), (8, 16, 32, 64), (1, 7, 64, 512)))
    flags = open("/proc/cpuinfo").read()
    all_of_them = [c for c in all_of_them if c[1] != "avx512" or "avx512_vnni" in flags]
    if HOW_MANY != "all":
        all_of_them = random.Random(SEED).sample(all_of_them, int(HOW_MANY))
    bad = 0
    for number, configuration in enumerate([(BUILDS[0], "scalar", 1, 8, 1)] + all_of_them):
        results = reference if number == 0 else run(*configuration)
        different = sorted(key for key, value in results.items() if value != wanted[key[1]])
        if different:
            bad += 1
            print("DIFFERENT", configuration, different, flush=True)
    print(f"matrix: {len(all_of_them) + 1} configurations x {len(reference)} answers, {bad} configurations differ")
    sys.exit(1 if bad else 0)


main()
