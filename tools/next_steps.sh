#!/bin/sh
# What `make run` leaves, and what to try after it.
set -eu

run=$1
cat <<END

In $run: the model (config.json, tokenizer.json, model.safetensors), metrics.jsonl, the curves
loss.svg and perplexity.svg (and .png), samples.json, config.toml, and checkpoint/ to go on from.

Try next:
  let it write     build/heed generate $run --prompt "There once lived a" --temperature 0.8
  on one page      build/heed report $run      then open $run/report.html
  is it right?     build/heed check $run
  look inside      build/heed attention $run --text "The fox said" --layer 0 --head 1
                   build/heed ledger $run
  by hand          build/heed lesson           walks through what a GPT is made of
  only count       build/heed train builtin:stories --model ngram --order 6 --out runs/ngram
                   build/heed compare runs/ngram $run
  train on         build/heed train --resume $run --max-iters 4000 --lr-decay-iters 4000
  your own text    build/heed train YOUR.txt --preset shakespeare-cpu --out runs/mine

YOUR.txt is any text, best a megabyte: 2,000 updates take a minute or two on two cores.
build/heed --help lists every command, build/heed COMMAND --help explains one.
END
