#!/usr/bin/python3
"""Causal attention of one layer written out in PyTorch, forward and backward: the peer of
`heed bench --mode attention`. Scores, mask, softmax and weighted sum are separate operations, as in
nanoGPT without its fused kernel (which torch 1.13 does not have on processors).

  bench/torch_attention.py [--heads 12] [--width 768] [--block 4096] [--batch 1] [--threads 2]

One JSON line comes out: the median and least milliseconds, and the process's peak memory.
"""
import argparse
import json
import math
import os
import resource
import statistics
import sys
import time

OPENBLAS = "/usr/lib/x86_64-linux-gnu/openblas-openmp/libblas.so.3"


def main():
    p = argparse.ArgumentParser()
    for name, value in (("heads", 12), ("width", 768), ("block", 4096), ("batch", 1), ("threads", 2)):
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--seconds", type=float, default=3.0)
    a = p.parse_args()
    if os.path.exists(OPENBLAS) and os.environ.get("LD_PRELOAD") != OPENBLAS:
        # The OpenMP build shares PyTorch's threads; the loader must see it before Python starts.
        os.environ.update(LD_PRELOAD=OPENBLAS, OMP_NUM_THREADS=str(a.threads))
        os.execv(sys.executable, [sys.executable] + sys.argv)
    import torch

    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    B, T, H, D = a.batch, a.block, a.heads, a.width // a.heads
    q, k, v = (torch.rand(B, T, H, D).sub_(0.5).requires_grad_() for _ in range(3))
    dz = torch.rand(B, T, H, D).sub_(0.5)
    hidden = torch.ones(T, T, dtype=torch.bool).triu_(1)

    def step():
        heads = [x.transpose(1, 2) for x in (q, k, v)]
        scores = heads[0] @ heads[1].transpose(2, 3) / math.sqrt(D)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        z = (weights @ heads[2]).transpose(1, 2)
        z.backward(dz)
        q.grad = k.grad = v.grad = None

    times = []
    step()
    end = time.perf_counter() + a.seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    print(json.dumps({"ms": statistics.median(times) * 1e3, "ms_min": min(times) * 1e3,
                      "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


if __name__ == "__main__":
    main()
