#!/usr/bin/env bash
# Runs the programs of the end-to-end tests on a real GPU and writes what PyTorch counted, one JSON line a program: the
# figures that the tests expect of the virtual card (tests/e2e/h200.json). About two minutes.
#
#   tools/device/expect.sh FOLDER [NAME…]      PYTHON as needed; JOBS programs at a time (4)
set -u
out=${1:?usage: expect.sh FOLDER [NAME…]}
shift
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
out=$(cd "$out" && pwd)
programs=$here/../../tests/e2e/programs
names=${*:-cnn cnn_benchmark cnn_amp attention_flash attention_efficient attention_math attention_cudnn lstm checkpointing compiled loader expandable cuda_graph read_back}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$programs" || exit 1
one() {  # compiled programs start with empty caches, as everywhere
  TORCHINDUCTOR_CACHE_DIR=$2/$1.inductor TRITON_CACHE_DIR=$2/$1.triton timeout 120 "${PYTHON:-python3}" training.py "$1" > "$2/$1.log" 2>&1 < /dev/null || echo "$1: exit $?, $(tail -n 1 "$2/$1.log")"
}
export -f one
echo $names | tr ' ' '\n' | xargs -P "${JOBS:-4}" -I{} bash -c 'one {} '"$work"
[ $# -gt 0 ] || one out_of_memory "$work"  # takes all of the card: alone
gpus=$(nvidia-smi -L 2> /dev/null | wc -l)
[ "$gpus" -lt 2 ] || one two_gpus "$work"
for log in "$work"/*.log; do
  line=$(grep '^FIGURES ' "$log" | tail -n 1)
  [ -n "$line" ] && echo "{\"name\": \"$(basename "$log" .log)\", \"figures\": ${line#FIGURES }}"
done > "$out/e2e.jsonl"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv > "$out/e2e-card.txt" 2>&1
echo "$(wc -l < "$out/e2e.jsonl") programs measured"
