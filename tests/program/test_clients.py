"""Many clients through the official OpenAI client: every answer equals its answer alone, and all pages come back."""
import random
import threading
import unittest

from openai import OpenAI

from quire_program import Server

SHARED = "You are a careful assistant. Answer in one short sentence. " * 12
QUESTIONS = ["Name a river.", "What is two plus three?", "Name a colour.", "Where is Rome?", "Name an animal.", "What is ice?", "Why is the sky blue?", "Name a tree."]


def ask(client, body, stream, leave_after=None):
    """Text, finish reason, usage. leave_after: closes the stream after that many events and returns None."""
    if not stream:
        answer = client.chat.completions.create(model="default", **body)
        return answer.choices[0].message.content, answer.choices[0].finish_reason, answer.usage
    text, finish, usage, events = "", None, None, 0
    with client.chat.completions.create(model="default", stream=True, stream_options={"include_usage": True}, **body) as events_in:
        for event in events_in:
            events += 1
            if leave_after and events > leave_after:
                return None
            if event.usage:
                usage = event.usage
            if event.choices:
                text += event.choices[0].delta.content or ""
                finish = event.choices[0].finish_reason or finish
    return text, finish, usage


def bodies(count, seed):
    draw = random.Random(seed)
    for i in range(count):
        messages = [{"role": "user", "content": QUESTIONS[i % len(QUESTIONS)] + (f" ({i})" if i % 3 == 0 else "")}]
        if i % 2 == 0:
            messages.insert(0, {"role": "system", "content": SHARED})
        body = {"messages": messages, "max_tokens": draw.choice([1, 5, 17, 33]), "seed": i}
        body["temperature"] = 0 if i % 4 < 2 else 0.8
        if i % 8 == 7:
            body["stop"] = ["."]
        yield body


class Clients(unittest.TestCase):
    def test_S5_clients_equal_their_answers_alone(self):
        wanted = list(bodies(32, 5))
        with Server("--max-lanes", 16, "--pages", 1600) as server:
            client = OpenAI(base_url=server.base + "/v1", api_key="none", max_retries=0, timeout=300)
            alone = []
            for body in wanted:
                server.drop_cache()
                alone.append(ask(client, body, False))
            server.drop_cache()
            for stream in (False, True):
                answers, errors = [None] * len(wanted), []

                def one(i):
                    try:
                        answers[i] = ask(client, wanted[i], stream, leave_after=3 if stream and i % 5 == 4 else None)
                    except Exception as error:  # reported below with the request's number
                        errors.append((i, repr(error)))

                threads = [threading.Thread(target=one, args=(i,)) for i in range(len(wanted))]
                [t.start() for t in threads]
                [t.join() for t in threads]
                self.assertEqual(errors, [])
                for i, answer in enumerate(answers):
                    if answer is None:
                        continue
                    self.assertEqual(answer[:2], alone[i][:2], f"request {i}, stream {stream}")
                    self.assertEqual(answer[2].prompt_tokens, alone[i][2].prompt_tokens)
                    self.assertEqual(answer[2].completion_tokens, alone[i][2].completion_tokens)
            server.settle("quire_requests_open", 0)
            server.settle("quire_lanes_open", 0)
            m = server.metrics()
            self.assertEqual(m["quire_cached_tokens_total"] + m["quire_computed_tokens_total"] + m["quire_uncomputed_tokens_total"],
                             m["quire_prompt_tokens_total"])
            self.assertGreater(m["quire_cached_tokens_total"], 0)
            pages = server.drop_cache()
            self.assertEqual(pages["pages_free"], pages["pages_pool"])
            self.assertEqual(pages["pages_held"], 0)
            self.assertEqual(server.stop(), 0)

    def test_logprobs_and_token_prompts(self):
        with Server() as server:
            client = OpenAI(base_url=server.base + "/v1", api_key="none", max_retries=0)
            first = client.completions.create(model="default", prompt=[504, 3575, 282, 4649, 314], max_tokens=4, temperature=0, logprobs=1)
            again = client.completions.create(model="default", prompt=[504, 3575, 282, 4649, 314], max_tokens=4, temperature=0, logprobs=1)
            self.assertEqual(first.choices[0].text, again.choices[0].text)
            self.assertEqual(first.choices[0].logprobs.token_logprobs, again.choices[0].logprobs.token_logprobs)
            self.assertTrue(all(p <= 0 for p in first.choices[0].logprobs.token_logprobs))
            self.assertEqual(first.usage.prompt_tokens, 5)
            self.assertEqual(again.usage.prompt_tokens_details.cached_tokens, 4)
            names = [m.id for m in client.models.list().data]
            self.assertEqual(len(names), 1)


if __name__ == "__main__":
    unittest.main()
