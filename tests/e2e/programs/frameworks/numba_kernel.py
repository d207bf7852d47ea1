"""Numba: a kernel, arrays up and down, and what is free."""
import numpy
from numba import cuda


@cuda.jit
def add_one(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += 1


x = cuda.to_device(numpy.zeros(8 << 20, dtype=numpy.uint8))
add_one[(8 << 20) // 256, 256](x)
cuda.synchronize()
big = cuda.device_array((1024, 1024), dtype=numpy.float32)
print("FREE", cuda.current_context().get_memory_info().free, x.copy_to_host().shape)
