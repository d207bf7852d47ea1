#!/bin/sh
# Reads every library of an installed PyTorch for CUDA and compares what the image reader says of its kernels with what a
# real H200 answered (tests/data/h200). Usage: image_truth.sh UNIT_TESTS_BINARY SITE_PACKAGES_FOLDER
set -e
if [ $# -ne 2 ]; then
  echo "usage: $0 path/to/unit_tests path/to/site-packages" >&2
  exit 2
fi
TONNAGE_SITE_PACKAGES="$2" exec "$1" --gtest_filter='ImageTruth.*'
