#include <ATen/Context.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "recorder/values/device.h"

namespace tonnage::recorder::device {

bool is(const c10::Device& device) { return device.is_cuda(); }
bool has(const at::Tensor& tensor) { return tensor.is_cuda(); }

bool plain(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kOdd(
      {c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
       c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchBatched,
       c10::DispatchKey::BatchedNestedTensor, c10::DispatchKey::FuncTorchGradWrapper,
       c10::DispatchKey::FuncTorchVmapMode, c10::DispatchKey::Conjugate, c10::DispatchKey::Negative,
       c10::DispatchKey::ZeroTensor, c10::DispatchKey::Named});
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const auto keys = impl->key_set();
  return keys.has_backend(c10::BackendComponent::CUDABit) && keys.has(c10::DispatchKey::Dense) &&
         !keys.has_any(kOdd) && impl->has_storage() &&
         impl->storage().device_type() == c10::DeviceType::CUDA;
}

c10::DispatchKey kernel_key() { return c10::DispatchKey::CUDA; }
c10::DispatchKey sparse_kernel_key() { return c10::DispatchKey::SparseCUDA; }

bool capturing() {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(c10::cuda::getCurrentCUDAStream().stream(), &status) ==
             cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

RandomState random_state(const c10::Device& device, const at::Generator& given) {
  RandomState state;
  const at::Generator generator =
      given.defined() ? given : at::globalContext().defaultGenerator(device);
  if (!generator.defined() || !generator.device().is_cuda()) return state;
  int multiprocessors = 0, threads = 0;
  if (cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device.index()) !=
          cudaSuccess ||
      cudaDeviceGetAttribute(&threads, cudaDevAttrMaxThreadsPerMultiProcessor, device.index()) !=
          cudaSuccess)
    return state;
  state.seed = generator.current_seed();
  state.offset = generator.unsafeGetGeneratorImpl()->get_offset();
  state.multiprocessors = static_cast<uint64_t>(multiprocessors);
  state.threads_per_multiprocessor = static_cast<uint64_t>(threads);
  state.known = true;
  return state;
}

}  // namespace tonnage::recorder::device
