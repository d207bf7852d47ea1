// The time of an empty kernel launch through the CUDA runtime (static, as nvcc links it). usage:
// launch [LAUNCHES]
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

static const char* const kPtx =
    ".version 8.0\n.target sm_52\n.address_size 64\n.visible .entry empty() { ret; }\n";

static void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

int main(int argc, char** argv) {
  int launches = argc > 1 ? std::atoi(argv[1]) : 2000000;
  cudaLibrary_t library;
  cudaKernel_t kernel;
  check(cudaLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0),
        "cudaLibraryLoadData");
  check(cudaLibraryGetKernel(&kernel, library, "empty"), "cudaLibraryGetKernel");
  auto launch = [&] {
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(1), dim3(32), nullptr, 0,
                            nullptr);
  };
  for (int i = 0; i < 1000; i++) check(launch(), "cudaLaunchKernel");
  for (int part = 0; part < 5; part++) {
    auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < launches / 5; i++) launch();
    double ns =
        std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
    std::printf("%.1f\n", ns / (launches / 5));
  }
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}
