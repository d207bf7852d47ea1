"""Numba: streams, pinned and mapped memory, a shared-memory kernel."""
import numpy
from numba import cuda, float32


@cuda.jit
def sum_blocks(x, out):
    part = cuda.shared.array(256, dtype=float32)
    part[cuda.threadIdx.x] = x[cuda.grid(1)]
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        total = float32(0)
        for i in range(256):
            total += part[i]
        out[cuda.blockIdx.x] = total


stream = cuda.stream()
host = cuda.pinned_array(1 << 20, dtype=numpy.float32)
with cuda.defer_cleanup():
    x = cuda.to_device(host, stream=stream)
    out = cuda.device_array((1 << 20) // 256, dtype=numpy.float32, stream=stream)
    sum_blocks[(1 << 20) // 256, 256, stream](x, out)
    result = out.copy_to_host(stream=stream)
stream.synchronize()
print("SHAPE", result.shape[0])
