"""S11: a prompt in tiles of 512 rows beside row by row, same model and threads. Exit 1 below 4 times.   usage: tiles.py QUIRE MODEL"""
import json
import subprocess
import sys


def rate(tile):
    words = [sys.argv[1], "bench", "--model", sys.argv[2], "--prefill-tile", str(tile), "--repeats", "3", "--decode", "8", "--long", "16", "--streams", "1", "--json"]
    rows = json.loads(subprocess.run(words, capture_output=True, text=True, check=True, timeout=300).stdout)["rows"]
    return next(r["tokens_per_s"] for r in rows if r["row"] == "prefill")


large, small = rate(512), rate(1)
print(f"prefill of 512 tokens: tile 512 {large:.0f} tokens/s, tile 1 {small:.0f} tokens/s, ratio {large / small:.1f}")
sys.exit(0 if large >= 4 * small else 1)
