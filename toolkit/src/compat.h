// What differs between the releases of libtorch that the toolkit is compiled for, 2.6 and later.
// All of it is here.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <cstddef>
#include <string>
#include <utility>

#define TONNAGE_TORCH_VERSION (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)

#if TONNAGE_TORCH_VERSION >= 210
#include <c10/core/AllocatorConfig.h>
#endif
// CPU builds bring c10/cuda's headers too, but not this generated one, which the others include.
#if TONNAGE_TORCH_VERSION < 211 && __has_include(<c10/cuda/impl/cuda_cmake_macros.h>)
#include <c10/cuda/CUDAStream.h>
#define TONNAGE_HAS_C10_CUDA 1
#if TONNAGE_TORCH_VERSION < 210
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#endif
#endif
#if TONNAGE_TORCH_VERSION < 210
#include <dlfcn.h>
#endif

namespace tonnage::compat {

#if TONNAGE_TORCH_VERSION >= 210

using DeviceAllocator = c10::DeviceAllocator;

inline DeviceAllocator* device_allocator(c10::DeviceType type) {
  return c10::getDeviceAllocator(type);
}

// Free and total bytes of the device, which has its index.
inline std::pair<size_t, size_t> memory_info(c10::Device device) {
  return device_allocator(device.type())->getMemoryInfo(device.index());
}

inline std::string allocator_settings() { return c10::CachingAllocator::getAllocatorSettings(); }
inline void set_allocator_settings(const std::string& settings) {
  c10::CachingAllocator::setAllocatorSettings(settings);
}

#else

// Up to 2.9 these are of CUDA's allocator, under the same names. (2.9 has c10::DeviceAllocator, but
// without getMemoryInfo.)
#ifdef TONNAGE_HAS_C10_CUDA
using DeviceAllocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;

inline DeviceAllocator* device_allocator(c10::DeviceType) {
  return c10::cuda::CUDACachingAllocator::get();
}

inline std::string allocator_settings() {
  return c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::last_allocator_settings();
}
inline void set_allocator_settings(const std::string& settings) {
  c10::cuda::CUDACachingAllocator::setAllocatorSettings(settings);
}
#else
// There is no device: checked_cuda_device() throws before these are called.
struct DeviceAllocator {
  bool initialized() const { return false; }
  void emptyCache() {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) const { return {}; }
  void resetPeakStats(c10::DeviceIndex) {}
};

inline DeviceAllocator* device_allocator(c10::DeviceType) {
  static DeviceAllocator none;
  return &none;
}

inline std::string allocator_settings() { return {}; }
inline void set_allocator_settings(const std::string&) {
  TORCH_CHECK(false,
              "set_allocator_settings: Tonnage was compiled for a libtorch without CUDA. Compile "
              "it for the one that is used");
}
#endif

// From the CUDA runtime that libtorch has loaded: nothing of CUDA is linked.
inline std::pair<size_t, size_t> memory_info(c10::Device device) {
  const auto ask =
      reinterpret_cast<int (*)(size_t*, size_t*)>(dlsym(RTLD_DEFAULT, "cudaMemGetInfo"));
  TORCH_CHECK(ask, "the free memory of ", device, " cannot be read: libtorch ", TORCH_VERSION,
              " does not tell it, and its CUDA runtime is no library of its own. "
              "libtorch 2.10 and later tell it");
  const c10::DeviceGuard on_device(device);
  std::pair<size_t, size_t> out;
  const int code = ask(&out.first, &out.second);
  TORCH_CHECK(code == 0, "the free memory of ", device, " cannot be read: cudaMemGetInfo failed (",
              code, ")");
  return out;
}

#endif

// The driver's handle of a CUDA stream.
inline void* stream_handle(const c10::Stream& stream) {
#if TONNAGE_TORCH_VERSION >= 211
  return stream.native_handle();
#elif defined(TONNAGE_HAS_C10_CUDA)
  return c10::cuda::CUDAStream(stream).stream();
#else
  TORCH_CHECK(
      false, stream,
      ": Tonnage was compiled for a libtorch without CUDA. Compile it for the one that is used");
#endif
}

}  // namespace tonnage::compat
