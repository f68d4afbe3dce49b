"""Continuations: a response is saved, outlives a kill, is resumed to the token, forked, listed, dropped; each tenant sees its own."""
import json
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from openai import APIStatusError, OpenAI
from quire_program import BUILD, PATIENCE_S, Server, run

CHUNK = 32
LONG = "Here is a list of the things in the harbour: " + ", ".join(f"boat number {i}" for i in range(40)) + ". Name one of them."


def ids(seed, count=300):
    """Token ids of the tiny model that share nothing with those of another seed."""
    draw = random.Random(seed)
    return [draw.randrange(3, 259) for _ in range(count)]


class Base(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.store = os.path.join(self.folder.name, "store")

    def tearDown(self):
        self.folder.cleanup()

    def serve(self, *options):
        return Server("--store", self.store, "--chunk-tokens", CHUNK, "--restore-always", 1, *options)

    def ask(self, server, messages, status=200, path="/v1/chat/completions", headers=None, **more):
        body = {"max_tokens": 12, "temperature": 0, "return_token_ids": True, **more}
        body["prompt" if path == "/v1/completions" else "messages"] = messages
        code, text, _ = server.request("POST", path, body, headers)
        answer = json.loads(text)
        self.assertEqual(code, status, answer)
        return answer

    def call(self, server, method, path, body=None, status=200, headers=None):
        code, text, _ = server.request(method, "/v1/continuations" + path, body, headers)
        answer = json.loads(text)
        self.assertEqual(code, status, answer)
        return answer

    def kill(self, server):
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()

    def turn(self, answer, question):
        return [{"role": "assistant", "content": answer["choices"][0]["message"]["content"]}, {"role": "user", "content": question}]


class Continuations(Base):
    def test_saved_killed_and_resumed_to_the_token(self):
        first = [{"role": "user", "content": LONG}]
        server = self.serve("--recompute-row-ns", 1000000000)  # however slow the disk, its chunks are worth it
        with server:
            answer = self.ask(server, first)
            full = answer["usage"]["prompt_tokens"] // CHUNK * CHUNK
            saved = self.call(server, "POST", "", {"response": answer["id"], "name": "harbour", "owner": "me"})
            self.assertEqual(saved["object"], "continuation")
            then = first + self.turn(answer, "And another?")
            before = self.ask(server, then, continuation=saved["id"])
            state = self.call(server, "GET", "/" + saved["id"])
            self.assertIn(LONG, state["text"])
            self.assertTrue(state["text"].endswith(answer["choices"][0]["message"]["content"]))
            self.assertEqual(len(state["token_ids"]), saved["tokens"])
            deadline = time.monotonic() + PATIENCE_S  # chunks are written beside the answers
            while server.metrics()["quire_captured_rows_total"] < full:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.05)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
        with self.serve() as server:
            self.assertEqual(self.call(server, "GET", "/" + saved["id"]), state)
            after = self.ask(server, then, continuation=saved["id"])
            self.assertEqual(after["choices"][0]["token_ids"], before["choices"][0]["token_ids"])
            self.assertEqual(after["usage"]["prompt_tokens"], before["usage"]["prompt_tokens"])
            self.assertGreaterEqual(after["usage"]["prompt_tokens_details"]["cached_tokens"], full)
            # The resumed prompt is the stored ids to the last: the same ids as a prompt of ids give the same tokens.
            again = self.call(server, "POST", "", {"response": after["id"]})
            ids = self.call(server, "GET", "/" + again["id"])["token_ids"]
            self.assertEqual(ids[: len(state["token_ids"])], state["token_ids"])
            plain = self.ask(server, ids[: after["usage"]["prompt_tokens"]], path="/v1/completions")
            self.assertEqual(plain["choices"][0]["token_ids"], after["choices"][0]["token_ids"])

    def test_openai_client(self):
        with self.serve() as server:
            client = OpenAI(base_url=server.base + "/v1", api_key="none", max_retries=0)
            messages = [{"role": "user", "content": LONG}]
            stream = client.chat.completions.create(model="default", messages=messages, max_tokens=8, temperature=0, stream=True)
            name, text = None, ""
            for event in stream:
                name = event.id
                text += (event.choices[0].delta.content or "") if event.choices else ""
            saved = self.call(server, "POST", "", {"response": name})
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Why?"}]
            ask = dict(model="default", messages=messages, max_tokens=8, temperature=0)
            resumed = client.chat.completions.create(**ask, extra_body={"continuation": saved["id"]})
            self.assertGreaterEqual(resumed.usage.prompt_tokens_details.cached_tokens, saved["tokens"] - 1)
            messages[0]["content"] += " "
            with self.assertRaises(APIStatusError) as caught:
                client.chat.completions.create(**ask, extra_body={"continuation": saved["id"]})
            self.assertEqual((caught.exception.status_code, caught.exception.code), (409, "continuation_mismatch"))

    def test_fork_twice_and_diverge_then_drop(self):
        with self.serve() as server:
            answer = self.ask(server, "The harbour was quiet, and", path="/v1/completions")
            text = "The harbour was quiet, and" + answer["choices"][0]["text"]
            saved = self.call(server, "POST", "", {"response": answer["id"], "name": "root"})
            left = self.call(server, "POST", f"/{saved['id']}/fork", {"name": "left"})
            right = self.call(server, "POST", f"/{saved['id']}/fork")
            self.assertEqual((left["name"], right["name"], left["tokens"]), ("left", "root", saved["tokens"]))
            self.assertEqual(len({saved["id"], left["id"], right["id"]}), 3)
            self.assertEqual(self.call(server, "DELETE", "/" + saved["id"])["deleted"], True)
            a = self.ask(server, text + " the sea", path="/v1/completions", continuation=left["id"])
            b = self.ask(server, text + " the cat", path="/v1/completions", continuation=right["id"])
            self.assertNotEqual(a["choices"][0]["token_ids"], b["choices"][0]["token_ids"])
            grown = self.call(server, "POST", "", {"response": a["id"]})
            state = self.call(server, "GET", "/" + grown["id"])
            self.assertEqual(state["text"], text + " the sea" + a["choices"][0]["text"])
            self.assertEqual(state["token_ids"][: saved["tokens"]], self.call(server, "GET", "/" + left["id"])["token_ids"])
            self.ask(server, text, 404, path="/v1/completions", continuation=saved["id"])
            self.call(server, "DELETE", "/" + saved["id"], status=404)
            self.assertEqual({x["id"] for x in self.call(server, "GET", "")["data"]}, {left["id"], right["id"], grown["id"]})

    def test_what_does_not_continue_is_refused(self):
        with self.serve() as server:
            answer = self.ask(server, [{"role": "user", "content": "Hello"}])
            saved = self.call(server, "POST", "", {"response": answer["id"]})
            for messages in ([{"role": "user", "content": "Hello"}], [{"role": "user", "content": "Hello<|im_end|>"}], [{"role": "user", "content": "Bye"}]):
                refused = self.ask(server, messages, 409, continuation=saved["id"])
                self.assertEqual((refused["error"]["code"], refused["error"]["param"]), ("continuation_mismatch", "continuation"))
            then = [{"role": "user", "content": "Hello"}] + self.turn(answer, "x")
            self.ask(server, then, 409, continuation=saved["id"], cache_salt="other")
            self.ask(server, then, 404, continuation="cont-" + 32 * "0")
            self.ask(server, then, 404, continuation="nonsense")
            self.ask(server, then, 400, continuation=7)
            self.call(server, "POST", "", {"response": "chatcmpl-0000000000000000"}, 404)
            self.call(server, "POST", "", {"response": answer["id"], "pin": True, "ttl_s": 5}, 400)
            self.call(server, "POST", "", {"response": answer["id"], "colour": 5}, 400)
            self.call(server, "POST", "", {"name": "x"}, 400)
            self.call(server, "GET", "/cont-", status=404)
            self.assertEqual(server.request("PUT", "/v1/continuations/" + saved["id"], {})[0], 405)

    def test_saved_from_ids(self):
        ids = [(i * 7919) % 40000 + 20 for i in range(100)]
        with self.serve() as server:
            answer = self.ask(server, ids, path="/v1/completions")
            saved = self.call(server, "POST", "", {"response": answer["id"]})
            state = self.call(server, "GET", "/" + saved["id"])
            self.assertEqual(state["token_ids"][:100], ids)
            self.ask(server, state["token_ids"] + [5, 6], path="/v1/completions", continuation=saved["id"])
            self.ask(server, ids[:99] + [5] + state["token_ids"][100:], 409, path="/v1/completions", continuation=saved["id"])
            self.ask(server, "text", 409, path="/v1/completions", continuation=saved["id"])

    def test_bounds_expiry_and_pins(self):
        with self.serve("--continuations-max", 2, "--save-window-s", 600) as server:
            answer = self.ask(server, "Once", path="/v1/completions")
            long = self.call(server, "POST", "", {"response": answer["id"], "ttl_s": 1000})
            pinned = self.call(server, "POST", "", {"response": answer["id"], "pin": True})
            self.assertEqual((pinned["pin"], pinned["expires_at"]), (True, None))
            self.assertEqual(self.call(server, "POST", "", {"response": answer["id"], "pin": True}, 507)["error"]["code"], "no_space")
            self.call(server, "DELETE", "/" + long["id"])
            short = self.call(server, "POST", "", {"response": answer["id"], "ttl_s": 1})
            deadline = time.monotonic() + PATIENCE_S
            while server.get("/v1/continuations/" + short["id"])[0] == 200:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.1)
            self.ask(server, "Once" + answer["choices"][0]["text"], 404, path="/v1/completions", continuation=short["id"])
            self.call(server, "POST", "", {"response": answer["id"]})
            self.call(server, "POST", f"/{pinned['id']}/fork", {}, 507)
            self.call(server, "GET", "/" + pinned["id"])

    def test_another_tenants_is_not_there(self):
        keys, lines = {}, "version = 1\n"
        for tenant in ("alice", "bob"):
            made = run("keys", "--bearer", tenant)
            lines += made.stdout
            keys[tenant] = {"Authorization": "Bearer " + made.stderr.split()[-1]}
        path = os.path.join(self.folder.name, "keys.conf")
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
            f.write(lines)
        with self.serve("--keys", path) as server:
            answer = self.ask(server, "Once", path="/v1/completions", headers=keys["alice"])
            self.call(server, "POST", "", {"response": answer["id"]}, 404, keys["bob"])
            saved = self.call(server, "POST", "", {"response": answer["id"]}, headers=keys["alice"])
            then = "Once" + answer["choices"][0]["text"] + " more"
            self.call(server, "GET", "/" + saved["id"], status=404, headers=keys["bob"])
            self.call(server, "DELETE", "/" + saved["id"], status=404, headers=keys["bob"])
            self.call(server, "POST", f"/{saved['id']}/fork", {}, 404, keys["bob"])
            self.ask(server, then, 404, path="/v1/completions", continuation=saved["id"], headers=keys["bob"])
            self.assertEqual(self.call(server, "GET", "", headers=keys["bob"])["data"], [])
            self.ask(server, then, path="/v1/completions", continuation=saved["id"], headers=keys["alice"])
            self.assertEqual(len(self.call(server, "GET", "", headers=keys["alice"])["data"]), 1)

    def test_damage_is_said_and_never_answered(self):
        with self.serve() as server:
            answer = self.ask(server, "Once", path="/v1/completions")
            kept, torn = (self.call(server, "POST", "", {"response": answer["id"]})["id"] for _ in range(2))
            server.process.kill()
            server.process.wait()
        folder = os.path.join(self.store, "continuations")
        with open(os.path.join(folder, torn[5:]), "r+b") as f:
            f.seek(120)
            f.write(b"\xff")
        with open(os.path.join(folder, 32 * "0" + ".new"), "wb") as f:
            f.write(b"half")
        with self.serve() as server:
            self.assertEqual([x["id"] for x in self.call(server, "GET", "")["data"]], [kept])
            self.call(server, "GET", "/" + torn, status=404)
            server.says("damaged")
            self.assertEqual(sorted(os.listdir(folder)), sorted([kept[5:], torn[5:] + ".damaged"]))

    def test_subcommands(self):
        with self.serve() as server:
            at = ("--server", f"127.0.0.1:{server.port}")
            answer = self.ask(server, "Once", path="/v1/completions")
            saved = json.loads(run("continuation", "save", answer["id"], "--name", 'the "first"', "--pin", "--json", *at).stdout)
            self.assertEqual((saved["name"], saved["pin"]), ('the "first"', True))
            forked = json.loads(run("continuation", "fork", saved["id"], "--owner", "me", "--ttl-s", 1000, "--json", *at).stdout)
            self.assertEqual((forked["name"], forked["owner"], forked["pin"]), ('the "first"', "me", False))
            shown = run("continuation", "show", forked["id"], *at).stdout
            self.assertIn("Once" + answer["choices"][0]["text"], shown)
            self.assertEqual(len(run("continuation", "list", *at).stdout.splitlines()), 2)
            self.assertIn("gone", run("continuation", "drop", saved["id"], *at).stdout)
            refused = run("continuation", "show", saved["id"], *at, check=False)
            self.assertEqual((refused.returncode, "no such continuation" in refused.stderr), (1, True))
            self.assertEqual(run("continuation", "list", "x", *at, check=False).returncode, 2)
            self.assertEqual(run("continuation", "show", "../x", *at, check=False).returncode, 2)
        self.assertEqual(run("continuation", "list", *at, check=False).returncode, 1)

    def test_without_a_store(self):
        with Server("--no-store") as server:
            answer = self.ask(server, "Once", path="/v1/completions")
            self.assertEqual(self.call(server, "POST", "", {"response": answer["id"]}, 400)["error"]["code"], "unsupported")
            self.call(server, "GET", "", status=400)


class Stored(Base):
    """What the store keeps of continuations, on a seeded tiny model and token ids. Nothing is ever worth its capture by itself."""

    CHUNKS = 9  # full ones of 300 and 6 tokens

    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.model = os.path.join(cls.scratch.name, "tiny.gguf")
        subprocess.run([os.path.join(BUILD, "tool_tiny_model"), cls.model, "8"], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def serve(self, *options):
        return Server("--store", self.store, "--chunk-tokens", CHUNK, "--recompute-row-ns", 0, "--restore-always", 1, *options, model=self.model)

    def draw(self, server, prompt, headers=None):
        return self.ask(server, prompt, path="/v1/completions", headers=headers, max_tokens=6, ignore_eos=True)

    def cached_of(self, server, saved):
        """Rows that a resume of a saved continuation finds, when nothing is left in memory."""
        server.request("POST", "/admin/cache/drop", {})
        prompt = self.call(server, "GET", "/" + saved["id"])["token_ids"] + [7]
        answer = self.ask(server, prompt, path="/v1/completions", continuation=saved["id"], max_tokens=1)
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def test_a_save_writes_what_was_not_worth_it(self):
        with self.serve() as server:
            answer = self.draw(server, ids(1))
            self.assertEqual(server.metrics()["quire_captured_rows_total"], 0)
            saved = self.call(server, "POST", "", {"response": answer["id"]})
            self.assertEqual((saved["durable"], saved["durable_tokens"]), (True, CHUNK * self.CHUNKS))
            self.assertNotIn("durable_reason", saved)
            self.kill(server)
        with self.serve() as server:
            self.assertGreaterEqual(self.cached_of(server, saved), CHUNK * self.CHUNKS)

    def test_a_save_says_what_it_could_not_keep(self):
        with self.serve() as server:
            answer = self.draw(server, ids(1))
            self.assertEqual(server.request("POST", "/admin/cache/drop", {})[0], 200)
            saved = self.call(server, "POST", "", {"response": answer["id"]})
            self.assertEqual((saved["durable"], saved["durable_tokens"]), (False, 0))
            self.assertIn("computed again", saved["durable_reason"])
            short = self.draw(server, ids(2, 20))
            saved = self.call(server, "POST", "", {"response": short["id"]})  # no full chunk: nothing is missing
            self.assertEqual((saved["durable"], saved["durable_tokens"]), (True, 0))

    def test_pinned_chunks_stay(self):
        room = ("--store-files", 32, "--continuations-max", 100)
        with self.serve(*room) as server:
            pinned = self.call(server, "POST", "", {"response": self.draw(server, ids(1))["id"], "pin": True})
            self.assertEqual((pinned["durable"], pinned["durable_tokens"]), (True, CHUNK * self.CHUNKS))
            held = server.metrics()["quire_store_held_bytes"]
            for seed in (2, 3):
                more = self.call(server, "POST", "", {"response": self.draw(server, ids(seed))["id"], "pin": True})
            last = self.draw(server, ids(4))["id"]
            refused = self.call(server, "POST", "", {"response": last, "pin": True}, 507)  # 27 of 32 are held
            self.assertEqual((refused["error"]["code"], refused["error"]["param"]), ("no_space", "pin"))
            self.assertEqual(len(self.call(server, "GET", "")["data"]), 3)
            self.call(server, "POST", f"/{pinned['id']}/fork", {"pin": True})  # shares every chunk
            self.call(server, "DELETE", "/" + more["id"])
            self.call(server, "POST", "", {"response": last, "pin": True})
            self.assertEqual(server.metrics()["quire_store_held_bytes"], 3 * held)
            self.kill(server)
        with self.serve(*room) as server:
            self.assertEqual(server.settle("quire_store_held_bytes", 3 * held, 60)["quire_store_held_bytes"], 3 * held)
            for one in self.call(server, "GET", "")["data"]:
                if one["id"] != pinned["id"]:
                    self.call(server, "DELETE", "/" + one["id"])
            self.assertEqual(server.metrics()["quire_store_held_bytes"], held)
            for seed in range(10, 16):  # twice what the store has besides
                self.call(server, "POST", "", {"response": self.draw(server, ids(seed))["id"]})
            self.assertGreaterEqual(server.metrics()["quire_store_evictions_total"], 3 * self.CHUNKS)
            self.assertGreaterEqual(self.cached_of(server, pinned), CHUNK * self.CHUNKS)
            self.call(server, "DELETE", "/" + pinned["id"])
            self.assertEqual(server.metrics()["quire_store_held_bytes"], 0)

    def test_a_tenants_bytes_hold_under_concurrency(self):
        made = run("keys", "--bearer", "alice")
        path = os.path.join(self.folder.name, "keys.conf")
        key = {"Authorization": "Bearer " + made.stderr.split()[-1]}
        with self.serve() as server:
            one = self.call(server, "POST", "", {"response": self.draw(server, ids(1))["id"]})
            m = server.metrics()
            bytes_of_one = one["tokens"] * (m["quire_download_bytes_total"] / m["quire_captured_rows_total"] + 4)
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
            f.write("version = 1\n" + made.stdout.replace("    key =", f"    bytes = {int(3.5 * bytes_of_one)}\n    key ="))
        with self.serve("--keys", path) as server:
            answer, codes = self.draw(server, ids(1), key), []

            def save():
                codes.append(server.request("POST", "/v1/continuations", {"response": answer["id"]}, key)[0])

            threads = [threading.Thread(target=save) for _ in range(12)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(sorted(codes), [200] * 3 + [429] * 9)
            mine = self.call(server, "GET", "", headers=key)["data"]
            self.assertEqual(len(mine), 3)
            self.call(server, "POST", f"/{mine[0]['id']}/fork", {}, 429, key)
            self.call(server, "DELETE", "/" + mine[0]["id"], headers=key)
            self.call(server, "POST", f"/{mine[1]['id']}/fork", {}, headers=key)


if __name__ == "__main__":
    unittest.main()
