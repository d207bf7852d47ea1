#include "driver/asking_library.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unwind.h>

#include <string_view>

namespace tonnage::driver {
namespace {

constexpr int kMostFrames = 64;

struct Known {
  std::string_view beginning;  // of the file's name
  std::string_view name;
};
constexpr Known kKnown[] = {{"libcublas", "cublas"},         {"libcudnn", "cudnn"},
                            {"libcufft", "cufft"},           {"libcusolver", "cusolver"},
                            {"libcusparse", "cusparse"},     {"libnccl", "nccl"},
                            {"libc10_cuda", "pytorch"},      {"libtorch", "pytorch"},
                            {"libcurand", "curand"},         {"librmm", "rmm"},
                            {"libnvshmem", "nvshmem"},       {"libonnxruntime", "onnxruntime"},
                            {"libtensorflow", "tensorflow"}, {"xla_cuda_plugin", "jax"},
                            {"libpaddle", "paddle"}};
// They pass on what others ask for.
constexpr std::string_view kPassOn[] = {"libcudart",  "libcuda.",  "libffi",
                                        "_ctypes",    "libc10.",   "libc.",
                                        "libpthread", "libstdc++", "libgcc_s"};
constexpr std::string_view kInterpreters[] = {"libpython", "python"};

struct Walk {
  const void* own = nullptr;  // where this library begins
  int frames = 0;
  std::string found;
};

_Unwind_Reason_Code look(_Unwind_Context* context, void* argument) {
  auto* walk = static_cast<Walk*>(argument);
  if (++walk->frames > kMostFrames) return _URC_END_OF_STACK;
  const uintptr_t address = _Unwind_GetIP(context);
  Dl_info info{};
  if (!address || !dladdr(reinterpret_cast<void*>(address - 1), &info) || !info.dli_fname)
    return _URC_NO_REASON;
  if (info.dli_fbase == walk->own) return _URC_NO_REASON;
  walk->found = library_name(info.dli_fname);
  return walk->found.empty() ? _URC_NO_REASON : _URC_END_OF_STACK;
}

}  // namespace

std::string library_name(const std::string& path) {
  const std::string_view whole = path;
  const size_t slash = whole.rfind('/');
  std::string_view file = slash == std::string_view::npos ? whole : whole.substr(slash + 1);
  for (const std::string_view beginning : kPassOn)
    if (file.starts_with(beginning)) return "";
  for (const Known& known : kKnown)
    if (file.starts_with(known.beginning)) return std::string(known.name);
  // Extension modules have many names: their package tells.
  for (const std::string_view package :
       {"/cupy", "/rmm", "/numba", "/jax", "/tensorflow", "/paddle"}) {
    const size_t at = whole.find(package);
    if (at != std::string_view::npos && slash != std::string_view::npos && at < slash)
      return std::string(package.substr(1));
  }
  for (const std::string_view interpreter : kInterpreters)
    if (file.starts_with(interpreter)) return "program";
  if (file.find(".so") == std::string_view::npos) return "program";  // an executable
  if (file.starts_with("lib")) file.remove_prefix(3);
  return std::string(file.substr(0, file.find('.')));
}

std::string asking_library() {
  Walk walk;
  Dl_info here{};
  if (dladdr(reinterpret_cast<void*>(&look), &here)) walk.own = here.dli_fbase;
  _Unwind_Backtrace(look, &walk);
  return walk.found.empty() ? "program" : walk.found;
}

}  // namespace tonnage::driver
