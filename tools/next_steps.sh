#!/bin/sh
# What `make run` leaves, and what to try after it.
set -eu

run=$1
cat <<END

In $run: model.safetensors with its config.json and tokenizer.json, metrics.jsonl,
loss.svg, perplexity.svg (and .png), samples.json, config.toml, checkpoint/.

Try next:
  build/heed generate $run --prompt "There once lived a" --temperature 0.8 --num-samples 3
  build/heed train YOUR.txt --preset shakespeare-cpu --out runs/mine
  build/heed info $run
  build/heed --help
END
