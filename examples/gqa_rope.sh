#!/bin/sh
# Grouped queries and rotary positions, as 10-423 has them in its first homework: a GPT of 6 layers,
# 6 heads and width 192 learns characters at a context of 16, then goes on at 256; plain, with
# rotary positions, with 2 key/value heads, and with both.
#
#   examples/gqa_rope.sh TEXT [FOLDER]
#
# HEED names the program, ITERS the updates of each half (600), BATCH the sequences of a batch (64).
set -eu

heed=${HEED:-build/heed}
text=${1:?the text to learn}
out=${2:-runs/gqa_rope}
iters=${ITERS:-600}
batch=${BATCH:-64}

# minGPT's optimizer: a constant rate, no warm-up.
half() {
  "$heed" train "$text" --batch-size "$batch" --max-iters "$iters" --learning-rate 5e-4 \
    --min-lr 5e-4 --warmup-iters 0 --beta2 0.95 --log-interval 1 --eval-interval "$iters" "$@"
}

run() {
  name=$1
  shift
  half --out "$out/$name-16" --n-layer 6 --n-head 6 --n-embd 192 --no-tied --dropout 0.1 \
    --block-size 16 "$@"
  # Learned positions beyond 16 begin as random numbers; rotary ones are simply there.
  half --out "$out/$name-256" --init "$out/$name-16" --block-size 256
}

run learned
run rope --position rope
run gqa --n-kv-head 2
run both --n-kv-head 2 --position rope

echo "training loss over the last 50 updates at 256, and held-out loss:"
for name in learned rope gqa both; do
  tail -n 50 "$out/$name-256/metrics.jsonl" | awk -F '"train_loss":' -v name="$name" '
    { split($2, part, ","); sum += part[1] } END { printf "  %-8s %.3f", name, sum / NR }'
  tail -n 1 "$out/$name-256/metrics.jsonl" | sed 's/.*"val_loss":\([0-9.]*\).*/   \1/'
done

echo "attention at 256 for each number of key/value heads:"
for heads in 6 3 2 1; do
  "$heed" ledger --n-layer 6 --n-embd 192 --n-head 6 --n-kv-head $heads --seq 256 |
    grep "<- this one"
done

set -- "$out/learned-256" "$out/rope-256" "$out/gqa-256" "$out/both-256"
"$heed" compare "$@"
"$heed" plot "$@" --out "$out/loss.svg" --overwrite --quiet
"$heed" report "$@" --out "$out/report.html" --overwrite
