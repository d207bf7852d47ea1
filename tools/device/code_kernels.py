"""Writes the CUDA sources that code_memory.cpp loads: kernels of known code size, local memory, data. usage: code_kernels.py FOLDER"""
import sys
from pathlib import Path

folder = Path(sys.argv[1])
FMA = "fma.rn.f32 %0,%0,%0,%0;"  # 16 bytes of machine code


def kernel(name, instructions):
    return f'extern "C" __global__ void {name}(float* p) {{ float x = p ? p[0] : 1; asm volatile("{FMA * instructions}" : "+f"(x)); if (p) p[0] = x; }}\n'


for kib in (1, 16, 128, 1024):
    (folder / f"code_{kib}k.cu").write_text(kernel("k0", kib * 64))
(folder / "many_16k.cu").write_text("".join(kernel(f"k{i}", 1024) for i in range(32)))
for name, size in (("data_1", 1), ("data_64k", 1 << 16), ("data_1m", 1 << 20), ("data_10m", 10 << 20)):
    (folder / f"{name}.cu").write_text(f"__device__ char table[{size}];\n" + 'extern "C" __global__ void k0(char* p) { if (p) p[0] = table[threadIdx.x]; }\n')
(folder / "constant_60k.cu").write_text('__constant__ char table[61440];\nextern "C" __global__ void k0(char* p) { if (p) p[0] = table[p[1]]; }\n')
for kib in (1, 4, 16, 64, 256):
    (folder / f"local_{kib}k.cu").write_text(
        f'extern "C" __global__ void k0(int* p) {{ volatile int a[{kib * 256}]; if (p) {{ for (int i = 0; i < p[0]; i++) a[i * p[1]] = i; p[0] = a[p[2]]; }} }}\n')
(folder / "printf.cu").write_text('#include <cstdio>\nextern "C" __global__ void k0(int* p) { if (p) printf("%d\\n", p[0]); }\n')
(folder / "malloc.cu").write_text('extern "C" __global__ void k0(int** p) { if (p) p[0] = (int*)malloc(100); }\n')
(folder / "assert.cu").write_text('#include <cassert>\nextern "C" __global__ void k0(int* p) { if (p) assert(p[0]); }\n')
