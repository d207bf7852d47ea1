"""CuPy: arrays, a product, a Fourier transform, and its pool."""
import cupy

first = cupy.zeros((1024, 1024), dtype=cupy.float32)  # 4 MiB
product = first @ first
cupy.fft.fft(first)
pool = cupy.get_default_memory_pool()
print("POOL", pool.used_bytes(), pool.total_bytes(), cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())
