"""A pool that holds a quarter of what is asked for: later requests make room for earlier ones, their rows survive it, and every answer is
the one it would have been alone."""
import concurrent.futures
import os
import random
import unittest

from quire_program import Server

PAGE = 16


def bodies(count, seed):
    """Mixed requests: shared prefixes (forks), short and long prompts and answers, greedy and sampled."""
    draw = random.Random(seed)
    stem = [draw.randrange(20, 40000) for _ in range(200)]
    for i in range(count):
        prompt = stem[: draw.choice([0, 60, 200])] + [draw.randrange(20, 40000) for _ in range(draw.choice([5, 40, 150]))]
        yield {"prompt": prompt, "max_tokens": draw.choice([20, 100, 220]), "temperature": 0 if i % 2 else 0.8, "seed": i, "ignore_eos": True,
               "logprobs": 1}


class Pressure(unittest.TestCase):
    def answer_alone(self, asked):
        with Server() as server:
            return [server.complete(**body) for body in asked]

    def answer_squeezed(self, asked, alone, *options, leavers=3):
        """All at once on a quarter of the pages, while some clients leave; returns the metrics and the share of rows computed again."""
        demand = sum(-(-(len(b["prompt"]) + b["max_tokens"]) // PAGE) for b in asked)
        with Server("--pages", demand // 4, "--over-commit", 1, "--tranche-tokens", 32, *options) as server:
            with concurrent.futures.ThreadPoolExecutor(len(asked) + leavers) as pool:
                def leave(body):
                    """A client that goes away in the middle, while the others are answered."""
                    try:
                        server.request("POST", "/v1/completions", {**body, "max_tokens": 300, "stream": False}, timeout=1.5)
                    except OSError:
                        pass

                gone = [pool.submit(leave, body) for body in asked[:leavers]]
                answers = list(pool.map(lambda body: server.post("/v1/completions", body, timeout=600)[1], asked))
                for one in gone:
                    one.result()
            for body, one, answer in zip(asked, alone, answers):
                self.assertEqual(one["choices"], answer["choices"], body)
            server.settle("quire_lanes_open", 0)
            server.settle("quire_lanes_short", 0)
            m = server.settle("quire_requests_open", 0)
            if "quire_spill_bytes" in m:
                m = server.settle("quire_spill_bytes", 0)  # whatever came of a request, its rows are given up
            self.assertGreater(m["quire_preemptions_total"], 0)
            self.assertEqual(m.get("quire_unspills_failed_total", 0), 0)
            computed = m["quire_computed_tokens_total"] + m["quire_generated_tokens_total"]
            share = m["quire_recomputed_rows_total"] / computed
            print(f"\npressure{' ' if options else ''}{' '.join(map(str, options))}: {len(asked)} requests, demand {demand} pages, pool {demand // 4}, "
                  f"preemptions {m['quire_preemptions_total']:.0f}, rows spilled {m.get('quire_spilled_rows_total', 0):.0f}, back "
                  f"{m.get('quire_unspilled_rows_total', 0):.0f}, refused {m.get('quire_spills_refused_total', 0):.0f} times, computed again "
                  f"{m['quire_recomputed_rows_total']:.0f} of {computed:.0f} ({100 * share:.1f} %)")
            self.assertEqual(m["quire_prompt_tokens_total"],
                             m["quire_cached_tokens_total"] + m["quire_computed_tokens_total"] + m["quire_uncomputed_tokens_total"])
            dropped = server.drop_cache()
            self.assertEqual(dropped["pages_free"], dropped["pages_pool"])
            return m, share

    def test_S5_a_quarter_of_the_demand(self):
        asked = list(bodies(24, 5))
        m, share = self.answer_squeezed(asked, self.answer_alone(asked), "--no-store")
        self.assertGreater(m["quire_unspilled_rows_total"], 0)
        self.assertLess(share, 0.02)

    @unittest.skipUnless(os.environ.get("QUIRE_FULL"), "tests/long.sh D9 runs it")
    def test_full_size(self):
        """Several loads, with a store and without; with room for a few pages only, and with none, where rows are computed again."""
        for seed in (6, 7):
            asked = list(bodies(24, seed))
            alone = self.answer_alone(asked)
            for options in ((), ("--no-store",), ("--no-store", "--spill-bytes", 8 << 20), ("--spill-bytes", 0)):
                m, share = self.answer_squeezed(asked, alone, *options)
                if "--spill-bytes" not in options:
                    self.assertLess(share, 0.02)
                    self.assertEqual(m["quire_spills_refused_total"], 0)
                elif options[-1]:
                    self.assertGreater(m["quire_spills_refused_total"], 0)


if __name__ == "__main__":
    unittest.main()
