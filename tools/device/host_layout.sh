#!/usr/bin/env bash
# What a real driver does to the host's address space when it starts and makes a context (src/driver/host_layout.h):
# large mmap and munmap calls of a small program, in order, with their threads. Needs strace and a real driver.
set -eu
python=${PYTHON:-python3}
log=$(mktemp); trap 'rm -f "$log"' EXIT
strace -f -e trace=mmap,munmap -o "$log" "$python" -c '
import ctypes
cuda, context, p = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
for mib in (20, 20, 2, 100, 20, 2, 500):
    cuda.cuMemAlloc_v2(ctypes.byref(p), mib << 20)
'
grep -E '\(.*, [0-9]{8,}' "$log"
