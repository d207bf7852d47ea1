#!/usr/bin/env bash
# For a machine with a real card: what its driver answers against what the virtual one says for the same card, query by query.
#
#   tests/gpu/compare_driver.sh BUILD [SECTION…]     exits with 1 if an answer differs (addresses aside)
#
# The real card is described by `tonnage gpus --measure`; both drivers answer the same program, tools/device/answers.cpp.
set -eu
build=$(cd "${1:?usage: compare_driver.sh BUILD [SECTION…]}" && pwd); shift
here=$(cd "$(dirname "$0")" && pwd)
sections=("$@"); [ ${#sections[@]} -gt 0 ] || sections=(device memory pointers errors graphs resources)
real=${REAL_LIBCUDA:-$(ldconfig -p | awk '/libcuda\.so\.1 .*x86-64/{print $NF; exit}')}
[ -e "${real:-}" ] || real=/usr/local/nvidia/lib64/libcuda.so.1
[ -e "$real" ] || { echo "compare_driver: no real driver here (name it with REAL_LIBCUDA); skipped"; exit 77; }
include=${CUDA_INCLUDE:-$(for d in /usr/local/cuda/include /usr/local/cuda*/include; do [ -f "$d/cuda.h" ] && echo "$d" && break; done)}
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
g++ -std=c++20 -O1 -w -I"$include" "$here/../../tools/device/answers.cpp" "$real" -ldl -o "$work/answers"
TONNAGE_REAL_CUDA=$real "$build/bin/tonnage" gpus --measure > "$work/card.json"
status=0
for section in "${sections[@]}"; do
  "$work/answers" "$section" > "$work/real.txt" 2>&1 || true
  "$build/bin/tonnage" run --gpu "$work/card.json" --quiet -- "$work/answers" "$section" > "$work/virtual.txt" 2>&1 || true
  for side in real virtual; do sed -i 's/0x[0-9a-f]*/ADDRESS/g; s/free [0-9]*/free N/' "$work/$side.txt"; done
  same=$(comm -12 <(sort "$work/real.txt") <(sort "$work/virtual.txt") | wc -l)
  if diff "$work/real.txt" "$work/virtual.txt" > "$work/diff.txt"; then
    echo "$section: all $same answers equal"
  else
    echo "$section: $same answers equal, $(grep -c '^>' "$work/diff.txt" || true) differ"
    head -${SHOW:-20} "$work/diff.txt"
    status=1
  fi
done
exit $status
