// A plain CUDA C++ program: trains a two-layer perceptron with kernels of its own and the CUDA runtime, no framework.
// nvcc links the runtime statically by default, so this also shows that a program need not load libcudart.so.
//
//   nvcc -O2 -o train train.cu && ./train [BATCH] [STEPS]
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#define CHECK(call) \
  do { \
    cudaError_t error_ = (call); \
    if (error_ != cudaSuccess) { \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_)); \
      std::exit(1); \
    } \
  } while (0)

constexpr int kIn = 1024, kHidden = 4096, kOut = 10;

// out[m, n] = a[m, k] * b[k, n], or with either of them transposed.
template <bool TransposeA, bool TransposeB>
__global__ void multiply(const float* a, const float* b, float* out, int m, int n, int k) {
  int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= m || column >= n) return;
  float sum = 0;
  for (int i = 0; i < k; i++) sum += (TransposeA ? a[i * m + row] : a[row * k + i]) * (TransposeB ? b[column * k + i] : b[i * n + column]);
  out[row * n + column] = sum;
}

__global__ void relu(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = fmaxf(x[i], 0.f);
}

__global__ void relu_gradient(float* gradient, const float* activation, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && activation[i] <= 0) gradient[i] = 0;
}

// Squared error against the target; the gradient replaces the output.
__global__ void loss_gradient(float* output, const float* target, float* loss, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float difference = output[i] - target[i];
  atomicAdd(loss, difference * difference / n);
  output[i] = 2 * difference / n;
}

__global__ void update(float* weight, const float* gradient, float rate, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) weight[i] -= rate * gradient[i];
}

template <bool TransposeA, bool TransposeB>
void launch_multiply(const float* a, const float* b, float* out, int m, int n, int k, cudaStream_t stream) {
  dim3 block(16, 16), grid((n + 15) / 16, (m + 15) / 16);
  multiply<TransposeA, TransposeB><<<grid, block, 0, stream>>>(a, b, out, m, n, k);
}

float* device_floats(size_t n) {
  float* p = nullptr;
  CHECK(cudaMalloc(&p, n * sizeof(float)));
  return p;
}

int main(int argc, char** argv) {
  int batch = argc > 1 ? std::atoi(argv[1]) : 256, steps = argc > 2 ? std::atoi(argv[2]) : 4;
  if (batch < 1 || steps < 1) {
    std::fprintf(stderr, "usage: train [BATCH] [STEPS]\n");
    return 2;
  }
  std::mt19937 random(0);
  std::normal_distribution<float> normal(0, 0.02f);
  auto filled = [&](size_t n) { std::vector<float> v(n); for (float& x : v) x = normal(random); return v; };
  auto upload = [](float* to, const std::vector<float>& from) { CHECK(cudaMemcpy(to, from.data(), from.size() * sizeof(float), cudaMemcpyHostToDevice)); };

  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  float *w1 = device_floats(size_t{kIn} * kHidden), *w2 = device_floats(size_t{kHidden} * kOut);
  float *g1 = device_floats(size_t{kIn} * kHidden), *g2 = device_floats(size_t{kHidden} * kOut);
  float *x = device_floats(size_t(batch) * kIn), *target = device_floats(size_t(batch) * kOut), *loss = device_floats(1);
  upload(w1, filled(size_t{kIn} * kHidden));
  upload(w2, filled(size_t{kHidden} * kOut));
  auto blocks = [](int n) { return (n + 255) / 256; };
  for (int step = 1; step <= steps; step++) {
    upload(x, filled(size_t(batch) * kIn));
    upload(target, filled(size_t(batch) * kOut));
    float *hidden, *output, *hidden_gradient;  // of this step only: from the stream's pool
    CHECK(cudaMallocAsync(&hidden, size_t(batch) * kHidden * sizeof(float), stream));
    CHECK(cudaMallocAsync(&output, size_t(batch) * kOut * sizeof(float), stream));
    CHECK(cudaMallocAsync(&hidden_gradient, size_t(batch) * kHidden * sizeof(float), stream));
    CHECK(cudaMemsetAsync(loss, 0, sizeof(float), stream));
    launch_multiply<false, false>(x, w1, hidden, batch, kHidden, kIn, stream);
    relu<<<blocks(batch * kHidden), 256, 0, stream>>>(hidden, batch * kHidden);
    launch_multiply<false, false>(hidden, w2, output, batch, kOut, kHidden, stream);
    loss_gradient<<<blocks(batch * kOut), 256, 0, stream>>>(output, target, loss, batch * kOut);
    launch_multiply<true, false>(hidden, output, g2, kHidden, kOut, batch, stream);
    launch_multiply<false, true>(output, w2, hidden_gradient, batch, kHidden, kOut, stream);
    relu_gradient<<<blocks(batch * kHidden), 256, 0, stream>>>(hidden_gradient, hidden, batch * kHidden);
    launch_multiply<true, false>(x, hidden_gradient, g1, kIn, kHidden, batch, stream);
    update<<<blocks(kIn * kHidden), 256, 0, stream>>>(w1, g1, 0.1f, kIn * kHidden);
    update<<<blocks(kHidden * kOut), 256, 0, stream>>>(w2, g2, 0.1f, kHidden * kOut);
    CHECK(cudaGetLastError());
    for (float* p : {hidden, output, hidden_gradient}) CHECK(cudaFreeAsync(p, stream));
    CHECK(cudaStreamSynchronize(stream));
    float value = 0;
    CHECK(cudaMemcpy(&value, loss, sizeof value, cudaMemcpyDeviceToHost));
    std::printf("step %d: loss %.6f\n", step, value);
  }
  size_t free_bytes, total_bytes;
  CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  std::printf("%s: %zu of %zu MiB in use\n", properties.name, (total_bytes - free_bytes) >> 20, total_bytes >> 20);
}
