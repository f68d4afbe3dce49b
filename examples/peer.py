#!/usr/bin/env python3
"""A node of a Quire mesh in another language: it takes the place of an edge's router, offers one request to a worker over TCP and prints what
comes back. Everything it knows of messages it reads from messages/README.md, which is generated from the schema.

    pip install pyzmq msgpack
    build/quire node --topology examples/deploy/python-peer.conf --node device0 --model M.gguf &
    examples/peer.py --tokens 504,3575,282,4649,314 --max-tokens 16

With CURVE: --secret FILE (made by `quire keys`) and --server-key=KEY, the public key of the other node in the topology file (with '=': a
key may begin with '-').
"""
import argparse
import json
import os
import random
import re
import struct
import sys
import time

import msgpack
import zmq

README = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "messages", "README.md")
PROBE_S = 30  # most time a probe may take
PACKED = {"u32s": "I", "u64s": "Q"}


class Document:
    """messages/README.md as tables: messages by name and number, roles, the schema hash."""

    def __init__(self, path=README):
        with open(path, encoding="utf-8") as f:
            text = f.read()
        rows = json.loads(re.search(r"```json\n(.*?)```", text, re.S)[1])
        self.by_name = {row["name"]: row for row in rows}
        self.by_number = {row["number"]: row for row in rows}
        self.schema_hash = int(re.search(r"Schema hash \(link_hello\): (0x[0-9a-f]+)", text)[1], 16)
        self.roles = {name: int(number) for number, name in re.findall(r"^\| (\d+) \| (\w+) \|$", text, re.M)}

    def address(self, node, device, role, instance=0):
        return node << 32 | device << 24 | self.roles[role] << 16 | instance

    def encode(self, name, sender, to, epoch, sequence, **fields):
        row = self.by_name[name]
        unknown = set(fields) - {field for field, _, _ in row["fields"]}
        if unknown:
            raise ValueError(f"{name} has no field {unknown.pop()}")
        head = [row["number"], 1, sender, to, epoch, sequence]
        return msgpack.packb(head + [self.pack(kind, fields.get(field)) for field, kind, _ in row["fields"]])

    def pack(self, kind, value):
        if kind in PACKED:
            value = value or []
            return struct.pack(f"<{len(value)}{PACKED[kind]}", *value)
        return value or (b"" if kind == "bytes" else bytes(32) if kind == "hash" else 0)

    def decode(self, frame):
        """(name, from, to, epoch, fields)"""
        number, _, sender, to, epoch, _, *values = msgpack.unpackb(frame)
        row = self.by_number[number]
        fields = {}
        for i, (field, kind, _) in enumerate(row["fields"]):
            value = values[i] if i < len(values) else b"" if kind in PACKED or kind == "bytes" else 0
            fields[field] = list(struct.unpack(f"<{len(value) // struct.calcsize(PACKED[kind])}{PACKED[kind]}", value)) if kind in PACKED else value
        return row["name"], sender, to, epoch, fields


class Link:
    """One connection to another node and its session."""

    def __init__(self, document, endpoint, node, peer, secret=None, server_key=None, chatty=False):
        self.document, self.node, self.peer, self.chatty = document, node, peer, chatty
        self.epoch, self.session = time.time_ns(), random.getrandbits(63) | 1
        self.sequences, self.echo, self.up, self.sent = {}, 0, False, 0
        self.chunk_tokens, self.fingerprints = 0, b""
        self.said_hello = 0.0
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.ROUTING_ID, b"n%d" % node)
        self.socket.setsockopt(zmq.LINGER, 200)
        if secret:
            self.socket.curve_secretkey, self.socket.curve_serverkey = secret, server_key
            self.socket.curve_publickey = zmq.curve_public(secret)
        self.socket.connect(endpoint)

    def say(self, name, sender, to, **fields):
        self.sequences[sender, to] = self.sequences.get((sender, to), 0) + 1
        if self.chatty:
            print(f"<-- {name} {fields}", file=sys.stderr)
        self.sent += 1
        self.socket.send(self.document.encode(name, sender, to, self.epoch, self.sequences[sender, to], **fields))

    def hello(self):
        self.said_hello = time.monotonic()
        mine, other = (self.document.address(node, 0, "uplink") for node in (self.node, self.peer))
        self.socket.send(self.document.encode("link_hello", mine, other, self.epoch, 1, protocol=1, schema_hash=self.document.schema_hash,
                                              node=self.node, node_epoch=self.epoch, session=self.session, echo=self.echo,
                                              chunk_tokens=self.chunk_tokens, fingerprints=self.fingerprints, sent=self.sent))

    def on_hello(self, hello):
        if hello["schema_hash"] != self.document.schema_hash:
            raise SystemExit("peer: the other node has another message schema; take messages/README.md of its build")
        if self.up and (hello["session"] != self.echo or hello["echo"] != self.session):
            raise SystemExit("peer: the other node ended the session")
        news = hello["session"] != self.echo or hello["echo"] != self.session
        self.echo, self.chunk_tokens, self.fingerprints = hello["session"], hello["chunk_tokens"], hello["fingerprints"]
        self.up = hello["echo"] == self.session
        if news:
            self.hello()

    def receive(self, timeout_s):
        """The next message that is no hello, or None; keeps the session alive meanwhile."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if self.echo and time.monotonic() - self.said_hello > 0.2:  # the other speaks first: its hello shows what ours must carry
                self.hello()
            if not self.socket.poll(50):
                continue
            name, sender, _, _, fields = self.document.decode(self.socket.recv())
            if name == "link_hello":
                self.on_hello(fields)
                if self.up:
                    return None
                continue
            if self.chatty:
                print(f"--> {name} {fields}", file=sys.stderr)
            return name, sender, fields
        return None

    def open(self, timeout_s=30):
        end = time.monotonic() + timeout_s
        while not self.up:
            self.receive(0.5)
            if time.monotonic() > end:
                raise SystemExit("peer: the other node does not answer; is it running, and do both name the same topology and keys?")


def generate(link, worker, prompt, max_tokens, on_tokens, temperature=0.0, seed=0, timeout_s=120):
    """Offers one request to the worker; tokens as they come. Returns all of them and the QR_FINISH_* of the end."""
    router = link.document.address(link.node, 0, "router")
    bits = lambda number: struct.unpack("<I", struct.pack("<f", number))[0]  # noqa: E731
    request_id, answer, end = random.getrandbits(40) << 16 | 1, [], time.monotonic() + timeout_s
    link.say("offer", router, worker, request_id=request_id, attempt=1, generated_from=len(prompt), tokens=prompt, max_tokens=max_tokens,
             temperature_bits=bits(temperature), top_p_bits=bits(1.0), seed=seed)
    while time.monotonic() < end:
        message = link.receive(0.5)
        if message is None:
            continue
        name, sender, fields = message
        if name == "offer_refused":
            raise SystemExit(f"peer: the worker refused the offer, reason {fields['reason']} (base/error.h)")
        if name != "tokens" or sender != worker:
            continue
        at, ids, attempts, wanted, finish = 0, [], [], [], 0
        for i, (number, attempt, index, count) in enumerate(zip(*(fields[f] for f in ("request_ids", "attempts", "indexes", "counts")))):
            tokens = fields["tokens"][at : at + count]
            at += count
            if number != request_id or attempt != 1:
                continue  # left out of the answer: not wanted
            if index == len(answer):  # else a repeat: what is expected is said again
                answer += tokens
                on_tokens(tokens)
                finish = fields["finishes"][i]
            ids, attempts, wanted = ids + [number], attempts + [attempt], wanted + [len(answer)]
        link.say("tokens_taken", router, worker, request_ids=ids, attempts=attempts, indexes=wanted)
        if finish:
            return answer, finish
    raise SystemExit(f"peer: no end within {timeout_s} s")


def u32(word):
    if not word.strip().isdecimal() or int(word) >= 1 << 32:
        raise argparse.ArgumentTypeError(f"'{word}' is no number from 0 to {(1 << 32) - 1}")
    return int(word)


def u32s(words):
    return [u32(word) for word in words.split(",")]


def secret_of(path):
    try:
        with open(path, "rb") as f:
            key = f.read().strip()
        zmq.curve_public(key)
        return key
    except (OSError, ValueError, zmq.ZMQError) as error:
        raise argparse.ArgumentTypeError(f"'{path}' has no CURVE secret key ({error}); make one with `quire keys`")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoint", default="tcp://127.0.0.1:7711", help="where the other node listens (control)")
    parser.add_argument("--node", type=int, default=1, help="our id in its topology file")
    parser.add_argument("--peer", type=int, default=2, help="its id")
    parser.add_argument("--tokens", type=u32s, required=True, help="prompt as token ids, 1,2,3")
    parser.add_argument("--max-tokens", type=u32, default=16)
    parser.add_argument("--secret", type=secret_of, help="file of our CURVE secret key")
    parser.add_argument("--server-key", help="CURVE public key of the other node; --server-key=KEY where it begins with '-'")
    parser.add_argument("--chatty", action="store_true", help="show every message on stderr")
    words = parser.parse_args()
    if words.secret and len(words.server_key or "") != 40:
        parser.error("--secret needs --server-key=KEY, the 40 characters behind `public` of the other node in the topology file")
    document = Document()
    link = Link(document, words.endpoint, words.node, words.peer, words.secret, (words.server_key or "").encode(), words.chatty)
    link.open()
    worker = document.address(words.peer, 0, "worker")
    link.say("probe", document.address(words.node, 0, "router"), worker, probe_id=7)  # walks to the device and back
    end = time.monotonic() + PROBE_S
    while (message := link.receive(1)) is None or message[0] != "probe_done":
        if time.monotonic() >= end:
            sys.exit(f"peer: node {words.peer} did not answer a probe within {PROBE_S} s; is its device ready?")
    show = lambda tokens: print(*tokens, sep="\n", end="\n" if tokens else "", flush=True)  # noqa: E731
    _, finish = generate(link, worker, words.tokens, words.max_tokens, show)
    print(f"finish {finish}")


if __name__ == "__main__":
    main()
