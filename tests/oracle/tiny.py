"""Negative log likelihoods of the tiny models of oracle_test.c, by numpy: writes tests/unit/oracle_vectors.h.

    build/test_oracle_test --write DIR && python3 tests/oracle/tiny.py DIR > tests/unit/oracle_vectors.h
Needs numpy and gguf (README.md). The model files are ours; what they mean is read by the gguf package.
"""
import sys
from pathlib import Path

import numpy as np

from reference import Model, forward, log_softmax

SHAPES, TOKENS = 8, 60
tokens = [(i * 37 + 11 + i * i) % 320 for i in range(TOKENS)]
print("/* oracle_vectors.h - written by tests/oracle/tiny.py (numpy over dequantised weights); do not edit. */")
print(f"static const double oracle_nll[{SHAPES}][{TOKENS - 1}] = {{")
for shape in range(SHAPES):
    rows = log_softmax(forward(Model(Path(sys.argv[1]) / f"shape{shape}.gguf"), tokens, False))
    nll = -rows[np.arange(TOKENS - 1), tokens[1:]]
    print("    {" + ", ".join(f"{x:.5f}" for x in nll) + "},")
print("};")
