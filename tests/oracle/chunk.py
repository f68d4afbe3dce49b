"""Chunk files (store/FORMAT.md) by hashlib and xxhash alone: an independent writer and reader.

    chunk.py example                 prints the worked example of FORMAT.md
    chunk.py check FORMAT.md         compares the example in the document, byte by byte
    chunk.py vectors                 prints tests/unit/chunk_vectors.h
    chunk.py both BUILD N            N files each way: ours by `quire inspect`, those of the program (BUILD/tool_chunk_file) by this reader
"""
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

import xxhash

HEAD = "<8sHHBBBB32s32s32sIIHHHHIIQQQ16s"


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def root(fingerprint, tenant=b"", cache=b""):
    salts = struct.pack("<I", len(tenant)) + tenant + struct.pack("<I", len(cache)) + cache
    return hashlib.sha256(b"quire.root.1\0" + fingerprint + salts).digest()


def node(parent, tokens):
    return hashlib.sha256(b"quire.chain.1\0" + parent + struct.pack("<I", len(tokens)) + pack_tokens(tokens)).digest()


def pack_tokens(tokens):
    return struct.pack("<%dI" % len(tokens), *tokens)


def build(fingerprint, parent, tokens, payload, start=0, group=0, extent=1, shard=0, shards=1, members=1, row_bytes=2, tail=False):
    assert len(payload) == members * len(tokens) * row_bytes
    packed = pack_tokens(tokens)
    payload_at = (4096 + len(packed) + 4095) // 4096 * 4096
    head = struct.pack(HEAD, b"QRCHUNK\0", 1 | (0x8000 if tail else 0), 4096, 0x12, 1, 1, 0, fingerprint, parent, node(parent, tokens),
                       start, len(tokens), group, extent, shard, shards, members, row_bytes, 4096, payload_at, len(payload),
                       xxhash.xxh3_128(packed + payload).digest())
    head = head.ljust(4092, b"\0")
    head += struct.pack("<I", crc32c(head))
    return (head + packed).ljust(payload_at, b"\0") + payload


def read(data):
    assert len(data) >= 4096, "shorter than a header"
    (magic, version, header_bytes, digest, fast, kind, zero, fingerprint, parent, chain, start, count, group, extent, shard, shards,
     members, row_bytes, tokens_at, payload_at, payload_bytes, xxh) = struct.unpack_from(HEAD, data)
    assert magic == b"QRCHUNK\0" and version & 0x7FFF == 1 and header_bytes == 4096, "magic or version"
    assert crc32c(data[:4092]) == struct.unpack_from("<I", data, 4092)[0], "header CRC"
    assert (digest, fast, kind, zero) == (0x12, 1, 1, 0) and not any(data[176:4092]), "layout"
    assert 1 <= count <= 4096 and tokens_at == 4096 and payload_at == (4096 + 4 * count + 4095) // 4096 * 4096, "layout"
    assert payload_bytes == members * count * row_bytes and len(data) == payload_at + payload_bytes, "length"
    assert extent in (1, 2) and shard < shards and not any(data[4096 + 4 * count:payload_at]), "layout"
    packed, payload = data[4096:4096 + 4 * count], data[payload_at:]
    assert node(parent, struct.unpack("<%dI" % count, packed)) == chain, "chain"
    assert xxhash.xxh3_128(packed + payload).digest() == xxh, "payload"
    return {"id": hashlib.sha256(data).hexdigest(), "kind": "tail" if version & 0x8000 else "chunk", "fingerprint": fingerprint.hex(),
            "parent": parent.hex(), "chain": chain.hex(), "start": start, "count": count, "group": group, "extent": extent,
            "shard": shard, "shards": shards, "members": members, "row_bytes": row_bytes, "bytes": len(data), "xxh3_128": xxh.hex()}


def example():
    """Three tokens, two members, rows of two fp16 values: 1.0, 2.0, ... 12.0 in file order."""
    fingerprint = bytes(range(32))
    payload = struct.pack("<12e", *range(1, 13))
    return build(fingerprint, root(fingerprint), [1, 2, 3], payload, members=2, row_bytes=4)


def seeded(seed):
    r = random.Random(seed)
    count, members, row_bytes = r.choice([1, 2, 7, 8, 1023, 1024, 1025, r.randint(1, 300)]), r.randint(1, 9), 2 * r.randint(1, 40)
    payload = r.randbytes(count * members * row_bytes)
    return build(r.randbytes(32), r.randbytes(32), [r.randrange(1 << 32) for _ in range(count)], payload, start=r.randint(0, 1000),
                 group=r.randint(0, 3), extent=r.randint(1, 2), shard=0, shards=r.randint(1, 3), members=members, row_bytes=row_bytes,
                 tail=r.random() < 0.3)


def dump(data):
    """Lines of 16 bytes that are not all zero: offset, hex."""
    return ["%08x  %s" % (at, data[at:at + 16].hex(" ")) for at in range(0, len(data), 16) if any(data[at:at + 16])]


def vectors():
    print("/* chunk_vectors.h - chunk files made by tests/oracle/chunk.py (hashlib, xxhash); do not edit. */")
    print("#ifndef CHUNK_VECTORS_H\n#define CHUNK_VECTORS_H\n")
    print("/* Bytes that are not zero, in runs; the rest of the file is. */")
    print("typedef struct chunk_run {\n    uint32_t at, count;\n    const char *bytes;\n} chunk_run_t;")
    print("typedef struct chunk_vector {\n    const char *id; /* SHA-256 of the file */\n    uint32_t bytes, run_count;\n    const chunk_run_t *runs;\n} chunk_vector_t;\n")
    files = [example()] + [s for s in (seeded(i) for i in range(1, 200)) if len(s) < 14000][:5]
    for i, data in enumerate(files):
        print("static const chunk_run_t chunk_runs_%d[] = {" % i)
        at, runs = 0, 0
        while at < len(data):
            if not data[at]:
                at += 1
                continue
            end = at
            while end < len(data) and end - at < 32 and any(data[end:end + 4]):
                end += 1
            print('    {%d, %d, "%s"},' % (at, end - at, "".join("\\x%02x" % b for b in data[at:end])))
            at, runs = end, runs + 1
        print("};")
    print("static const chunk_vector_t chunk_vectors[] = {")
    for i, data in enumerate(files):
        print('    {"%s", %d, sizeof chunk_runs_%d / sizeof *chunk_runs_%d, chunk_runs_%d},' % (hashlib.sha256(data).hexdigest(), len(data), i, i, i))
    print("};\n\n#endif")


def inspected(build, path):
    """What `quire inspect --json` says, under this file's names; None for a damaged file."""
    run = subprocess.run([build + "/quire", "inspect", "--json", path], capture_output=True, text=True)
    said = json.loads(run.stdout)
    assert (run.returncode == 0) == (said["verdict"] == "INTACT"), run
    if run.returncode:
        return None
    offsets = ("file", "payload_offset", "payload_bytes", "verdict", "why", "content_id")
    facts = {name: value for name, value in said.items() if name not in offsets}
    return dict(facts, id=said["content_id"], extent={"whole prefix": 1, "window": 2}[said["extent"]],
                bytes=said["payload_offset"] + said["payload_bytes"])


def both(build, count):
    for seed in range(1, count + 1):
        with tempfile.TemporaryDirectory() as folder:
            path, data = os.path.join(folder, "file"), seeded(seed)
            open(path, "wb").write(data)
            assert inspected(build, path) == read(data), "seed %d: this program's file is read otherwise" % seed
            at = random.Random(seed).randrange(len(data))
            open(path, "wb").write(data[:at] + bytes([data[at] ^ 1]) + data[at + 1:])
            assert inspected(build, path) is None, "seed %d: byte %d was changed and nobody noticed" % (seed, at)
            os.unlink(path)
            subprocess.run([build + "/tool_chunk_file", path, str(seed)], check=True)
            assert inspected(build, path) == read(open(path, "rb").read()), "seed %d: the program's file is read otherwise" % seed
    print("%d files each way agree; %d damaged ones refused" % (count, count))


def main(words):
    if words[:1] == ["example"]:
        data = example()
        print("\n".join(dump(data)))
        for name, value in read(data).items():
            print("%s=%s" % (name, value))
    elif words[:1] == ["check"]:
        text = open(words[1]).read()
        lines = [line for line in text.splitlines() if len(line) > 10 and line[8:10] == "  " and all(c in "0123456789abcdef" for c in line[:8])]
        assert lines == dump(example()), "the example's bytes are not the program's"
        facts = read(example())
        for name in ("id", "chain", "parent", "xxh3_128"):
            assert facts[name] in text, name + " is not in the document"
        print("example: %d lines, id %s" % (len(lines), facts["id"]))
    elif words[:1] == ["vectors"]:
        vectors()
    elif words[:1] == ["both"]:
        both(words[1], int(words[2]))
    else:
        sys.exit(__doc__)


main(sys.argv[1:])
