#!/usr/bin/env bash
# Fetches the public programs of list.txt, each at one commit.
#
#   get.sh FOLDER             from github.com
#   get.sh FOLDER MIRRORS     from bare git mirrors, MIRRORS/OWNER+NAME/repo
set -euo pipefail
folder=${1:?usage: get.sh FOLDER [MIRRORS]}
mirrors=${2:-}
[ -z "$mirrors" ] || mirrors=$(cd "$mirrors" && pwd)
mkdir -p "$folder"
cd "$folder"

# fetch OWNER/NAME COMMIT TO [PATH…]: those folders and files of a repository (all of it without any).
fetch() {
  local repository=$1 commit=$2 to=$3; shift 3
  local git_dir=$mirrors/${repository/\//+}/repo scratch=
  if [ -z "$mirrors" ]; then
    scratch=$(mktemp -d)
    git_dir=$scratch
    git init --quiet --bare "$scratch"
    git --git-dir="$scratch" fetch --quiet --depth 1 "https://github.com/$repository" "$commit"
  fi
  mkdir -p "$to"
  local folders=() files=() path
  for path in "$@"; do
    case $path in *.py) files+=("$path") ;; *) folders+=("$path") ;; esac
  done
  git --git-dir="$git_dir" archive "$commit" "${folders[@]}" | tar x -C "$to"
  for path in "${files[@]}"; do  # alone: a mirror may be without the large files beside them
    mkdir -p "$to/$(dirname "$path")"
    git --git-dir="$git_dir" show "$commit:$path" > "$to/$path"
  done
  [ -z "$scratch" ] || rm -rf "$scratch"
}

fetch karpathy/nanoGPT 3adf61e154c3fe3fca428ad6bc3818b27a3b8291 nanoGPT
fetch karpathy/minGPT 37baab71b9abea1b76ab957409a1cc2fbfba8a26 minGPT
fetch huggingface/pytorch-image-models aa4b5850c1543fa488abf260f18390eda46cf85d pytorch-image-models
# Not the language model's data: prep.py makes some.
fetch pytorch/examples 77f55b912142e11fcfdf5b530231fb9c52f181e8 examples \
  mnist vae dcgan mnist_rnn imagenet word_language_model/{data,main,model}.py
