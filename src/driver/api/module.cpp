#include "driver/api/module.h"
#include "driver/entry_points.h"

#include <stdio.h>
#include <string.h>

#include <vector>

#include "driver/graphs/graph.h"
#include "driver/recording.h"

namespace tonnage::driver {
namespace {

Module* make_module(const void* data, Context* context, Device* device, image::Keep keep) {
  auto* module = new Module;
  module->context = context;
  module->device = device;
  int status = 0;
  module->image =
      image::Module::open(data, device->card->cc_major, device->card->cc_minor, &status, keep);
  module->open_status = module->image ? 0 : status;
  return module;
}

std::vector<char> read_file(const char* path) {
  std::vector<char> bytes;
  FILE* file = fopen(path, "rbe");
  if (!file) return bytes;
  char buffer[65536];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, file)) > 0;)
    bytes.insert(bytes.end(), buffer, buffer + n);
  fclose(file);
  bytes.push_back(0);  // PTX text ends in NUL
  return bytes;
}

// An address for a module's variable.
CUresult place_variable(Context* context, Device* device, size_t bytes, CUdeviceptr* out) {
  Allocation allocation;
  allocation.address = device->footprint.place_variable(bytes);
  if (!allocation.address) return CUDA_ERROR_OUT_OF_MEMORY;
  allocation.requested_bytes = bytes;
  allocation.kind = abi::DeviceMemoryKind::kModuleData;
  allocation.context = context;
  allocation.device = device;
  allocation.buffer_id = driver()->new_id();
  allocation.owned_elsewhere = true;
  add_allocation(allocation);
  *out = allocation.address;
  return CUDA_SUCCESS;
}

void release_variable(CUdeviceptr address) {
  Allocation allocation;
  if (remove_allocation(address, &allocation))
    driver()->content.forget(address, allocation.requested_bytes);
}

// By device, a bit each.
bool is_on(const std::atomic<uint32_t>& devices, const Device* device) {
  return devices.load(std::memory_order_acquire) & (1u << device->index);
}
void set_on(std::atomic<uint32_t>* devices, const Device* device) {
  devices->fetch_or(1u << device->index, std::memory_order_release);
}

// A module's variables and constants are loaded to the card with its first kernel. Measured on an
// H200: the first such module takes 2 MiB, and later ones share it. To be called without the lock
// of the footprint, which this takes.
CUresult place_variables(Module* module, Device* device) {
  for (const image::GlobalInfo& global : module->image->globals()) {
    CUdeviceptr address = 0;
    size_t bytes = 0;
    const CUresult result =
        find_variable(module, device, std::string(global.name).c_str(), &address, &bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) return result;
  }
  return CUDA_SUCCESS;
}

// Kernels come to the card one at a time.
std::mutex& resident_mutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

CUresult unload(Module* module) {
  for (auto& [key, variable] : module->variables) release_variable(variable.address);
  for (auto& [name, function] : module->functions) function->magic = 0;
  module->magic = 0;
  delete module;
  return CUDA_SUCCESS;
}

}  // namespace

Device* device_for(const Module* module) {
  if (!module->is_library) return module->device;
  const Context* context = current_context();
  return context ? context->device : module->device;
}

CUresult find_variable(Module* module, Device* device, const char* name, CUdeviceptr* address,
                       size_t* bytes) {
  if (!module->image) return static_cast<CUresult>(module->open_status);
  std::lock_guard lock(module->mutex);
  auto known = module->variables.find({device, name});
  if (known == module->variables.end()) {
    const image::GlobalInfo* global = module->image->global(name);
    if (!global) return CUDA_ERROR_NOT_FOUND;
    Module::Variable variable;
    variable.bytes = global->size_bytes;
    Context* context = module->context ? module->context : current_context();
    if (const CUresult result =
            place_variable(context, device, global->size_bytes, &variable.address);
        result != CUDA_SUCCESS)
      return result;
    // Static initial values are not read; PyTorch and the libraries only write theirs.
    known = module->variables.emplace(std::pair(device, std::string(name)), variable).first;
  }
  if (address) *address = known->second.address;
  if (bytes) *bytes = known->second.bytes;
  return CUDA_SUCCESS;
}

CUresult make_resident(Function* function, Device* device) {
  if (is_on(function->resident, device)) return CUDA_SUCCESS;
  Module* module = function->module;
  if (!is_on(module->has_come, device))
    if (const CUresult result = place_variables(module, device); result != CUDA_SUCCESS)
      return result;
  std::lock_guard lock(resident_mutex());
  if (is_on(function->resident, device)) return CUDA_SUCCESS;
  const image::CodeInfo* code = module->image->code();
  if (!is_on(module->has_come, device)) {
    if (code && !device->footprint.add_module_code(*code)) return CUDA_ERROR_OUT_OF_MEMORY;
    set_on(&module->has_come, device);
  }
  if (!device->footprint.add_kernel_code(*function->info, function->name))
    return CUDA_ERROR_OUT_OF_MEMORY;
  set_on(&function->resident, device);
  return CUDA_SUCCESS;
}

CUresult prepare_launch(Function* function, Device* device) {
  if (const CUresult result = make_resident(function, device); result != CUDA_SUCCESS)
    return result;
  if (is_on(function->launched, device)) return CUDA_SUCCESS;
  std::lock_guard lock(resident_mutex());
  if (is_on(function->launched, device)) return CUDA_SUCCESS;
  if (!device->footprint.prepare_launch(*function->info, function->name))
    return CUDA_ERROR_OUT_OF_MEMORY;
  set_on(&function->launched, device);
  return CUDA_SUCCESS;
}

Module* to_module(const void* handle) {
  auto* module = static_cast<Module*>(const_cast<void*>(handle));
  return module && module->magic == kModuleMagic ? module : nullptr;
}
Function* to_function(const void* handle) {
  auto* function = static_cast<Function*>(const_cast<void*>(handle));
  if (!function) return nullptr;
  if (function->magic == kFunctionNodeMagic)
    function = static_cast<const FunctionNode*>(handle)->function;
  return function->magic == kFunctionMagic ? function : nullptr;
}

CUresult load_module(Context* context, const void* data, CUmodule* out) {
  if (!data || !out) return CUDA_ERROR_INVALID_VALUE;
  Module* module = make_module(data, context, context->device, image::Keep::kGuess);
  if (!module->image) {
    const int status = module->open_status;
    delete module;
    return static_cast<CUresult>(status);
  }
  *out = reinterpret_cast<CUmodule>(module);
  return CUDA_SUCCESS;
}

CUresult find_kernel(Module* module, const char* name, Function** out) {
  if (!module->image) return static_cast<CUresult>(module->open_status);
  std::lock_guard lock(module->mutex);
  auto known = module->functions.find(name);
  if (known == module->functions.end()) {
    int status = 0;
    if (!module->image->code(&status)) return static_cast<CUresult>(status);
    const image::KernelInfo* info = module->image->kernel(name);
    if (!info) return CUDA_ERROR_NOT_FOUND;
    auto function = std::make_unique<Function>();
    function->module = module;
    function->info = info;
    known = module->functions.emplace(name, std::move(function)).first;
    known->second->name = known->first.c_str();
  }
  *out = known->second.get();
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(Context* context, CUmodule* out, const void* image) {
  return load_module(context, image, out);
}
CUresult cuModuleLoadDataEx(Context* context, CUmodule* out, const void* image, unsigned int count,
                            CUjit_option* options, void** values) {
  // What a JIT compiler would report: nothing.
  for (unsigned i = 0; i < count && options && values; i++)
    if (options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES ||
        options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
      values[i] = nullptr;
  return load_module(context, image, out);
}
CUresult cuModuleLoadFatBinary(Context* context, CUmodule* out, const void* image) {
  return load_module(context, image, out);
}
CUresult cuModuleLoad(Context* context, CUmodule* out, const char* path) {
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  const std::vector<char> bytes = read_file(path);
  if (bytes.size() <= 1) return CUDA_ERROR_FILE_NOT_FOUND;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  Module* module = make_module(bytes.data(), context, context->device, image::Keep::kThisCall);
  if (!module->image) {
    const int status = module->open_status;
    delete module;
    return static_cast<CUresult>(status);
  }
  *out = reinterpret_cast<CUmodule>(module);
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(Driver*, CUmodule handle) {
  Module* module = to_module(handle);
  return module && !module->is_library ? unload(module) : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuModuleGetLoadingMode(Driver*, CUmoduleLoadingMode* mode) {
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  const char* wish = getenv("CUDA_MODULE_LOADING");
  *mode = wish && strcmp(wish, "EAGER") == 0 ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}
template <class Handle>
static CUresult handle_of_kernel(const void* handle, const char* name, Handle* out) {
  Module* module = to_module(handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  if (!out || !name) return CUDA_ERROR_INVALID_VALUE;
  Function* function = nullptr;
  const CUresult result = find_kernel(module, name, &function);
  *out = reinterpret_cast<Handle>(function);
  return result;
}
// Lazy loading loads a function when its handle is asked for, whether it is launched or not
// (measured on an H200). The handle of a library's kernel does not count.
CUresult cuModuleGetFunction(Driver*, CUfunction* out, CUmodule handle, const char* name) {
  const CUresult result = handle_of_kernel(handle, name, out);
  return result == CUDA_SUCCESS ? make_resident(to_function(*out), device_for(to_module(handle)))
                                : result;
}
CUresult cuModuleGetFunctionCount(Driver*, unsigned int* count, CUmodule handle) {
  Module* module = to_module(handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  if (!module->image) return static_cast<CUresult>(module->open_status);
  *count = static_cast<unsigned>(module->image->kernels().size());
  return CUDA_SUCCESS;
}
CUresult cuModuleEnumerateFunctions(Driver*, CUfunction* functions, unsigned int count,
                                    CUmodule handle) {
  Module* module = to_module(handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  if (!functions) return CUDA_ERROR_INVALID_VALUE;
  if (!module->image) return static_cast<CUresult>(module->open_status);
  unsigned i = 0;
  for (const image::KernelInfo& info : module->image->kernels()) {
    if (i == count) break;
    Function* function = nullptr;
    if (find_kernel(module, std::string(info.name).c_str(), &function) == CUDA_SUCCESS)
      functions[i++] = reinterpret_cast<CUfunction>(function);
  }
  return CUDA_SUCCESS;
}
CUresult cuModuleGetGlobal_v2(Context*, CUdeviceptr* address, size_t* bytes, CUmodule handle,
                              const char* name) {
  Module* module = to_module(handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  return find_variable(module, device_for(module), name, address, bytes);
}

// --- Libraries ---

CUresult cuLibraryLoadData(Driver* state, CUlibrary* out, const void* code, CUjit_option*, void**,
                           unsigned int, CUlibraryOption* options, void** values,
                           unsigned int option_count) {
  if (!out || !code) return CUDA_ERROR_INVALID_VALUE;
  image::Keep keep = image::Keep::kGuess;
  for (unsigned i = 0; i < option_count && options && values; i++)
    if (options[i] == CU_LIBRARY_BINARY_IS_PRESERVED && values[i]) keep = image::Keep::kForever;
  Context* context = current_context();
  Device* device = context ? context->device : state->devices[0].get();
  Module* module = make_module(code, nullptr, device, keep);
  module->is_library = true;
  // A library without code for the device loads nevertheless; later calls that need its code fail.
  // Invalid data fails at once.
  if (!module->image && module->open_status != CUDA_ERROR_NO_BINARY_FOR_GPU) {
    const int status = module->open_status;
    delete module;
    return static_cast<CUresult>(status);
  }
  *out = reinterpret_cast<CUlibrary>(module);
  return CUDA_SUCCESS;
}
CUresult cuLibraryLoadFromFile(Driver* state, CUlibrary* out, const char* path,
                               CUjit_option* jit_options, void** jit_values, unsigned int jit_count,
                               CUlibraryOption*, void**, unsigned int) {
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  const std::vector<char> bytes = read_file(path);
  if (bytes.size() <= 1) return CUDA_ERROR_FILE_NOT_FOUND;
  return cuLibraryLoadData(state, out, bytes.data(), jit_options, jit_values, jit_count, nullptr,
                           nullptr, 0);
}
CUresult cuLibraryUnload(Driver*, CUlibrary handle) {
  Module* module = to_module(handle);
  return module && module->is_library ? unload(module) : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuLibraryGetKernel(Driver*, CUkernel* out, CUlibrary handle, const char* name) {
  return handle_of_kernel(handle, name, out);
}
CUresult cuLibraryGetKernelCount(Driver* state, unsigned int* count, CUlibrary handle) {
  return cuModuleGetFunctionCount(state, count, reinterpret_cast<CUmodule>(handle));
}
CUresult cuLibraryEnumerateKernels(Driver* state, CUkernel* kernels, unsigned int count,
                                   CUlibrary handle) {
  return cuModuleEnumerateFunctions(state, reinterpret_cast<CUfunction*>(kernels), count,
                                    reinterpret_cast<CUmodule>(handle));
}
CUresult cuLibraryGetModule(Context*, CUmodule* out, CUlibrary handle) {
  Module* module = to_module(handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (!module->image) return static_cast<CUresult>(module->open_status);
  *out = reinterpret_cast<CUmodule>(module);
  return CUDA_SUCCESS;
}
CUresult cuLibraryGetGlobal(Context* context, CUdeviceptr* address, size_t* bytes, CUlibrary handle,
                            const char* name) {
  return cuModuleGetGlobal_v2(context, address, bytes, reinterpret_cast<CUmodule>(handle), name);
}
CUresult cuLibraryGetManaged(Driver*, CUdeviceptr*, size_t*, CUlibrary handle, const char* name) {
  if (!to_module(handle)) return CUDA_ERROR_INVALID_HANDLE;
  return name ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuLibraryGetUnifiedFunction(Driver*, void**, CUlibrary handle, const char*) {
  return to_module(handle) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

// --- Kernels ---

CUresult cuKernelGetFunction(Context*, CUfunction* out, CUkernel handle) {
  Function* function = to_function(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = make_resident(function, device_for(function->module));
  if (result == CUDA_SUCCESS) *out = reinterpret_cast<CUfunction>(function);
  return result;
}
CUresult cuKernelGetLibrary(Driver*, CUlibrary* out, CUkernel handle) {
  Function* function = to_function(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUlibrary>(function->module);
  return CUDA_SUCCESS;
}
CUresult cuFuncGetModule(Driver* state, CUmodule* out, CUfunction handle) {
  return cuKernelGetLibrary(state, reinterpret_cast<CUlibrary*>(out),
                            reinterpret_cast<CUkernel>(handle));
}
CUresult cuFuncGetName(Driver*, const char** name, CUfunction handle) {
  Function* function = to_function(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  *name = function->name;
  return CUDA_SUCCESS;
}
CUresult cuKernelGetName(Driver* state, const char** name, CUkernel handle) {
  return cuFuncGetName(state, name, reinterpret_cast<CUfunction>(handle));
}
CUresult cuFuncGetParamInfo(Driver*, CUfunction handle, size_t index, size_t* offset,
                            size_t* size) {
  Function* function = to_function(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (!offset || index >= function->info->params.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = function->info->params[index].offset_bytes;
  if (size) *size = function->info->params[index].size_bytes;
  return CUDA_SUCCESS;
}
CUresult cuKernelGetParamInfo(Driver* state, CUkernel handle, size_t index, size_t* offset,
                              size_t* size) {
  return cuFuncGetParamInfo(state, reinterpret_cast<CUfunction>(handle), index, offset, size);
}
CUresult cuFuncIsLoaded(Driver*, CUfunctionLoadingState* state, CUfunction handle) {
  Function* function = to_function(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (!state) return CUDA_ERROR_INVALID_VALUE;
  *state = (function->resident.load() >> device_for(function->module)->index & 1)
               ? CU_FUNCTION_LOADING_STATE_LOADED
               : CU_FUNCTION_LOADING_STATE_UNLOADED;
  return CUDA_SUCCESS;
}
CUresult cuFuncLoad(Driver*, CUfunction handle) {
  Function* function = to_function(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  return make_resident(function, device_for(function->module));
}

}  // namespace tonnage::driver
