#!/usr/bin/env bash
# How the real driver places its memory among the host's: training rows behind freelog with the changes of the address space.
#   tools/device/maps.sh FOLDER ROW…     (a row: "encoder 32 fp32 adamw"; TONNAGE_TRUTH as in measure.sh)
set -eu
out=$1; shift
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
real=${REAL_LIBCUDA:-$(ldconfig -p | awk '/libcuda\.so\.1 .*x86-64/{print $NF; exit}')}
[ -e "${real:-}" ] || real=/usr/local/nvidia/lib64/libcuda.so.1
include=$(for d in /usr/local/cuda/include /usr/local/cuda*/include; do [ -f "$d/cuda.h" ] && echo "$d" && break; done)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
"$python" "$here/freelog/gen_stubs.py" "$include" "$work/freelog.S"
g++ -std=c++20 -O1 -w -I"$include" -shared -fPIC -Wl,-Bsymbolic "$here/freelog/freelog.cpp" "$work/freelog.S" -Wl,-soname,libcuda.so.1 -ldl -o "$work/libcuda.so.1"
cd "${TONNAGE_TRUTH:-$here/../../.carry/truth}"
for row in "$@"; do
  { echo "begin $row"; FREELOG_MAPS=1 FREELOG_REAL=$real FREELOG_OUT=$work/log LD_LIBRARY_PATH=$work:${LD_LIBRARY_PATH:-} timeout 90 "$python" train.py $row < /dev/null 2>&1; echo "exit $?"; cat "$work"/log.*; } >> "$work/maps.txt"
  rm -f "$work"/log.*
done
xz -T0 -c "$work/maps.txt" > "$out/maps.txt.xz"
ls -l "$out"
