#!/bin/sh
# Builds a fuzz target with clang's libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer, and runs it.
#   tests/fuzz/fuzz.sh pickle 60          # seconds; the corpus grows in build-fuzz/corpus/pickle
# Targets: pickle, log, record_reader; all: one after the other. The first run takes the small files of tests/data as its corpus.
# Half an hour for each: tests/fuzz/fuzz.sh all 1800
set -eu
target=$1
seconds=${2:-60}
if [ "$target" = all ]; then
  for each in pickle log record_reader; do "$0" "$each" "$seconds"; done
  exit
fi
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${BUILD:-$root/build-fuzz}
corpus=$build/corpus/$target
mkdir -p "$corpus" "$build/objects"
if [ -z "$(ls -A "$corpus")" ]; then
  case $target in
    pickle) cp "$root"/tests/data/pickles/*.pickle "$corpus"/ ;;
    log) split -l 1 -a 3 "$root/tests/data/logs/oom_messages.txt" "$corpus/line-" ;;
  esac
fi
launcher=$(command -v ccache || true)
flags="-std=c++20 -g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all -I$root/src"
for source in "$root"/src/record/*.cpp "$root"/src/sources/*.cpp "$root"/src/sources/*/*.cpp "$root"/src/analysis/*.cpp "$root"/src/analysis/*/*.cpp "$root"/src/report/words/*.cpp; do
  object=$build/objects/$(basename "$(dirname "$source")")-$(basename "$source" .cpp).o
  if [ ! -e "$object" ] || [ -n "$(find "$root/src" -newer "$object" \( -name '*.h' -o -samefile "$source" \) -print -quit)" ]; then
    $launcher ${CXX:-clang++} $flags -fsanitize=fuzzer-no-link -c "$source" -o "$object"
  fi
done
${CXX:-clang++} $flags -fsanitize=fuzzer "$root/tests/fuzz/${target}_fuzz.cpp" "$build"/objects/*.o -lfmt -lz -llzma -lzstd -o "$build/${target}_fuzz"
cd "$build"
exec "./${target}_fuzz" -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=1500 -timeout=20 -print_final_stats=1 "$corpus"
