"""Continuations: a response is saved, outlives a kill, is resumed to the token, forked, listed, dropped; each tenant sees its own."""
import json
import os
import signal
import tempfile
import threading
import time
import unittest

from openai import APIStatusError, OpenAI
from quire_program import Server, run

CHUNK = 32
LONG = "Here is a list of the things in the harbour: " + ", ".join(f"boat number {i}" for i in range(40)) + ". Name one of them."


class Continuations(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.store = os.path.join(self.folder.name, "store")

    def tearDown(self):
        self.folder.cleanup()

    def serve(self, *options):
        return Server("--store", self.store, "--chunk-tokens", CHUNK, *options)

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

    def turn(self, answer, question):
        return [{"role": "assistant", "content": answer["choices"][0]["message"]["content"]}, {"role": "user", "content": question}]

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
            deadline = time.monotonic() + 60  # chunks are written beside the answers
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

    def test_a_save_writes_what_was_not_worth_it(self):
        first = [{"role": "user", "content": LONG}]
        with self.serve("--recompute-row-ns", 0) as server:  # nothing is ever worth its capture
            answer = self.ask(server, first)
            self.assertEqual(server.metrics()["quire_captured_rows_total"], 0)
            saved = self.call(server, "POST", "", {"response": answer["id"]})
            full = (saved["tokens"] - 1) // CHUNK * CHUNK
            self.assertEqual((saved["durable"], saved["durable_tokens"]), (True, full))
            self.assertNotIn("durable_reason", saved)
            self.assertEqual(server.metrics()["quire_captured_rows_total"], full)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
        with self.serve("--recompute-row-ns", 0) as server:
            then = first + self.turn(answer, "And another?")
            after = self.ask(server, then, continuation=saved["id"])
            self.assertGreaterEqual(after["usage"]["prompt_tokens_details"]["cached_tokens"], full)

    def test_a_save_says_what_it_could_not_keep(self):
        with self.serve("--recompute-row-ns", 0) as server:
            answer = self.ask(server, [{"role": "user", "content": LONG}])
            server.request("POST", "/admin/cache/drop", {})
            saved = self.call(server, "POST", "", {"response": answer["id"]})
            self.assertEqual((saved["durable"], saved["durable_tokens"]), (False, 0))
            self.assertIn("computed again", saved["durable_reason"])
            short = self.ask(server, "Once", path="/v1/completions", max_tokens=1)
            saved = self.call(server, "POST", "", {"response": short["id"]})
            self.assertEqual((saved["durable"], saved["durable_tokens"]), (True, 0))

    def test_pinned_chunks_stay(self):
        # 33 chunks of 728 KiB fit; one conversation has about 8.
        options = ("--store-bytes", 24 << 20, "--recompute-row-ns", 1000000000)
        first = [{"role": "user", "content": LONG}]
        with self.serve(*options) as server:
            answer = self.ask(server, first)
            saved = self.call(server, "POST", "", {"response": answer["id"], "pin": True})
            self.assertTrue(saved["durable"], saved)
            held = server.metrics()["quire_store_held_bytes"]
            self.assertGreater(held, 0)
            more, refused = answer, 0  # pins beyond the bound are refused and leave nothing
            for i in range(40):
                more = self.ask(server, [{"role": "user", "content": f"{i} {LONG}"}], max_tokens=1)
                code, text, _ = server.request("POST", "/v1/continuations", {"response": more["id"], "pin": True})
                if code == 507:
                    break
                self.assertEqual(code, 200, text)
                self.call(server, "DELETE", "/" + json.loads(text)["id"]) if i % 2 else None
            self.assertEqual(code, 507)
            self.assertIn("pin", json.loads(text)["error"]["param"])
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
        with self.serve(*options) as server:
            for one in self.call(server, "GET", "")["data"]:
                if one["id"] != saved["id"]:
                    self.call(server, "DELETE", "/" + one["id"])
            deadline = time.monotonic() + 60
            while server.metrics()["quire_store_held_bytes"] != held:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.05)
            i = 0
            while server.metrics()["quire_store_evictions_total"] < 30 and i < 60:
                i += 1
                self.ask(server, [{"role": "user", "content": f"{i} again {LONG}"}], max_tokens=1)
            self.assertGreaterEqual(server.metrics()["quire_store_evictions_total"], 30)
            server.request("POST", "/admin/cache/drop", {})
            after = self.ask(server, first + self.turn(answer, "And another?"), continuation=saved["id"])
            self.assertGreaterEqual(after["usage"]["prompt_tokens_details"]["cached_tokens"], saved["durable_tokens"])
            self.call(server, "DELETE", "/" + saved["id"])
            self.assertEqual(server.metrics()["quire_store_held_bytes"], 0)

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
            short = self.call(server, "POST", "", {"response": answer["id"], "ttl_s": 1})
            pinned = self.call(server, "POST", "", {"response": answer["id"], "pin": True})
            self.assertEqual((pinned["pin"], pinned["expires_at"]), (True, None))
            self.assertEqual(self.call(server, "POST", "", {"response": answer["id"], "pin": True}, 507)["error"]["code"], "no_space")
            deadline = time.monotonic() + 20
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

    def test_a_tenants_bytes_hold_under_concurrency(self):
        made = run("keys", "--bearer", "alice")
        path = os.path.join(self.folder.name, "keys.conf")
        key = {"Authorization": "Bearer " + made.stderr.split()[-1]}
        bytes_most = int(3.5 * 32 * 23044)  # of SmolLM2-135M a row takes 23,040 bytes, its token id 4
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
            f.write("version = 1\n" + made.stdout.replace("    key =", f"    bytes = {bytes_most}\n    key ="))
        with self.serve("--keys", path) as server:
            answer = self.ask(server, list(range(1000, 1020)), path="/v1/completions", headers=key, ignore_eos=True)
            codes = []

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
            self.assertIn("damaged", server.text())
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


if __name__ == "__main__":
    unittest.main()
