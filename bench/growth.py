#!/usr/bin/python3
"""How the cost of a training step grows, of heed and of PyTorch, one chart for each size that grows.

  bench/growth.py [--seconds 1] [--folder docs/benchmarks] [SWEEP ...]

A sweep changes one size of a model of 4 layers, 4 heads, width 128, block 64, batch 12 and 65
tokens. Each point starts both programs anew, one after the other. Charts are microseconds a token
against that size, drawn by gnuplot; tables go to standard output as Markdown.
"""
import argparse
import json
import os
import subprocess

from compare import HERE, run

BASE = {"layers": 4, "heads": 4, "width": 128, "block": 64, "batch": 12}
HEED = {"layers": "n-layer", "heads": "n-head", "width": "n-embd", "block": "block-size",
        "batch": "batch-size"}
# Sizes, and the largest that PyTorch is asked for: its scores take memory with the square of block.
SWEEPS = {
    "block": ([64, 128, 256, 512, 1024, 2048, 4096, 8192], 1024),
    "width": ([32, 64, 128, 256, 512, 1024], 1024),
    "layers": ([1, 2, 4, 8, 16], 16),
    "batch": ([1, 2, 4, 8, 16, 32, 64], 64),
    "threads": ([1, 2], 2),
}
TITLES = {"block": "tokens of a sequence (T), one sequence", "width": "width (C)",
          "layers": "layers", "batch": "sequences of a batch (B)", "threads": "threads"}


def sizes_of(sweep, value):
    sizes = dict(BASE, threads=2)
    sizes[sweep] = value
    if sweep == "block":
        sizes["batch"] = 1
    return sizes


def heed(sizes, seconds):
    command = [os.path.join(HERE, "..", "build", "heed"), "bench", "--workload", "char-small",
               "--json", "--quiet", "--seconds", str(seconds), "--threads", str(sizes["threads"])]
    for name, flag in HEED.items():
        command += ["--" + flag, str(sizes[name])]
    return json.loads(run(command))["rows"][0]["ms"]


def torch(sizes, seconds):
    command = ["/usr/bin/python3", os.path.join(HERE, "torch_gpt.py"), "--config", "char-small",
               "--seconds", str(seconds)]
    for name, value in sizes.items():
        command += ["--" + name, str(value)]
    return json.loads(run(command).strip().splitlines()[-1])["ms"]


def draw(sweep, rows, path):
    both = [row for row in rows if row[2] is not None]
    script = f"""set terminal svg size 640,400 font 'sans-serif,13' background rgb 'white'
set output '{path}'
set logscale xy 2
set xlabel '{TITLES[sweep]}'
set ylabel 'microseconds a token'
set key top left
set rmargin 5
set grid
set xtics ({', '.join(str(row[0]) for row in rows)})
plot '-' using 1:2 with linespoints lw 2 pt 7 title 'heed', \\
     '-' using 1:2 with linespoints lw 2 pt 5 title 'PyTorch'
"""
    for chosen, column in ((rows, 1), (both, 2)):
        script += "".join(f"{row[0]} {row[column]}\n" for row in chosen) + "e\n"
    subprocess.run(["gnuplot"], input=script, text=True, check=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("sweeps", nargs="*", default=list(SWEEPS))
    p.add_argument("--seconds", type=float, default=1.0)
    p.add_argument("--folder", default=os.path.join(HERE, "..", "docs", "benchmarks"))
    a = p.parse_args()
    os.makedirs(a.folder, exist_ok=True)
    for sweep in a.sweeps:
        values, most = SWEEPS[sweep]
        print(f"| {sweep} | heed µs a token | PyTorch | ratio |\n|---|---|---|---|", flush=True)
        rows = []
        for value in values:
            sizes = sizes_of(sweep, value)
            tokens = sizes["batch"] * sizes["block"]
            ours = heed(sizes, a.seconds) * 1e3 / tokens
            theirs = torch(sizes, a.seconds) * 1e3 / tokens if value <= most else None
            rows.append((value, ours, theirs))
            shown = ("", "") if theirs is None else (f"{theirs:.1f}", f"{theirs / ours:.2f}")
            print(f"| {value} | {ours:.1f} | {shown[0]} | {shown[1]} |", flush=True)
        print(flush=True)
        draw(sweep, rows, os.path.join(a.folder, sweep + ".svg"))


if __name__ == "__main__":
    main()
