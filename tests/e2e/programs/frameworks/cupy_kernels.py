"""CuPy: kernels of the program's own, compiled when they are first called."""
import cupy

double = cupy.ElementwiseKernel("float32 x", "float32 y", "y = 2 * x", "double_it")
add = cupy.RawKernel('extern "C" __global__ void add(float* x, int n) { int i = blockDim.x * blockIdx.x + threadIdx.x; if (i < n) x[i] += 1; }', "add")
x = cupy.ones(1 << 20, dtype=cupy.float32)
y = double(x)
add(((1 << 20) // 256,), (256,), (y, 1 << 20))
cupy.cuda.Device().synchronize()
print("POOL", cupy.get_default_memory_pool().used_bytes())
