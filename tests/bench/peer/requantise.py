"""Writes a Q4_0 copy of a GGUF file with the peer's own quantiser: the peer has fast products for Q4_0 and none for Q4_1, so the rows
of this file are the ones that count against the peer at its best.   usage: requantise.py MODEL OUT"""
import ctypes
import os
import sys

import llama_cpp as L


@L.llama_log_callback
def quiet(level, text, data):
    pass


def main():
    model, out = sys.argv[1:]
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    p = L.llama_model_quantize_default_params()
    p.ftype = L.LLAMA_FTYPE_MOSTLY_Q4_0
    p.allow_requantize = True
    code = L.llama_model_quantize(model.encode(), (out + ".part").encode(), ctypes.byref(p))
    if code:
        sys.exit(f"requantise: llama.cpp's quantiser refused {model} (code {code})")
    os.rename(out + ".part", out)


main()
