#!/usr/bin/python3
"""heed against llama.cpp on the same GGUF files, alternating A B A B in one run.

  bench/compare_llama.py LIBRARIES FILE.gguf ... [--rounds 3] [--threads 2]

LIBRARIES is node_modules/@node-llama-cpp/linux-x64/bins/linux-x64 where node-llama-cpp 3.21.1 was
installed. Each round starts both programs anew on every file: a prompt of 16 tokens and the first
token behind it, from the program's start (llama.cpp's is counted without Python's own start, heed's
to its end); 128 tokens behind it; a prompt of 512 tokens, the second one that the program reads.
heed reads bf16 files with --dtype bf16.
Printed: medians over the rounds and heed's share of llama.cpp, above 1 where heed does better.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
HEED = os.environ.get("HEED", os.path.join(HERE, "..", "build", "heed"))


def run(command):
    before = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return time.monotonic() - before, done.stdout


def generate(path, threads, prompts, new):
    # The process that waits for heed knows its peak memory: a helper of its own for each run.
    helper = ("import json,resource,subprocess,sys,time; t=time.monotonic();"
              "d=subprocess.run(sys.argv[1:],capture_output=True,text=True); s=time.monotonic()-t;"
              "print(json.dumps([s,resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss/1024,"
              "d.returncode,d.stdout,d.stderr]))")
    command = [HEED, "generate", path, "--temperature", "0", "--max-tokens", str(new),
               "--threads", str(threads), "--json", "--quiet"]
    for prompt in prompts:
        command += ["--prompt", prompt]
    if "bf16" in os.path.basename(path):
        command += ["--dtype", "bf16"]
    seconds, peak, code, out, error = json.loads(run([sys.executable, "-c", helper] + command)[1])
    if code != 0:
        sys.exit(f"{' '.join(command)} failed:\n{error}")
    return seconds, peak, json.loads(out)["samples"][-1]


def heed(path, threads):
    first, _, _ = generate(path, threads, [" the" * 15], 1)
    _, peak, long = generate(path, threads, [" the" * 15], 128)
    _, _, prompt = generate(path, threads, [" a" * 511, " the" * 511], 1)
    return {"first_token_s": first, "decode_tokens_per_s": long["decode_tokens_per_second"],
            "prefill_tokens_per_s": prompt["prefill_tokens_per_second"], "peak_rss_mib": peak}


def llama(libraries, path, threads):
    return json.loads(run(["/usr/bin/python3", os.path.join(HERE, "llama_cpp.py"), libraries, path,
                           "--threads", str(threads)])[1])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("libraries")
    p.add_argument("models", nargs="+")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    print(f"{'file':<24} {'':<22} {'heed':>9} {'llama.cpp':>9}  ratio (range)")
    for path in a.models:
        rows = [(heed(path, a.threads), llama(a.libraries, path, a.threads))
                for _ in range(a.rounds)]
        for key in rows[0][0]:
            less = key in ("first_token_s", "peak_rss_mib")
            ratios = [t[key] / h[key] if less else h[key] / t[key] for h, t in rows]
            ours, theirs = (statistics.median(row[who][key] for row in rows) for who in (0, 1))
            print(f"{os.path.basename(path):<24} {key:<22} {ours:>9.4g} {theirs:>9.4g}  "
                  f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
                  flush=True)


if __name__ == "__main__":
    main()
