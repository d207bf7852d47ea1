"""Where a real driver puts pinned host memory among device memory: prints every call and its address
(tests/data/addresses/h200-pinned.txt holds what an earlier form with the same calls printed). Needs the driver only."""
import ctypes

MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")
pointer = ctypes.c_void_p
context = pointer()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)


def device(size):
    p = pointer()
    print(f"dev {size} {cuda.cuMemAlloc_v2(ctypes.byref(p), size)} {p.value:#x}")


def host(size, flags=1):
    p = pointer()
    print(f"host {size} {flags} {cuda.cuMemHostAlloc(ctypes.byref(p), size, flags)} {p.value:#x}")
    return p


def free_host(p):
    print("freehost", cuda.cuMemFreeHost(p), hex(p.value))


device(20 * MIB), device(2 * MIB)
first = [host(n) for n in (512, 512, 4096, 65536, MIB, MIB, 2 * MIB, 3 * MIB, 10 * MIB, 64 * MIB, 2 * MIB, 4 * MIB)]
device(2 * MIB), device(4 * MIB), device(20 * MIB), host(38535168), device(32 * MIB), host(300 * MIB), device(20 * MIB)
for p in first[::2]:
    free_host(p)
device(2 * MIB), device(4 * MIB)
for n in (2 * MIB, 512, 4096, 131072, 700000):
    host(n)
host(10 * MIB, 3), device(10 * MIB), device(64 * MIB)
for p in first[1::2]:
    free_host(p)
host(5 * MIB), device(6 * MIB), host(1000), host(100 * MIB), device(2 * MIB)
for _ in range(70):
    host(65536)
