#!/usr/bin/env bash
# The Debian packages that Tonnage needs. `packages.sh check [GROUP…]` names what is missing (exit 1), `packages.sh install
# [GROUP…]` installs it (as root, or with sudo). Groups: build (the default), test, lint. On another distribution both only
# look for the tools themselves.
set -u
build="g++ cmake ninja-build make python3 python3-venv ccache libcli11-dev libfmt-dev nlohmann-json3-dev libzstd-dev liblz4-dev
  zlib1g-dev liblzma-dev"
test="binutils libgtest-dev python3-dev"
lint="clang-format-14 clang-tidy-14 git"
command=${1:-check}
shift || true
case $command in check | install) ;; *) echo "usage: packages.sh check|install [build|test|lint]…"; exit 2 ;; esac
packages=""
for group in "${@:-build}"; do
  case $group in build | test | lint) packages="$packages ${!group}" ;; *) echo "packages.sh: no group '$group': build, test, lint"; exit 2 ;; esac
done
if ! command -v dpkg-query > /dev/null || ! command -v apt-get > /dev/null; then
  for tool in g++ cmake ninja python3; do
    command -v $tool > /dev/null || { echo "missing: $tool (the libraries needed besides: CLI11 fmt nlohmann-json zstd lz4 zlib lzma; GoogleTest for the tests)"; exit 1; }
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
case $command in
  check) echo "missing Debian packages:$missing"; echo "  install them: ${root:+sudo }apt-get install$missing   (or: make packages)"; exit 1 ;;
  install)
    [ -z "$root" ] || command -v sudo > /dev/null || { echo "missing Debian packages:$missing"; echo "  become root, or install sudo, and try again"; exit 1; }
    $root apt-get update -q && DEBIAN_FRONTEND=noninteractive $root apt-get install -y -q --no-install-recommends $missing ;;
esac
