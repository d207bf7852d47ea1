#!/bin/sh
# The C++ compiler, for a recorder that goes into a package: it runs with glibc 2.31 and the libstdc++ of GCC 10
# (src/base/older_glibc.c, older_libstdcxx.S). `tonnage recorder --compiler tools/portable_cxx.sh …`
set -eu
base=$(cd "$(dirname "$0")/../src/base" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cc -O2 -fPIC -c "$base/older_glibc.c" -o "$folder/older_glibc.o"
cc -c "$base/older_libstdcxx.S" -o "$folder/older_libstdcxx.o"
c++ "$@" "$folder"/*.o -Wl,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 -Wl,--as-needed
