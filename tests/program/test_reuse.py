"""Reuse is real: what is cached is not computed, and never changes an answer."""
import unittest

from quire_program import Server

PROMPT = [(i * 7919) % 40000 + 20 for i in range(2048)]


class Reuse(unittest.TestCase):
    def test_S11_cached_plus_computed_is_the_prompt(self):
        with Server("--poison", 1) as server:
            cold = server.complete(prompt=PROMPT[:700], max_tokens=6, temperature=0, logprobs=1)
            warm = server.complete(prompt=PROMPT[:700], max_tokens=6, temperature=0, logprobs=1)
            self.assertEqual(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
            self.assertEqual(warm["usage"]["prompt_tokens_details"]["cached_tokens"], 699)
            self.assertEqual(cold["choices"], warm["choices"])
            m = server.metrics()
            self.assertEqual(m["quire_cached_tokens_total"], 699)
            self.assertEqual(m["quire_computed_tokens_total"], 701)
            self.assertEqual(m["quire_prompt_tokens_total"], 1400)

    def test_S11_switch_fails_what_computes_and_not_what_reuses(self):
        with Server("--fail-over-rows", 64) as server:
            status, answer = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 4, "temperature": 0})
            self.assertNotEqual(status, 200, answer)
            # In steps of 64 computed rows each, every one reusing the last.
            for end in range(64, 2049, 64):
                answer = server.complete(prompt=PROMPT[:end], max_tokens=1, temperature=0)
            self.assertEqual(answer["usage"]["prompt_tokens"], 2048)
            warm = server.complete(prompt=PROMPT, max_tokens=4, temperature=0)
            self.assertEqual(warm["usage"]["prompt_tokens_details"]["cached_tokens"], 2047)

    def test_cache_salt_isolates(self):
        with Server() as server:
            body = {"prompt": PROMPT[:100], "max_tokens": 3, "temperature": 0}
            first = server.complete(**body, cache_salt="a")
            other = server.complete(**body, cache_salt="b")
            same = server.complete(**body, cache_salt="a")
            self.assertEqual([x["usage"]["prompt_tokens_details"]["cached_tokens"] for x in (first, other, same)], [0, 0, 99])
            self.assertEqual(first["choices"], other["choices"])


if __name__ == "__main__":
    unittest.main()
