#!/usr/bin/env bash
# Measures a real GPU: addresses that its driver hands out, what its driver answers, what takes memory outside the
# allocator, and a step's time. Writes six compressed files into the folder given. About seven minutes on an H200.
#
#   tools/device/measure.sh FOLDER      REAL_LIBCUDA, PYTHON, MEASURE_SECONDS as needed
set -u
out=${1:?usage: measure.sh FOLDER}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
out=$(cd "$out" && pwd)
python=${PYTHON:-python3}
[[ $python == */* ]] && python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
real=${REAL_LIBCUDA:-$(ldconfig -p | awk '/libcuda\.so\.1 .*x86-64/{print $NF; exit}')}
[ -e "${real:-}" ] || real=/usr/local/nvidia/lib64/libcuda.so.1
[ -e "$real" ] || { echo "measure.sh: no libcuda.so.1 found; name it with REAL_LIBCUDA"; exit 1; }
truth=$here/../../bench/truth/configurations
include=$(for d in /usr/local/cuda/include /usr/local/cuda*/include "$("$python" -c 'import nvidia, os; print(os.path.join(list(nvidia.__path__)[0], "cu13", "include"))' 2>/dev/null)"; do
  [ -f "$d/cuda.h" ] && echo "$d" && break; done)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
end=$(($(date +%s) + ${MEASURE_SECONDS:-520}))
left() { echo $((end - $(date +%s))); }
say() { echo "[$(left) s left] $*"; }
limit() { local most=$1; shift; local t; t=$(left); [ "$t" -gt 3 ] || { say "no time for: $*"; return 1; }; timeout "$((t < most ? t : most))" "$@"; }
# pack NAME FILES…: one compressed text file.
pack() { local name=$1; shift; cat "$@" 2>/dev/null | xz -T0 -6 > "$out/$name.xz"; say "$name: $(cat "$@" 2>/dev/null | wc -l) lines, $(stat -c %s "$out/$name.xz") bytes"; }

say "driver $real, headers $include"
flags="-std=c++20 -O1 -w -I$include"
g++ $flags "$here/addresses.cpp" "$real" -o "$work/addresses" || exit 1
g++ $flags "$here/answers.cpp" "$real" -ldl -o "$work/answers" || exit 1
g++ $flags "$here/code_memory.cpp" "$real" -o "$work/code_memory" || exit 1
"$python" "$here/freelog/gen_stubs.py" "$include" "$work/freelog.S" &&
  g++ $flags -shared -fPIC -Wl,-Bsymbolic "$here/freelog/freelog.cpp" "$work/freelog.S" -Wl,-soname,libcuda.so.1 -ldl -o "$work/libcuda.so.1" || exit 1
mkdir "$work/cubins"
if command -v nvcc > /dev/null; then
  "$python" "$here/code_kernels.py" "$work/cubins"
  arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | head -1 | tr -d .)
  ls "$work"/cubins/*.cu | xargs -P 8 -I{} sh -c 'nvcc -cubin -arch=sm_'"${arch:-90}"' -Xptxas -O1 -o $(echo {} | sed s/.cu$/.cubin/) {}' 2>&1 | tail -3
fi
say built

# 1. What the driver answers.
grep -oE 'CUDAAPI +cu[A-Z][A-Za-z0-9_]+' "$include/cuda.h" | awk '{print $2}' | sed -E 's/_v[0-9]+(_ptsz|_ptds)?$//' | sort -u > "$work/names"
for s in device memory pointers errors graphs resources "sticky 0" "sticky 1" "sticky 2" "sticky 3" "sticky 4" "sticky 5" "proc $work/names"; do
  limit 40 "$work/answers" $s > "$work/answers-${s%% /*}.txt" 2>&1; rc=$?
  echo "exit $rc" >> "$work/answers-${s%% /*}.txt"
  [ $rc = 0 ] || say "answers $s: exit $rc, $(tail -n 2 "$work/answers-${s%% /*}.txt" | head -1)"
done
{ nvidia-smi; nvidia-smi -q; } > "$work/answers-smi.txt" 2>&1
pack answers.txt "$work"/answers-*.txt

# 2. Addresses. First with free memory before and after, so one at a time; then many sequences side by side.
for p in fill small edges odd torch big virtual reserve async pinned smallbig all; do
  for seed in 1 2; do
    [ $p = fill ] && [ $seed = 2 ] && continue
    limit 25 "$work/addresses" $p $seed 700 > "$work/free-$p-$seed.txt" 2>&1 || say "addresses $p $seed: exit $?"
  done
done
pack addresses-free.txt "$work"/free-*.txt
for p in small mid edges odd torch big virtual reserve async pinned smallbig hostmap all; do
  for seed in 11 12 13 14 15 16 17 18 19 20; do echo "$p $seed"; done
done | limit 70 xargs -P 6 -L 1 sh -c 'timeout 30 '"$work"'/addresses $0 $1 1500 nofree > '"$work"'/many-$0-$1.txt 2>&1'
pack addresses.txt "$work"/many-*.txt

# 3. Machine code.
for mode in LAZY EAGER; do
  CUDA_MODULE_LOADING=$mode limit 40 "$work/code_memory" "$work/cubins" > "$work/code-$mode.txt" 2>&1 || say "code_memory $mode: exit $?"
done
pack code.txt "$work"/code-*.txt

# 4. Training: first as it is (the time of a step), then behind freelog.
cd "$truth" || exit 1
STEPS=12 limit 60 "$python" train.py gpt_medium 8 bf16 adamw > "$work/plain.txt" 2>&1
"$python" - "$work/plain.txt" << 'PY'
import json, statistics, sys
for line in open(sys.argv[1]):
    if line.startswith("JSON"):
        r = json.loads(line[4:])
        s = [x["seconds"] for x in r["steps"][3:]]
        print("gpt_medium bf16 batch 8: median step %.2f ms, lowest %.2f, highest %.2f; device_used %d, peak %d" % (1e3 * statistics.median(s), 1e3 * min(s), 1e3 * max(s), r["device_used"], r["steps"][-1]["peak"]))
PY
while read -r row; do
  name=$(echo $row | tr ' ' '-')
  { echo "begin $row"; FREELOG_REAL=$real FREELOG_OUT=$work/log LD_LIBRARY_PATH=$work:${LD_LIBRARY_PATH:-} limit 70 "$python" train.py $row < /dev/null 2>&1; echo "exit $?"; cat "$work"/log.*; } > "$work/train-$name.txt" 2>&1
  rm -f "$work"/log.*
  say "$row: $(grep -c . "$work/train-$name.txt") lines, $(grep '^exit' "$work/train-$name.txt")"
done << 'ROWS'
resnet50 64 bf16 adamw
gpt_small 12 bf16 adamw
gpt_small 12 fp32 adamw
mlp 1024 bf16 adamw
unet 16 fp32 adamw
encoder 32 fp32 adamw
lstm 20 fp32 sgd
conv3d 2 fp32 adam
hf_t5_base 4 bf16 adamw
ROWS
pack train.txt "$work/plain.txt" "$work"/train-*.txt
say done
ls -l "$out"
