#!/bin/sh
# The experiments of 10-423's first homework: a GPT of 6 layers, 6 heads and width 192 learns
# characters at a context of 16, then goes on at 256; plain, with rotary positions, with 2 key/value
# heads, and with both. docs/homework.md has the figures of such a run.
#
#   examples/homework_10423.sh TEXT [FOLDER]
#
# HEED names the program, ITERS the updates of each half (600), BATCH16 and BATCH256 the sequences
# of a batch in either (64 and 4: as many tokens), DTYPE the arithmetic of products (bf16), KEEP=1
# leaves halves that are there already as they are.
set -eu

heed=${HEED:-build/heed}
text=${1:?the text to learn}
out=${2:-runs/homework_10423}
iters=${ITERS:-600}

# minGPT's optimizer: a constant rate, no warm-up.
half() {
  folder=$1
  shift
  if [ -n "${KEEP:-}" ] && [ -e "$folder/model.safetensors" ]; then return; fi
  "$heed" train "$text" --out "$folder" --max-iters "$iters" --learning-rate 5e-4 --min-lr 5e-4 \
    --warmup-iters 0 --beta1 0.9 --beta2 0.95 --weight-decay 0.1 --grad-clip 1 --dropout 0.1 \
    --dtype "${DTYPE:-bf16}" --log-interval 1 "$@"
}

run() {
  name=$1
  shift
  half "$out/$name-16" --n-layer 6 --n-head 6 --n-embd 192 --no-tied --block-size 16 \
    --batch-size "${BATCH16:-64}" "$@"
  # Learned positions beyond 16 begin as random numbers; rotary ones are simply there.
  half "$out/$name-256" --init "$out/$name-16" --block-size 256 --batch-size "${BATCH256:-4}"
}

run learned
run rope --position rope
run gqa --n-kv-head 2
run both --n-kv-head 2 --position rope

echo "training loss over the last 50 updates, and held-out loss after the last:"
for length in 16 256; do
  for name in learned rope gqa both; do
    tail -n 50 "$out/$name-$length/metrics.jsonl" | awk -F '"train_loss":' -v name="$name-$length" '
      { split($2, part, ","); sum += part[1] } END { printf "  %-12s %.3f", name, sum / NR }'
    tail -n 1 "$out/$name-$length/metrics.jsonl" | sed 's/.*"val_loss":\([0-9.]*\).*/   \1/'
  done
done

echo "cache at 256 for each number of key/value heads:"
"$heed" ledger --n-layer 6 --n-embd 192 --n-head 6 --seq 256 | grep -A 4 "^key/value cache"

echo "a layer's attention at 256, forward and backward; then writing with a cache:"
for heads in 6 3 2 1; do
  for mode in attention decode; do
    "$heed" bench --workload gpt-mini --block-size 256 --batch-size 4 --vocab-size 65 --mode $mode \
      --n-kv-head $heads --seconds "${SECONDS_EACH:-1}" | sed -n "s/^gpt-mini /  $heads heads, $mode/p"
  done
done

set -- "$out/learned-256" "$out/rope-256" "$out/gqa-256" "$out/both-256"
"$heed" compare "$@"
"$heed" plot "$@" --metric loss --out "$out/loss.svg" --overwrite --quiet
"$heed" report "$@" --out "$out/report.html" --overwrite
