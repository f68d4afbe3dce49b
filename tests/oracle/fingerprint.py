"""The weights digest and the fingerprint of a model file, by hashlib over what the `gguf` package reads (formats.md).

    python3 tests/oracle/fingerprint.py MODEL.gguf [LINES]
LINES: a file with the sorted key=value lines (as `quire inspect` prints them, without indentation); its SHA-256 is the fingerprint.
"""
import hashlib
import struct
import sys

import gguf

reader = gguf.GGUFReader(sys.argv[1])
digest = hashlib.sha256()
for t in sorted(reader.tensors, key=lambda t: t.name.encode()):
    name = t.name.encode()
    digest.update(struct.pack("<H", len(name)) + name + struct.pack("<II", int(t.tensor_type), len(t.shape)))
    digest.update(b"".join(struct.pack("<Q", int(d)) for d in t.shape))
    digest.update(hashlib.sha256(t.data.tobytes()).digest())
print("weights", digest.hexdigest())
if len(sys.argv) > 2:
    print("fingerprint", hashlib.sha256(open(sys.argv[2], "rb").read()).hexdigest())
