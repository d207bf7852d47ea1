"""Addresses that a driver hands out where one process uses two devices; for tests/data/addresses.

usage: setarch -R python3 two_devices.py early|late|alone

late: the first device has allocations before the second has a context. alone: without peer access. Prints the lines of the data files,
and, as comments, how the process's address space changed.
"""
import ctypes
import random
import sys

MIB = 1 << 20
variant = sys.argv[1]
cuda = ctypes.CDLL("libcuda.so.1")
contexts = [ctypes.c_void_p(), ctypes.c_void_p()]


def check(result, what):
    if result:
        sys.exit(f"two_devices: {what}: CUDA error {result}")


def address_space():
    ranges = {}
    for line in open("/proc/self/maps"):
        place, access, *rest = line.split()
        low, high = (int(end, 16) for end in place.split("-"))
        if high - low >= MIB:
            ranges[place] = f"{access} {(high - low) / MIB:.1f} MiB {rest[3] if len(rest) > 3 else ''}"
    return ranges


def note_changes(moment):
    global seen
    now = address_space()
    print(f"# {moment}")
    for place in sorted(now.keys() - seen.keys()):
        print(f"#   {place} {now[place]}")
    seen = now


class Current:
    def __init__(self, device):
        self.device = device

    def __enter__(self):
        check(cuda.cuCtxPushCurrent_v2(contexts[self.device]), "cuCtxPushCurrent")

    def __exit__(self, *_):
        cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def make_context(device):
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(contexts[device]), device), "cuDevicePrimaryCtxRetain")
    note_changes(f"context of device {device}")
    print(f"context {device}")


def allocate(device, mebibytes):
    address = ctypes.c_uint64()
    with Current(device):
        check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mebibytes * MIB)), "cuMemAlloc")
    print(f"+ {device} {mebibytes} {address.value:x}")
    return address.value


def free(device, address):
    with Current(device):
        check(cuda.cuMemFree_v2(ctypes.c_uint64(address)), "cuMemFree")
    print(f"- {address:x}")


def enable_peer(device, peer):
    with Current(device):
        check(cuda.cuCtxEnablePeerAccess(contexts[peer], 0), "cuCtxEnablePeerAccess")
    note_changes(f"device {device} may access device {peer}")


seen = address_space()
check(cuda.cuInit(0), "cuInit")
make_context(0)
if variant == "late":
    for size in (2, 4, 6, 30, 64):
        allocate(0, size)
make_context(1)
for i in range(16):
    allocate(i % 2, 2)
for size in (20, 20, 64, 64):
    allocate(0, size), allocate(1, size)
for device in (0, 1) if variant != "alone" else ():
    enable_peer(device, 1 - device)
    for size in (2, 64):
        allocate(0, size), allocate(1, size)
choose, live = random.Random(5), []
for _ in range(300):
    if live and choose.random() < 0.45:
        free(*live.pop(choose.randrange(len(live))))
    else:
        device = choose.randrange(2)
        live.append((device, allocate(device, choose.choice([2, 2, 2, 4, 6, 10, 20, 20, 34, 64, 100]))))
