// Launches, kernel attributes and occupancy. A kernel does nothing; only the answers to the host
// matter.
#include <string.h>

#include <utility>

#include "cards/occupancy.h"
#include "driver/api/module.h"
#include "driver/bridge.h"
#include "driver/entry_points.h"
#include "driver/graphs/graph.h"
#include "driver/recording.h"
#include "driver/state.h"

namespace tonnage::driver {
namespace {

cards::KernelAttributes attributes_of(Function* function) {
  std::lock_guard lock(function->mutex);
  return cards::resolve(*function->info, function->settings, *function->module->device->card);
}

// Calls `use` with every word of a kernel's arguments that may be a pointer.
template <class Use>
void each_argument_word(const Function& function, void** params, void** extra, Use use) {
  const unsigned char* packed = nullptr;
  size_t packed_bytes = 0;
  for (void** at = extra; at && *at != CU_LAUNCH_PARAM_END; at += 2) {
    if (*at == CU_LAUNCH_PARAM_BUFFER_POINTER) packed = static_cast<const unsigned char*>(at[1]);
    if (*at == CU_LAUNCH_PARAM_BUFFER_SIZE) packed_bytes = *static_cast<size_t*>(at[1]);
  }
  for (size_t i = 0; i < function.info->params.size(); i++) {
    const image::ParamInfo& param = function.info->params[i];
    const unsigned char* bytes = nullptr;
    if (params)
      bytes = static_cast<const unsigned char*>(params[i]);
    else if (packed && param.offset_bytes + param.size_bytes <= packed_bytes)
      bytes = packed + param.offset_bytes;
    if (!bytes) continue;
    for (size_t offset = 0; offset + 8 <= param.size_bytes; offset += 8) {
      uint64_t word = 0;
      memcpy(&word, bytes + offset, 8);
      use(word);
    }
  }
}

// A kernel that the recorder does not know: everything behind its pointer arguments becomes
// unknown, because it may have been written.
void forget_behind_arguments(const Function& function, void** params, void** extra, bool in_graph) {
  Driver* state = driver();
  each_argument_word(function, params, extra, [&](uint64_t word) {
    if (!state->is_device_address(word)) return;
    // PyTorch's blocks share large allocations. A pointer to the start of a live block writes only
    // that block. When a graph runs, its kernels' blocks may have been freed, and others may be in
    // their place.
    if (const uint64_t bytes = in_graph ? 0 : torch_blocks().bytes_at(word))
      return state->content.forget(word, bytes);
    Allocation allocation;
    if (!find_allocation(word, &allocation)) return;
    const uint64_t end =
        allocation.address + std::max(allocation.requested_bytes, allocation.accounted_bytes);
    if (!state->content.any(word, end - word)) return;
    // A pointer into a block (the end of a range, for example) writes no further than the block.
    const auto [begin, bytes] =
        in_graph ? std::pair<uint64_t, uint64_t>() : torch_blocks().containing(word);
    state->content.forget(word, (bytes ? begin + bytes : end) - word);
  });
}

// Of a CUTLASS 2 kernel's parameters the first three words are the product's extents m, n, k.
bool find_product_extents(const Function& function, void** params, int32_t extents[3]) {
  if (!params || function.info->params.empty() || function.info->params[0].size_bytes < 12 ||
      !params[0])
    return false;
  memcpy(extents, params[0], 12);
  return extents[0] > 0 && extents[1] > 0 && extents[2] > 0;
}

// Ticks of a launch on the virtual clock (gpu/kernel_time.h).
uint64_t count_ticks(Function* function, void** params) {
  gpu::KernelSpeed speed = function->speed.load(std::memory_order_relaxed);
  if (speed == gpu::KernelSpeed::kNotLooked) {
    speed = gpu::find_kernel_speed(function->name);
    function->speed.store(speed, std::memory_order_relaxed);
  }
  int32_t extents[3];
  if (speed == gpu::KernelSpeed::kOrdinary || !find_product_extents(*function, params, extents))
    return 1;
  return gpu::count_product_ticks(extents[0], extents[1], extents[2]);
}

CUresult check_launch(Function* function, const KernelLaunch& launch, const Context* context) {
  const abi::CardDesc& card = *context->device->card;
  const int32_t* limit = card.attributes;
  uint64_t threads = 1;
  for (int i = 0; i < 3; i++) {
    if (launch.grid[i] == 0 || launch.block[i] == 0) return CUDA_ERROR_INVALID_VALUE;
    if (launch.grid[i] > static_cast<unsigned>(limit[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i]))
      return CUDA_ERROR_INVALID_VALUE;
    if (launch.block[i] > static_cast<unsigned>(limit[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i]))
      return CUDA_ERROR_INVALID_VALUE;
    threads *= launch.block[i];
  }
  if (threads > static_cast<uint64_t>(limit[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK]))
    return CUDA_ERROR_INVALID_VALUE;
  if (launch.shared_bytes > 48u << 10) {
    const cards::KernelAttributes attributes = attributes_of(function);
    if (launch.shared_bytes >
        static_cast<unsigned>(std::max(attributes.max_dynamic_shared_bytes, 0)))
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult launch(const KernelLaunch& request, Stream* stream) {
  const Context* context = stream->context;
  Function* function = to_function(request.function);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = check_launch(function, request, context); result != CUDA_SUCCESS)
    return result;
  bool capturing = false;
  if (const CUresult result = capture_state(stream, &capturing); result != CUDA_SUCCESS)
    return result;
  if (capturing) {
    if (const CUresult result = make_resident(function, context->device); result != CUDA_SUCCESS)
      return result;
    return capture_kernel(stream, request);
  }
  return run_kernel(stream, request, /*in_graph=*/false);
}

}  // namespace

CUresult run_kernel(Stream* stream, const KernelLaunch& launch, bool in_graph) {
  Function* function = to_function(launch.function);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = prepare_launch(function, stream->context->device);
      result != CUDA_SUCCESS)
    return result;
  for (size_t i = 0; i < launch.attribute_count; i++) {
    const CUlaunchAttribute& attribute = launch.attributes[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN &&
        attribute.value.memSyncDomain == CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE)
      if (!stream->context->device->footprint.prepare_remote_domain())
        return CUDA_ERROR_OUT_OF_MEMORY;
  }
  advance(stream, count_ticks(function, launch.params));
  stream->context->device->launches.fetch_add(1, std::memory_order_relaxed);
  if (driver()->managed.any())
    each_argument_word(*function, launch.params, launch.extra, [&](uint64_t word) {
      driver()->managed.use(word, stream->context->device);
    });
  if ((launch.params || launch.extra) && !accounted_for(function->info->name))
    forget_behind_arguments(*function, launch.params, launch.extra, in_graph);
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                        unsigned int block_z, unsigned int shared_bytes, Stream* stream,
                        void** params, void** extra) {
  KernelLaunch request;
  request.function = function;
  request.grid[0] = grid_x;
  request.grid[1] = grid_y;
  request.grid[2] = grid_z;
  request.block[0] = block_x;
  request.block[1] = block_y;
  request.block[2] = block_z;
  request.shared_bytes = shared_bytes;
  request.params = params;
  request.extra = extra;
  return launch(request, stream);
}

CUresult cuLaunchKernelEx(Context* context, const CUlaunchConfig* config, CUfunction function,
                          void** params, void** extra) {
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  KernelLaunch request;
  request.function = function;
  request.grid[0] = config->gridDimX;
  request.grid[1] = config->gridDimY;
  request.grid[2] = config->gridDimZ;
  request.block[0] = config->blockDimX;
  request.block[1] = config->blockDimY;
  request.block[2] = config->blockDimZ;
  request.shared_bytes = config->sharedMemBytes;
  request.params = params;
  request.extra = extra;
  request.attributes = config->attrs;
  request.attribute_count = config->attrs ? config->numAttrs : 0;
  for (size_t i = 0; i < request.attribute_count; i++)
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
      request.cooperative = config->attrs[i].value.cooperative != 0;
  Stream* stream = to_stream(config->hStream, context);
  return stream ? launch(request, stream) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLaunchCooperativeKernel(Context* context, CUfunction function, unsigned int grid_x,
                                   unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
                                   unsigned int block_y, unsigned int block_z,
                                   unsigned int shared_bytes, Stream* stream, void** params) {
  Function* kernel = to_function(function);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  KernelLaunch request;
  request.function = function;
  request.grid[0] = grid_x;
  request.grid[1] = grid_y;
  request.grid[2] = grid_z;
  request.block[0] = block_x;
  request.block[1] = block_y;
  request.block[2] = block_z;
  request.shared_bytes = shared_bytes;
  request.params = params;
  request.cooperative = true;
  // All blocks must be on the card at once.
  int blocks = 0;
  const abi::CardDesc& card = *context->device->card;
  if (max_active_blocks(card, attributes_of(kernel), static_cast<int>(block_x * block_y * block_z),
                        shared_bytes, &blocks) == 0) {
    const uint64_t room =
        static_cast<uint64_t>(blocks) *
        static_cast<uint64_t>(card.attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT]);
    if (static_cast<uint64_t>(grid_x) * grid_y * grid_z > room)
      return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  return launch(request, stream);
}

// The oldest way to launch: shape and shared memory are the function's own.
CUresult cuFuncSetBlockShape(Driver*, CUfunction handle, int x, int y, int z) {
  Function* function = to_function(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
  function->block_shape[0] = static_cast<unsigned>(x);
  function->block_shape[1] = static_cast<unsigned>(y);
  function->block_shape[2] = static_cast<unsigned>(z);
  return CUDA_SUCCESS;
}
CUresult cuFuncSetSharedSize(Driver*, CUfunction handle, unsigned int bytes) {
  Function* function = to_function(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  function->shared_size = bytes;
  return CUDA_SUCCESS;
}
CUresult cuLaunchGridAsync(CUfunction handle, int width, int height, Stream* stream) {
  Function* function = to_function(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (width <= 0 || height <= 0) return CUDA_ERROR_INVALID_VALUE;
  KernelLaunch request;
  request.function = handle;
  request.grid[0] = static_cast<unsigned>(width);
  request.grid[1] = static_cast<unsigned>(height);
  memcpy(request.block, function->block_shape, sizeof request.block);
  request.shared_bytes = function->shared_size;
  return launch(request, stream);
}
CUresult cuLaunchGrid(Context* context, CUfunction function, int width, int height) {
  return cuLaunchGridAsync(function, width, height, &context->legacy_stream);
}
CUresult cuLaunch(Context* context, CUfunction function) {
  return cuLaunchGrid(context, function, 1, 1);
}

// --- Attributes ---

CUresult cuFuncGetAttribute(Driver*, int* value, CUfunction_attribute attribute,
                            CUfunction handle) {
  Function* function = to_function(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  return static_cast<CUresult>(
      cards::get_kernel_attribute(attributes_of(function), attribute, value));
}
CUresult cuKernelGetAttribute(Driver* state, int* value, CUfunction_attribute attribute,
                              CUkernel kernel, CUdevice) {
  return cuFuncGetAttribute(state, value, attribute, reinterpret_cast<CUfunction>(kernel));
}
CUresult cuFuncSetAttribute(Driver*, CUfunction handle, CUfunction_attribute attribute, int value) {
  Function* function = to_function(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(function->mutex);
  return static_cast<CUresult>(cards::set_kernel_attribute(
      *function->info, &function->settings, *function->module->device->card, attribute, value));
}
CUresult cuKernelSetAttribute(Driver* state, CUfunction_attribute attribute, int value,
                              CUkernel kernel, CUdevice) {
  return cuFuncSetAttribute(state, reinterpret_cast<CUfunction>(kernel), attribute, value);
}
CUresult cuFuncSetCacheConfig(Driver*, CUfunction handle, CUfunc_cache config) {
  Function* function = to_function(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(function->mutex);
  function->settings.cache_config = config;
  return CUDA_SUCCESS;
}
CUresult cuKernelSetCacheConfig(Driver* state, CUkernel kernel, CUfunc_cache config, CUdevice) {
  return cuFuncSetCacheConfig(state, reinterpret_cast<CUfunction>(kernel), config);
}
CUresult cuFuncSetSharedMemConfig(Driver*, CUfunction handle, CUsharedconfig) {
  return to_function(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// --- Occupancy ---

// Occupancy is asked of a function as it lies on its card.
static CUresult make_resident_on_card(Function* function, const abi::CardDesc** card) {
  Device* device = device_for(function->module);
  *card = device->card;
  return make_resident(function, device);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(Driver*, int* blocks, CUfunction handle,
                                                     int threads, size_t shared_bytes) {
  Function* function = to_function(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  const abi::CardDesc* card = nullptr;
  if (const CUresult result = make_resident_on_card(function, &card); result != CUDA_SUCCESS)
    return result;
  if (!blocks) return CUDA_ERROR_INVALID_VALUE;
  return static_cast<CUresult>(
      max_active_blocks(*card, attributes_of(function), threads, shared_bytes, blocks));
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(Driver* state, int* blocks,
                                                              CUfunction function, int threads,
                                                              size_t shared_bytes,
                                                              unsigned int flags) {
  if (flags & ~1u) return CUDA_ERROR_INVALID_VALUE;
  return cuOccupancyMaxActiveBlocksPerMultiprocessor(state, blocks, function, threads,
                                                     shared_bytes);
}
CUresult cuOccupancyAvailableDynamicSMemPerBlock(Driver*, size_t* bytes, CUfunction handle,
                                                 int blocks, int threads) {
  Function* function = to_function(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  const abi::CardDesc* card = nullptr;
  if (const CUresult result = make_resident_on_card(function, &card); result != CUDA_SUCCESS)
    return result;
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  return static_cast<CUresult>(
      available_dynamic_shared(*card, attributes_of(function), blocks, threads, bytes));
}
CUresult cuOccupancyMaxPotentialBlockSize(Driver*, int* min_grid, int* threads, CUfunction handle,
                                          CUoccupancyB2DSize shared_for_block, size_t shared_bytes,
                                          int limit) {
  Function* function = to_function(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  const abi::CardDesc* card = nullptr;
  if (const CUresult result = make_resident_on_card(function, &card); result != CUDA_SUCCESS)
    return result;
  if (!min_grid || !threads) return CUDA_ERROR_INVALID_VALUE;
  return static_cast<CUresult>(max_potential_block_size(
      *card, attributes_of(function), shared_for_block, shared_bytes, limit, min_grid, threads));
}
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(Driver* state, int* min_grid, int* threads,
                                                   CUfunction function,
                                                   CUoccupancyB2DSize shared_for_block,
                                                   size_t shared_bytes, int limit,
                                                   unsigned int flags) {
  if (flags & ~1u) return CUDA_ERROR_INVALID_VALUE;
  return cuOccupancyMaxPotentialBlockSize(state, min_grid, threads, function, shared_for_block,
                                          shared_bytes, limit);
}

namespace {

cards::ClusterLaunch cluster_launch(const CUlaunchConfig* config) {
  cards::ClusterLaunch launch;
  launch.block[0] = config->blockDimX;
  launch.block[1] = config->blockDimY;
  launch.block[2] = config->blockDimZ;
  launch.dynamic_shared_bytes = config->sharedMemBytes;
  for (unsigned i = 0; config->attrs && i < config->numAttrs; i++) {
    if (config->attrs[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    launch.cluster[0] = config->attrs[i].value.clusterDim.x;
    launch.cluster[1] = config->attrs[i].value.clusterDim.y;
    launch.cluster[2] = config->attrs[i].value.clusterDim.z;
  }
  return launch;
}

}  // namespace

CUresult cuOccupancyMaxActiveClusters(Driver*, int* clusters, CUfunction handle,
                                      const CUlaunchConfig* config) {
  Function* function = to_function(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  const abi::CardDesc* card = nullptr;
  if (const CUresult result = make_resident_on_card(function, &card); result != CUDA_SUCCESS)
    return result;
  if (!clusters || !config) return CUDA_ERROR_INVALID_VALUE;
  return static_cast<CUresult>(
      cards::max_active_clusters(*card, attributes_of(function), cluster_launch(config), clusters));
}
CUresult cuOccupancyMaxPotentialClusterSize(Driver*, int* size, CUfunction handle,
                                            const CUlaunchConfig* config) {
  Function* function = to_function(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  const abi::CardDesc* card = nullptr;
  if (const CUresult result = make_resident_on_card(function, &card); result != CUDA_SUCCESS)
    return result;
  if (!size || !config) return CUDA_ERROR_INVALID_VALUE;
  return static_cast<CUresult>(cards::max_potential_cluster_size(*card, attributes_of(function),
                                                                 cluster_launch(config), size));
}

}  // namespace tonnage::driver
