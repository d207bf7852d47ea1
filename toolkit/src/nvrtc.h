// CUDA kernels from source at run time. Nothing of CUDA is needed to compile this: NVRTC is taken
// from the PyTorch that is loaded, the driver from libcuda.so.1.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>

namespace tonnage {

class CudaKernel {
 public:
  // Compiles `source` (C++ as NVRTC takes it, with an extern "C" __global__ function `name`) when
  // it is first launched on a device.
  CudaKernel(std::string source, std::string name);
  ~CudaKernel();
  CudaKernel(const CudaKernel&) = delete;
  CudaKernel& operator=(const CudaKernel&) = delete;

  // Compiles for that device now, if it is not compiled. Throws c10::Error with NVRTC's own log.
  void prepare(c10::Device device);

  // Launches on the device's current stream; `arguments` point to the kernel's arguments, in order.
  // Does not wait. Throws c10::Error with the driver's text if the launch fails.
  void launch(c10::Device device, uint32_t blocks, uint32_t threads, void** arguments);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tonnage
