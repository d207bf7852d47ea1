#!/usr/bin/env bash
# What drivers answer, query by query: the same program (tools/device/answers.cpp) asks both.
#
#   compare_driver.sh BUILD [SECTION…]            a real card's driver beside the virtual one for the same card, which
#                                                 `tonnage gpus --measure` describes; 77 where there is no real driver
#   compare_driver.sh BUILD --golden [SECTION…]   the virtual H200 beside the answers kept in h200-answers.txt; needs no card
#   compare_driver.sh BUILD --write               writes that file: look at what changed before it is kept
#
# Exit code 1 if an answer differs. Where addresses begin and numbers of free bytes are not compared. In the environment: REAL_LIBCUDA,
# CUDA_INCLUDE (a folder with cuda.h), SHOW (how many differing lines to print, 20).
set -eu
build=$(cd "${1:?usage: compare_driver.sh BUILD [--golden|--write] [SECTION…]}" && pwd)
shift
here=$(cd "$(dirname "$0")" && pwd)
kept=$here/h200-answers.txt
mode=real
case "${1:-}" in --golden | --write) mode=${1#--}; shift ;; esac
sections=("$@")
[ ${#sections[@]} -gt 0 ] || sections=(device memory pointers errors graphs resources)
include=${CUDA_INCLUDE:-$(for d in /usr/local/cuda/include /usr/local/cuda*/include; do [ -f "$d/cuda.h" ] && echo "$d" && break; done)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

card=h200
driver=$build/lib/vgpu/libcuda.so.1
if [ $mode = real ]; then
  driver=${REAL_LIBCUDA:-$(ldconfig -p | awk '/libcuda\.so\.1 .*x86-64/{print $NF; exit}')}
  [ -e "${driver:-}" ] || driver=/usr/local/nvidia/lib64/libcuda.so.1
  [ -e "$driver" ] || { echo "compare_driver: no real driver here (name it with REAL_LIBCUDA); skipped"; exit 77; }
  card=$work/card.json
  TONNAGE_REAL_CUDA=$driver "$build/bin/tonnage" gpus --measure > "$card"
fi
"${CXX:-g++}" -std=c++20 -O1 -w -I"$include" "$here/../../tools/device/answers.cpp" "$driver" -ldl -o "$work/answers"

# Of addresses beside each other the place within a mebibyte stays.
comparable() {
  sed -E 's/0x[0-9a-f]*/ADDRESS/g; s/free [0-9]*/free N/; /^spacing/s/\b7[0-9a-f]{6}([0-9a-f]{5})\b/ADDRESS\1/g
          s/\b[57][0-9a-f]{11}\b/ADDRESS/g'
}
ask_virtual() { { "$build/bin/tonnage" run --gpu "$card" --quiet -- "$work/answers" "$1" 2>&1 || true; } | comparable; }
wanted() {
  case $mode in
    real) { "$work/answers" "$1" 2>&1 || true; } | comparable ;;
    golden) awk -v section="== $1" '/^== /{found = $0 == section; next} found' "$kept" ;;
  esac
}

if [ $mode = write ]; then
  for section in "${sections[@]}"; do echo "== $section"; ask_virtual "$section"; done > "$work/new.txt"
  cp "$work/new.txt" "$kept"
  exit
fi
status=0
for section in "${sections[@]}"; do
  wanted "$section" > "$work/wanted.txt"
  ask_virtual "$section" > "$work/virtual.txt"
  same=$(comm -12 <(sort "$work/wanted.txt") <(sort "$work/virtual.txt") | wc -l)
  if [ -s "$work/wanted.txt" ] && diff "$work/wanted.txt" "$work/virtual.txt" > "$work/diff.txt"; then
    echo "$section: all $same answers equal"
  else
    echo "$section: $same answers equal, $(grep -c '^>' "$work/diff.txt" || true) differ"
    head -"${SHOW:-20}" "$work/diff.txt"
    status=1
  fi
done
[ $status = 0 ] || [ $mode = real ] || echo "If these answers are meant: compare_driver.sh $build --write"
exit $status
