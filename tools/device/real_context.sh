#!/usr/bin/env bash
# The memory of the driver itself, measured on a real GPU beside the virtual one's model.
#
# usage: tools/device/real_context.sh [BUILD_FOLDER] [PYTHON] [PROGRAM.py …]
# Runs each program (by default a matrix product and a convolution) once with `tonnage run --real` and
# once on the virtual card of the same kind, and prints both cards' figures: context, machine code and
# streams at the device's peak, and the peak itself. Needs a GPU that nobody else uses, and its NVML.
set -eu
build=${1:-build}
python=${2:-.venv/bin/python}
shift $(($# < 2 ? $# : 2))
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ $# -eq 0 ]; then
  cat > "$work/matrix.py" <<'PY'
import torch
x = torch.randn(4096, 4096, device="cuda")
for _ in range(3):
    y = x @ x
    y.relu_()
torch.cuda.synchronize()
keep = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
PY
  cat > "$work/convolution.py" <<'PY'
import torch
model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64), torch.nn.ReLU(),
                            torch.nn.Conv2d(64, 64, 3)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    model(torch.randn(16, 3, 64, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
keep = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
PY
  set -- "$work/matrix.py" "$work/convolution.py"
fi
gpu=$("$build/bin/tonnage" gpus --json >/dev/null 2>&1; nvidia-smi --query-gpu=name --format=csv,noheader | head -1)
printf 'card: %s\n' "$gpu"
figures() {
  "$python" - "$1" "$2" <<'PY'
import json, sys
device = json.load(open(sys.argv[2]))["devices"][0]
peak = device["peak_device"]
rows = {row["category"]: row for row in peak["breakdown"]["rows"]}
row = rows.get("context", {})
print("  %-8s driver's own %15s (%s)   device peak %15s" % (
    sys.argv[1], format(row.get("bytes", 0), ","), "modelled" if row.get("modelled") else "measured",
    format(peak["bytes"], ",")))
PY
}
for program in "$@"; do
  echo "$(basename "$program")"
  "$build/bin/tonnage" run --real --json --output "$work/real.json" --force -q -- "$python" "$program" >/dev/null
  "$build/bin/tonnage" run --gpu "$gpu" --json --output "$work/virtual.json" --force -q -- "$python" "$program" >/dev/null
  figures real "$work/real.json"
  figures virtual "$work/virtual.json"
done
