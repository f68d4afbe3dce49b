"""S11: a prompt in tiles of 512 rows beside row by row, same model and threads, in turns; median of the turns' ratios, for rates of a
shared machine change by the second. Exit 1 below 4 times.   usage: tiles.py QUIRE MODEL [TURNS]"""
import json
import statistics
import subprocess
import sys


def rate(tile):
    words = [sys.argv[1], "bench", "--model", sys.argv[2], "--prefill-tile", str(tile), "--repeats", "1", "--decode", "8", "--long", "16", "--streams", "1", "--json"]
    rows = json.loads(subprocess.run(words, capture_output=True, text=True, check=True, timeout=300).stdout)["rows"]
    return next(r["tokens_per_s"] for r in rows if r["row"] == "prefill")


pairs = [(rate(512), rate(1)) for _ in range(int(sys.argv[3]) if len(sys.argv) > 3 else 5)]
large, small = (statistics.median(column) for column in zip(*pairs))
ratio = statistics.median(a / b for a, b in pairs)
print(f"prefill of 512 tokens, {len(pairs)} turns: tile 512 {large:.0f} tokens/s, tile 1 {small:.0f} tokens/s, ratio {ratio:.1f}"
      f" ({', '.join(f'{a / b:.1f}' for a, b in pairs)})")
sys.exit(0 if ratio >= 4 else 1)
