#!/usr/bin/env bash
# The Debian packages that building Tonnage needs. `packages.sh check` names what is missing (exit 1), `packages.sh install`
# installs it (as root, or with sudo). On another distribution both only look for the tools themselves.
set -u
packages="g++ cmake ninja-build make python3 python3-venv python3-dev ccache libcli11-dev libfmt-dev nlohmann-json3-dev libzstd-dev liblz4-dev
  zlib1g-dev liblzma-dev libgtest-dev libbenchmark-dev"
if ! command -v dpkg-query > /dev/null || ! command -v apt-get > /dev/null; then
  for tool in g++ cmake ninja python3; do
    command -v $tool > /dev/null || { echo "missing: $tool (the libraries needed besides: CLI11 fmt nlohmann-json zstd lz4 zlib lzma GoogleTest Google Benchmark)"; exit 1; }
  done
  exit 0
fi
missing=""
for p in $packages; do
  dpkg-query -W -f '${Status}' "$p" 2> /dev/null | grep -q 'ok installed' || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
root=""
[ "$(id -u)" = 0 ] || root=sudo
case ${1:-check} in
  check) echo "missing Debian packages:$missing"; echo "  install them: ${root:+sudo }apt-get install$missing   (or: make packages)"; exit 1 ;;
  install)
    [ -z "$root" ] || command -v sudo > /dev/null || { echo "missing Debian packages:$missing"; echo "  become root, or install sudo, and try again"; exit 1; }
    $root apt-get update -q && DEBIAN_FRONTEND=noninteractive $root apt-get install -y -q --no-install-recommends $missing ;;
  *) echo "usage: packages.sh check|install"; exit 2 ;;
esac
