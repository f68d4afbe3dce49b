"""What a person meets at the edges: bad files, bad options, ports in use, signals, clients that leave."""
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from quire_program import MODEL, PATIENCE_S, QUIRE, Server, free_port, generate, run


class CommandLine(unittest.TestCase):
    def refused(self, *words, has):
        done = run(*words, check=False, timeout=PATIENCE_S)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        for part in has:
            self.assertIn(part, done.stderr)

    def test_missing_model(self):
        self.refused("serve", "--model", "/nowhere/m.gguf", has=["/nowhere/m.gguf"])
        self.refused("serve", has=["--model"])

    def test_unknown_option_names_the_nearest(self):
        self.refused("serve", "--pagess", "3", has=["pagess", "pages"])
        self.refused("serve", "--threads", "many", has=["threads"])
        self.refused("serve", "--max-lanes", "0", has=["max", "lanes"])

    def test_options_of_one_command(self):
        """`--name=value`, a value that is missing, and numbers that are not whole: as with the options that all commands have."""
        self.refused("generate", "--model", MODEL, "--prompt", has=["--prompt needs a value"])
        self.refused("generate", "--model", MODEL, "--json=1", has=["--json", "no value"])
        self.refused("generate", "--model", MODEL, "--max-tokens", "1.5", has=["--max-tokens", "whole"])
        self.refused("generate", "--model", MODEL, "--top-k=-1", has=["--top-k", "whole"])
        self.refused("generate", "--model", MODEL, "--prompt=a=b", "--tokens=1", has=["--prompt", "--tokens"])  # both were taken
        self.refused("bench", "--model", MODEL, "--decode", "1.5", has=["--decode", "whole"])
        self.refused("bench", "--model", MODEL, "--decode", has=["--decode needs a value"])

    def test_topology_files_and_keys(self):
        """What is missing is said with the system's reason, and before a model is loaded."""
        self.refused("node", "--topology", "/nowhere/t.conf", "--node", "a", "--model", "/nowhere/m.gguf", has=["/nowhere/t.conf", "No such file"])
        deploy = os.path.join("..", "..", "examples", "deploy", "edge-device.conf")
        self.refused("node", "--topology", deploy, "--node", "device0", "--model", "/nowhere/m.gguf", has=["device0.secret", "quire keys"])
        self.refused("keys", "/nowhere/keys", "edge", has=["/nowhere/keys", "No such file"])

    def test_unknown_subcommand(self):
        self.refused("srve", has=["serve"])

    def test_truncated_model(self):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as f, open(MODEL, "rb") as whole:
            f.write(whole.read(1 << 20))
            f.flush()
            self.refused("serve", "--model", f.name, has=[f.name])
            self.refused("inspect", f.name, has=[f.name])

    def test_not_a_model(self):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as f:
            f.write(b"hello")
            f.flush()
            self.refused("serve", "--model", f.name, has=[f.name])

    def test_chunk_file(self):
        with open("../fuzz/seeds/chunk/example", "rb") as f:
            data = f.read()
        with tempfile.NamedTemporaryFile() as f:
            f.write(data)
            f.flush()
            self.assertIn("INTACT", run("inspect", f.name).stdout)
            f.seek(8200)
            f.write(b"x")
            f.flush()
            self.refused("inspect", f.name, has=[f.name, "damaged", "PAYLOAD"])
            f.truncate(5000)
            self.refused("inspect", "--json", f.name, has=[f.name, "damaged", "TRUNCATED"])

    def test_port_in_use(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            port = s.getsockname()[1]
            done = run("serve", "--model", MODEL, "--listen", f"127.0.0.1:{port}", check=False, timeout=PATIENCE_S)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(str(port), done.stderr)

    def test_help(self):
        for words in ([], ["serve"], ["generate"], ["bench"], ["inspect"], ["node"], ["tap"], ["doctor"], ["keys"], ["replay"], ["simulate"], ["catalog"],
                      ["catalog", "query"], ["continuation"], ["continuation", "list"], ["inspect", "../fuzz/seeds/chunk/example"]):
            for option in ("--help", "-h"):
                self.assertIn("usage: quire", run(*words, option).stdout)

    def test_version(self):
        self.assertRegex(run("--version").stdout, r"^quire \d+\.\d+\.\d+, protocol \d+, schema [0-9a-f]{16}\n$")

    def test_doctor(self):
        done = run("doctor", timeout=120)
        self.assertIn("avx", done.stdout.lower())
        self.assertIn("cpu         moving state beside computing: interference-only", done.stdout)


class Generate(unittest.TestCase):
    def test_json_object(self):
        out = generate("--prompt", "The capital of France is", "--max-tokens", 8, "--temperature", 0)
        self.assertEqual(set(out), {"text", "prompt_tokens", "completion_tokens", "finish_reason", "cached_tokens", "timings"})
        self.assertEqual(set(out["timings"]), {"load_ms", "ttft_ms", "prefill_tokens_per_s", "decode_tokens_per_s"})
        self.assertEqual(out["finish_reason"], "length")
        self.assertEqual(len(out["completion_tokens"]), 8)
        same = generate("--tokens", ",".join(map(str, out["prompt_tokens"])), "--max-tokens", 8, "--temperature", 0)
        self.assertEqual(same["completion_tokens"], out["completion_tokens"])
        self.assertEqual(same["text"], out["text"])

    def test_contiguous_decoder_agrees(self):
        words = ["--prompt", "Once upon a time", "--max-tokens", 12, "--temperature", 0]
        self.assertEqual(generate("--contiguous", *words)["text"], generate(*words)["text"])

    def test_settings_do_not_change_bits(self):
        words = ["--prompt", "In a small village by the sea there lived " * 8, "--max-tokens", 16, "--temperature", 0.9, "--seed", 11]
        first = generate(*words)
        for options in (["--threads", 1], ["--page-tokens", 64], ["--prefill-tile", 7], ["--isa", "scalar", "--prefill-tile", 64], ["--scramble", 1, "--poison", 1]):
            self.assertEqual(generate(*words, *options)["completion_tokens"], first["completion_tokens"], options)


class Ends(unittest.TestCase):
    def test_SD_01_signals_end_the_server(self):
        for signals in ([signal.SIGTERM], [signal.SIGINT]):
            with Server("--stop-budget-ms", 5000 * PATIENCE_S) as server:
                server.complete(prompt="hi", max_tokens=2)
                self.assertEqual(server.stop(signals[0]), 0)

    def test_SD_01_second_signal_ends_at_once(self):
        """Nobody reads, so the stream under way would keep a graceful stop until its budget is over."""
        with Server("--stop-budget-ms", 5000 * PATIENCE_S, "--client-timeout-ms", 600000, "--isa", "scalar", "--threads", 1) as server:
            s = self.ask_raw(server, prompt="word " * 3000, max_tokens=2000, stream=True, ignore_eos=True)
            server.settle("quire_lanes_open", 1)
            server.process.send_signal(signal.SIGINT)
            while True:  # until it has heard the first one, which lets what is under way end
                try:
                    if server.get("/readyz")[0] == 503:
                        break
                except OSError:
                    break
                time.sleep(0.02)
            server.process.send_signal(signal.SIGINT)
            self.assertEqual(server.process.wait(PATIENCE_S), 130)
            s.close()

    def ask_raw(self, server, receive_bytes=None, **body):
        """Sends a completion and leaves the answer unread."""
        s = socket.socket()
        if receive_bytes:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        s.connect(("127.0.0.1", server.port))
        text = json.dumps(body).encode()
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        return s

    def test_stop_is_heard_during_a_long_prefill(self):
        """The budget ends in the middle of a batch: the device gives it up, nothing computes on memory that goes."""
        with Server("--stop-budget-ms", 100, "--threads", 2, "--isa", "scalar", "--prefill-tile", 4096) as server:
            s = self.ask_raw(server, prompt="a b c d " * 1800, max_tokens=9)
            server.settle("quire_lanes_open", 1)
            self.assertEqual(server.stop(signal.SIGINT), 0)  # the batch itself would take minutes
            s.close()
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as prompt:
            prompt.write("a b c d " * 1800)
            prompt.flush()
            one = subprocess.Popen([QUIRE, "generate", "--model", MODEL, "--prompt-file", prompt.name], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            heard = 0  # while the model loads the signal just ends it; then the run blocks it for good and waits for it
            while heard < 10 and one.poll() is None:
                with open(f"/proc/{one.pid}/status") as status:
                    blocked = int(re.search(r"SigBlk:\s*(\w+)", status.read())[1], 16)
                heard = heard + 1 if blocked >> (signal.SIGINT - 1) & 1 else 0
                time.sleep(0.03)
            one.send_signal(signal.SIGINT)
            self.assertIn(b"stopped before an answer came", one.communicate(timeout=PATIENCE_S)[1])
            self.assertIn(one.returncode, (1, 128 + signal.SIGINT))

    def test_stream_that_nobody_reads_is_cut(self):
        with Server("--stream-bytes", 4096, "--context", 4096) as server:
            s = self.ask_raw(server, 2048, prompt="hi", max_tokens=4000, ignore_eos=True, stream=True, logprobs=1)
            server.settle("quire_slow_clients_total", 1, 300)
            server.settle("quire_lanes_open", 0)
            s.close()

    def test_lost_output_is_an_error(self):
        with open("/dev/full", "w") as full:
            for words in (["--help"], ["generate", "--model", MODEL, "--prompt", "hi", "--max-tokens", "2", "--json"], ["doctor"]):
                done = subprocess.run([QUIRE, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)
                self.assertEqual(done.returncode, 1, words)
                self.assertIn("standard output could not be written", done.stderr)

    def test_client_that_leaves_cancels_its_work(self):
        with Server("--max-lanes", 2, "--no-store") as server:  # no captures: all pages are back as soon as the lanes are closed
            for stream in (True, False):
                s = socket.create_connection(("127.0.0.1", server.port))
                body = json.dumps({"prompt": "word " * 4000, "max_tokens": 500, "stream": stream, "ignore_eos": True}).encode()
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                server.settle("quire_worker_requests_open", 1)
                s.close()
                server.settle("quire_worker_requests_open", 0)
                server.settle("quire_lanes_open", 0)
            pages = server.drop_cache()
            self.assertEqual(pages["pages_free"], pages["pages_pool"])


if __name__ == "__main__":
    unittest.main()
