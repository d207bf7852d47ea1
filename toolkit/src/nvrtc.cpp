#include "nvrtc.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <link.h>

#include <map>
#include <mutex>
#include <vector>

#include "compat.h"

namespace tonnage {
namespace {

// The few functions that are used, by the shape that NVIDIA's documentation of NVRTC and of the
// driver gives them. All return 0 on success.
struct Nvrtc {
  int (*create)(void** program, const char* source, const char* name, int headers,
                const char* const* header_sources, const char* const* header_names);
  int (*compile)(void* program, int options, const char* const* option_texts);
  int (*destroy)(void** program);
  int (*log_bytes)(void* program, size_t* bytes);
  int (*log)(void* program, char* out);
  int (*cubin_bytes)(void* program, size_t* bytes);
  int (*cubin)(void* program, char* out);
  const char* (*error_text)(int code);
};

struct CudaDriver {
  int (*device_get)(int* device, int ordinal);
  int (*attribute)(int* value, int attribute, int device);
  int (*module_load)(void** module, const void* image);
  int (*module_function)(void** function, void* module, const char* name);
  int (*launch)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream,
                void** arguments, void** extra);
  int (*error_text)(int code, const char** text);
};
constexpr int kComputeCapabilityMajor = 75, kComputeCapabilityMinor = 76;  // CUdevice_attribute

template <class Function>
void find(void* library, const char* name, Function& out) {
  out = reinterpret_cast<Function>(dlsym(library, name));
  TORCH_CHECK(out, "CUDA kernel: ", name, " was not found: ", dlerror());
}

// PyTorch's own stub library is linked to the NVRTC that belongs to it, and is found beside libtorch.
void* open_nvrtc() {
  for (const char* name : {"libcaffe2_nvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"})
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  if (void* torch_cuda = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD)) {
    link_map* place = nullptr;
    if (dlinfo(torch_cuda, RTLD_DI_LINKMAP, &place) == 0 && place) {
      const std::string path = place->l_name;
      if (void* library =
              dlopen((path.substr(0, path.rfind('/') + 1) + "libcaffe2_nvrtc.so").c_str(),
                     RTLD_NOW | RTLD_LOCAL))
        return library;
    }
  }
  TORCH_CHECK(false, "CUDA kernel: NVRTC was not found (", dlerror(),
              "). It comes with PyTorch's CUDA builds; put its folder on LD_LIBRARY_PATH");
}

const Nvrtc& nvrtc() {
  static const Nvrtc functions = [] {
    void* library = open_nvrtc();
    Nvrtc f{};
    find(library, "nvrtcCreateProgram", f.create);
    find(library, "nvrtcCompileProgram", f.compile);
    find(library, "nvrtcDestroyProgram", f.destroy);
    find(library, "nvrtcGetProgramLogSize", f.log_bytes);
    find(library, "nvrtcGetProgramLog", f.log);
    find(library, "nvrtcGetCUBINSize", f.cubin_bytes);
    find(library, "nvrtcGetCUBIN", f.cubin);
    find(library, "nvrtcGetErrorString", f.error_text);
    return f;
  }();
  return functions;
}

const CudaDriver& driver() {
  static const CudaDriver functions = [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    TORCH_CHECK(library, "CUDA kernel: ", dlerror());
    CudaDriver f{};
    find(library, "cuDeviceGet", f.device_get);
    find(library, "cuDeviceGetAttribute", f.attribute);
    find(library, "cuModuleLoadData", f.module_load);
    find(library, "cuModuleGetFunction", f.module_function);
    find(library, "cuLaunchKernel", f.launch);
    find(library, "cuGetErrorString", f.error_text);
    return f;
  }();
  return functions;
}

void check_driver(int code, const char* what, const std::string& kernel) {
  if (code == 0) return;
  const char* text = nullptr;
  driver().error_text(code, &text);
  TORCH_CHECK(false, "CUDA kernel ", kernel, ": ", what, ": ", text ? text : "unknown error", " (",
              code, ")");
}

std::string architecture(c10::Device device, const std::string& kernel) {
  int handle = 0, major = 0, minor = 0;
  check_driver(driver().device_get(&handle, device.index()), "cuDeviceGet", kernel);
  check_driver(driver().attribute(&major, kComputeCapabilityMajor, handle), "cuDeviceGetAttribute",
               kernel);
  check_driver(driver().attribute(&minor, kComputeCapabilityMinor, handle), "cuDeviceGetAttribute",
               kernel);
  return "sm_" + std::to_string(major * 10 + minor);
}

std::vector<char> compile(const std::string& source, const std::string& kernel,
                          const std::string& sm) {
  void* program = nullptr;
  int code =
      nvrtc().create(&program, source.c_str(), (kernel + ".cu").c_str(), 0, nullptr, nullptr);
  TORCH_CHECK(code == 0, "CUDA kernel ", kernel, ": ", nvrtc().error_text(code));
  const std::string target = "--gpu-architecture=" + sm;
  const char* options[] = {target.c_str(), "--std=c++17", "-default-device"};
  code = nvrtc().compile(program, 3, options);
  std::string log;
  std::vector<char> cubin;
  size_t bytes = 0;
  if (code != 0) {
    if (nvrtc().log_bytes(program, &bytes) == 0 && bytes > 0) {
      log.resize(bytes);
      nvrtc().log(program, log.data());
    }
  } else if ((code = nvrtc().cubin_bytes(program, &bytes)) == 0) {
    cubin.resize(bytes);
    code = nvrtc().cubin(program, cubin.data());
  }
  nvrtc().destroy(&program);
  TORCH_CHECK(code == 0, "CUDA kernel ", kernel, " does not compile for ", sm, ": ",
              nvrtc().error_text(code), "\n", log);
  return cubin;
}

}  // namespace

struct CudaKernel::State {
  std::string source, name;
  std::mutex mutex;
  std::map<int, void*> functions;  // by device; modules stay loaded until the process ends
};

CudaKernel::CudaKernel(std::string source, std::string name) : state_(std::make_unique<State>()) {
  state_->source = std::move(source);
  state_->name = std::move(name);
}
CudaKernel::~CudaKernel() = default;

void CudaKernel::prepare(c10::Device device) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  void*& function = state_->functions[device.index()];
  if (function) return;
  c10::DeviceGuard guard(device);
  const std::vector<char> cubin =
      compile(state_->source, state_->name, architecture(device, state_->name));
  void* module = nullptr;
  check_driver(driver().module_load(&module, cubin.data()), "cuModuleLoadData", state_->name);
  check_driver(driver().module_function(&function, module, state_->name.c_str()),
               "cuModuleGetFunction", state_->name);
}

void CudaKernel::launch(c10::Device device, uint32_t blocks, uint32_t threads, void** arguments) {
  prepare(device);
  void* function = nullptr;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    function = state_->functions[device.index()];
  }
  c10::DeviceGuard guard(device);
  void* stream =
      compat::stream_handle(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  check_driver(
      driver().launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr),
      "cuLaunchKernel", state_->name);
}

}  // namespace tonnage
