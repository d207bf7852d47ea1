// Modules, libraries and kernels: machine code that the program loads, and questions about it.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "cards/kernel_attributes.h"
#include "driver/state.h"
#include "gpu/kernel_time.h"
#include "image/image.h"

namespace tonnage::driver {

inline constexpr uint32_t kModuleMagic = 0x646f4d56, kFunctionMagic = 0x6e754656,
                          kFunctionNodeMagic = 0x646f4e56;

// A kernel of a module. One object serves as CUfunction and as CUkernel: a launch takes either.
struct Function {
  uint32_t magic = kFunctionMagic;
  struct Module* module = nullptr;
  const image::KernelInfo* info =
      nullptr;                        // for the device of the module; lives as long as the module
  const char* name = "";              // NUL-terminated, owned by the module
  std::atomic<uint32_t> resident{0};  // by device, a bit each: its code is in the card's ledger
  std::atomic<uint32_t> launched{0};
  std::atomic<gpu::KernelSpeed> speed{gpu::KernelSpeed::kNotLooked};
  std::mutex mutex;  // settings
  cards::KernelSettings settings;
  // cuFuncSetBlockShape and cuParamSet* of the oldest interface.
  unsigned block_shape[3] = {1, 1, 1};
  unsigned shared_size = 0;
};

// A kernel as visit_functions (driver/export_tables) hands it to its caller. scuda's public source
// has a block of 1,280 bytes, almost all zero, that is not the CUfunction; a larger one is given
// here, so that a caller that writes into it harms nothing.
struct FunctionNode {
  uint32_t magic = kFunctionNodeMagic;
  uint32_t unused = 0;
  unsigned char callers_bytes[8192] = {};
  Function* function = nullptr;
};

// A loaded image: CUmodule and CUlibrary alike (a library's modules are made from it on demand;
// here they are one).
struct Module {
  uint32_t magic = kModuleMagic;
  Context* context = nullptr;  // null: a library, not bound to a context
  Device* device = nullptr;    // whose code was chosen
  std::unique_ptr<image::Module> image;
  int open_status = 0;  // why `image` is null: reported when something in it is first needed
  bool is_library = false;
  std::mutex mutex;
  std::unordered_map<std::string, std::unique_ptr<Function>> functions;
  std::unordered_map<Function*, std::unique_ptr<FunctionNode>> nodes;
  struct Variable {
    CUdeviceptr address = 0;
    size_t bytes = 0;
  };
  std::map<std::pair<Device*, std::string>, Variable>
      variables;                      // a library has its own on each device
  std::atomic<uint32_t> has_come{0};  // by device, a bit each: what comes with the first kernel
};

// For the runtime's private tables: a module of the current context from a wrapper, fat binary,
// cubin or PTX.
CUresult load_module(Context* context, const void* image, CUmodule* out);

Module* to_module(const void* handle);      // a CUmodule or CUlibrary; null if it is neither
Function* to_function(const void* handle);  // a CUfunction or CUkernel; null if it is neither

// The kernel by name; CUDA_ERROR_NOT_FOUND, or why the image cannot be used on this device.
CUresult find_kernel(Module* module, const char* name, Function** out);

// Where a module's variable lies on a device: taken from the card once, when it is first asked for
// or the module's first kernel is launched.
CUresult find_variable(Module* module, Device* device, const char* name, CUdeviceptr* address,
                       size_t* bytes);

// The kernel's code comes to its card (lazy loading), which is charged as modelled memory: when a
// handle for launches, its occupancy or its first launch is asked for. Measured on an H200: to look
// up a kernel's name in a library does not load it. A library's kernels are loaded to every device
// that uses them. OUT_OF_MEMORY: the card is full; the next call tries again.
CUresult make_resident(Function* function, Device* device);
// Before a launch; the first one also brings what kernels need to run: local memory, room for
// printf and malloc.
CUresult prepare_launch(Function* function, Device* device);
// The device on which a kernel or variable is asked for: a module's own; of a library, that of the
// current context.
Device* device_for(const Module* module);

}  // namespace tonnage::driver
