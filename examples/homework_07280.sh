#!/bin/sh
# 07-280's homework, a first GPT: train, look at training loss and perplexity, continue
# several prompts at several temperatures, and write it all on one page, beside two baselines.
#
#   examples/homework_07280.sh TEXT [FOLDER]
#
# HEED names the program, ITERS the updates (2000), PRESET the size (gpt-micro).
set -eu

heed=${HEED:-build/heed}
text=${1:?the text to learn}
out=${2:-runs/homework_07280}
iters=${ITERS:-2000}
preset=${PRESET:-gpt-micro}

"$heed" train "$text" --preset "$preset" --block-size 128 --max-iters "$iters" --out "$out/gpt"
"$heed" train "$text" --preset "$preset" --block-size 128 --max-iters "$iters" \
  --model averaged --out "$out/averaged"
"$heed" train "$text" --model ngram --order 5 --block-size 128 --out "$out/ngram"

"$heed" plot "$out/gpt" --overwrite
for metric in loss perplexity; do
  "$heed" plot "$out/gpt" "$out/averaged" "$out/ngram" --x tokens --metric $metric \
    --out "$out/$metric.svg" --overwrite --quiet >/dev/null
done
"$heed" report "$out/gpt" "$out/averaged" "$out/ngram" --out "$out/report.html" --overwrite \
  --prompt "The " --prompt "What " --prompt "Once " --prompt "I " \
  --temperature 0 --temperature 0.5 --temperature 1 --temperature 1.5
