#!/usr/bin/python3
"""heed against PyTorch on the same work, alternating A B A B in one run.

  bench/compare.py [--rounds 3] [--seconds 3] [--dtype f32|bf16] [--mode train|prefill|decode]
                   [WORKLOAD ...]

Each round starts both programs anew and takes the median time of a training step, of reading a
prompt of block_size, or of writing 128 tokens behind one of 16 with a cache. PyTorch gets the better
of 1 and 2 threads in every round, the OpenMP build of OpenBLAS, and the memory settings that
torch_gpt.py chooses. Printed: medians over the rounds, and the ratio round by round.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
WORKLOADS = ["femto", "pico", "char-small", "gpt-mini"]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def heed(workload, threads, seconds, dtype, mode):
    out = run([os.path.join(HERE, "..", "build", "heed"), "bench", "--workload", workload, "--json",
               "--quiet", "--threads", str(threads), "--seconds", str(seconds), "--dtype", dtype,
               "--mode", mode])
    return json.loads(out)["rows"][0]


def torch(workload, threads, seconds, dtype, mode):
    out = run(["/usr/bin/python3", os.path.join(HERE, "torch_gpt.py"), "--config", workload,
               "--threads", str(threads), "--seconds", str(seconds), "--dtype", dtype,
               "--mode", mode])
    row = json.loads(out.strip().splitlines()[-1])
    if mode == "decode":
        row["ms"] *= 128  # tokens, as heed counts them
    return row


def main():
    p = argparse.ArgumentParser()
    p.add_argument("workloads", nargs="*", default=WORKLOADS)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=3.0)
    p.add_argument("--dtype", choices=["f32", "bf16"], default="f32",
                   help="of both: bf16 is PyTorch's autocast, or a model in bfloat16 but in training")
    p.add_argument("--mode", choices=["train", "prefill", "decode"], default="train")
    a = p.parse_args()
    print(f"{a.mode + ', ' + a.dtype:<20} {'heed ms':>9} {'torch ms':>9} {'heed tok/s':>11}"
          f" {'torch tok/s':>11} {'heed MiB':>9} {'torch MiB':>9}  {'torch/heed (range)'}")
    for workload in a.workloads:
        rows = []
        for _ in range(a.rounds):
            ours = heed(workload, 2, a.seconds, a.dtype, a.mode)
            theirs = min((torch(workload, threads, a.seconds, a.dtype, a.mode) for threads in (1, 2)),
                         key=lambda row: row["ms"])
            rows.append((ours, theirs))
        ratios = [t["ms"] / h["ms"] for h, t in rows]
        mid = lambda key, who: statistics.median(row[who][key] for row in rows)
        print(f"{workload:<20} {mid('ms', 0):>9.3f} {mid('ms', 1):>9.3f} {mid('tokens_per_s', 0):>11,.0f}"
              f" {mid('tokens_per_s', 1):>11,.0f} {mid('peak_rss_mib', 0):>9.1f}"
              f" {mid('peak_rss_mib', 1):>9.1f}  {statistics.median(ratios):.2f}"
              f" ({min(ratios):.2f}-{max(ratios):.2f})", flush=True)


if __name__ == "__main__":
    main()
