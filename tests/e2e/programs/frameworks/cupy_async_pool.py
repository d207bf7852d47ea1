"""CuPy: the driver's own pool instead of CuPy's."""
import cupy

cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
x = cupy.zeros(8 << 20, dtype=cupy.uint8)
y = x + 1
cupy.cuda.Device().synchronize()
print("BYTES", x.nbytes + y.nbytes)
