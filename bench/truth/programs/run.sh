#!/usr/bin/env bash
# Runs the programs of list.txt behind spy/sitecustomize.py, which measures and stops them.
#
#   run.sh FOLDER OUT.jsonl JOBS [NAME…]     FOLDER is where get.sh put them; JOBS run at a time; all without a NAME
#
# In the environment: WRAP, a command before each program (tonnage run --gpu h200 --); LIMIT, seconds for each (200);
# LOGS, a folder for their output.
set -u
usage='usage: run.sh FOLDER OUT.jsonl JOBS [NAME…]'
L=$(cd "$(dirname "$0")" && pwd)
export L  # list.txt names the scripts here by it
programs=$(cd "${1:?$usage}" && pwd)
out=$(realpath "${2:?$usage}")
jobs=${3:?$usage}
shift 3
work=$(mktemp -d)
export TONNAGE_KEEP_RUNS=${TONNAGE_KEEP_RUNS:-0}  # the user's own last runs stay

trim() { echo $1; }

# one LINE: a program of list.txt. Caches of compilers start empty: a warm one skips autotuning, which takes memory.
one() {
  local name folder command code
  IFS='|' read -r name folder command <<< "$1"
  name=$(trim "$name")
  cd "$programs/$(trim "$folder")" || return
  TORCHINDUCTOR_CACHE_DIR=$work/$name.inductor TRITON_CACHE_DIR=$work/$name.triton \
    SPY_NAME=$name SPY_OUT=$work/$name.json PYTHONPATH=$L/spy:${PYTHONPATH:-} \
    timeout "${LIMIT:-200}" bash -c "exec ${WRAP:-} $command" > "$work/$name.log" 2>&1 < /dev/null
  code=$?
  if [ -s "$work/$name.json" ] && [ $code = 0 ]; then
    tail -n 1 "$work/$name.json" >> "$out"
  else
    echo "FAIL $name rc $code: $(grep -E 'Error|error|assert|Segm' "$work/$name.log" | tail -1 | cut -c1-250)"
  fi
}

count=0
while read -r line; do
  case "$line" in '' | \#*) continue ;; esac
  name=$(trim "${line%%|*}")
  if [ $# -gt 0 ]; then
    case " $* " in *" $name "*) ;; *) continue ;; esac
  fi
  one "$line" &
  count=$((count + 1))
  while [ "$(jobs -r | wc -l)" -ge "$jobs" ]; do wait -n; done
done < "$L/list.txt"
wait
echo "ran $count"
[ -z "${LOGS:-}" ] || cp "$work"/*.log "$LOGS" 2> /dev/null
rm -rf "$work"
