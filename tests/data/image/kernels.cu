// The kernels behind tests/data/image: every resource that the image reader reports, in known amounts.
// Built with nvcc 13.0; make_fixtures.sh says how.
__constant__ float coefficients[18];
__device__ int counter = 3;
__device__ double results[100];

extern "C" __global__ void plain(float* p, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) p[i] *= coefficients[i % 18];
  atomicAdd(&counter, 1);
  results[i % 100] = p[0];
}
extern "C" __global__ void __launch_bounds__(192, 2) bounded(double* p) {
  __shared__ double s[300];
  s[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = s[255 - threadIdx.x];
}
extern "C" __global__ void locals(float* p, int n) {
  float a[64];
  for (int i = 0; i < 64; i++) a[i] = p[i];
  for (int i = 0; i < n; i++) a[(i * 7) % 64] += a[(i * 13) & 63];
  float s = 0;
  for (int i = 0; i < 64; i++) s += a[i];
  p[0] = s;
}
extern "C" __global__ void dynamic(float* p) {
  extern __shared__ float d[];
  d[threadIdx.x] = p[0];
  __syncthreads();
  p[1] = d[threadIdx.x ^ 1];
}
struct Three {
  char c[3];
};
extern "C" __global__ void params(char a, double b, Three c, int d) {
  results[0] = a + b + c.c[1] + d;
}
static __global__ void hidden(float* p) { p[1] = 2; }
void start(float* p) { hidden<<<1, 1>>>(p); }
#if __CUDA_ARCH__ >= 900
extern "C" __global__ void __cluster_dims__(4, 2, 1) clustered(float* p) { p[threadIdx.x] = 1; }
#endif
