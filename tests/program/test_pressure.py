"""A pool that holds a quarter of what is asked for: later requests make room for earlier ones, and every answer is the one it would have
been alone."""
import concurrent.futures
import random
import unittest

from quire_program import Server

REQUESTS, PAGE = 24, 16


def bodies():
    """24 mixed requests: shared prefixes (forks), short and long prompts and answers, greedy and sampled."""
    draw = random.Random(5)
    stem = [draw.randrange(20, 40000) for _ in range(200)]
    for i in range(REQUESTS):
        prompt = stem[: draw.choice([0, 60, 200])] + [draw.randrange(20, 40000) for _ in range(draw.choice([5, 40, 150]))]
        yield {"prompt": prompt, "max_tokens": draw.choice([20, 100, 220]), "temperature": 0 if i % 2 else 0.8, "seed": i, "ignore_eos": True,
               "logprobs": 1}


class Pressure(unittest.TestCase):
    def test_S5_a_quarter_of_the_demand(self):
        asked = list(bodies())
        with Server() as server:
            alone = [server.complete(**body) for body in asked]
        demand = sum(-(-(len(b["prompt"]) + b["max_tokens"]) // PAGE) for b in asked)
        with Server("--pages", demand // 4, "--over-commit", 1, "--tranche-tokens", 32) as server:
            with concurrent.futures.ThreadPoolExecutor(REQUESTS + 4) as pool:
                def cancelled(body):
                    """A client that goes away in the middle, while the others are answered."""
                    try:
                        server.request("POST", "/v1/completions", {**body, "max_tokens": 300, "stream": False}, timeout=1.5)
                    except OSError:
                        pass

                leavers = [pool.submit(cancelled, body) for body in asked[:3]]
                answers = list(pool.map(lambda body: server.post("/v1/completions", body, timeout=300)[1], asked))
                for leaver in leavers:
                    leaver.result()
            for body, one, answer in zip(asked, alone, answers):
                self.assertEqual(one["choices"], answer["choices"], body)
            m = server.settle("quire_lanes_open", 0)
            self.assertGreater(m["quire_preemptions_total"], 0)
            self.assertEqual(m["quire_lanes_short"], 0)
            computed = m["quire_computed_tokens_total"] + m["quire_generated_tokens_total"]
            print(f"\npressure: demand {demand} pages, pool {demand // 4}, preemptions {m['quire_preemptions_total']:.0f}, rows computed again "
                  f"{m['quire_recomputed_rows_total']:.0f} of {computed:.0f}")
            self.assertEqual(m["quire_prompt_tokens_total"],
                             m["quire_cached_tokens_total"] + m["quire_computed_tokens_total"] + m["quire_uncomputed_tokens_total"])
            status, dropped = server.post("/admin/cache/drop", {})
            m = server.metrics()
            self.assertEqual(m["quire_pages_free"], m["quire_pages_pool"], (status, dropped))


if __name__ == "__main__":
    unittest.main()
