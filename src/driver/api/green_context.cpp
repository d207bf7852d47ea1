// Green contexts: a share of a device's multiprocessors. Where kernels run does not matter here, so
// a green context is a view of the primary context (as on a real device, whose green contexts share
// its memory) that remembers its resources. Source: CUDA driver API manual, "Green Contexts".
#include <string.h>

#include <algorithm>

#include "driver/entry_points.h"
#include "driver/state.h"

namespace tonnage::driver {
namespace {

struct GreenContext {
  Device* device = nullptr;
  CUdevResource resource = {};
  CUcontext context = nullptr;
  uint64_t id = 0;
};

struct Table {
  std::mutex mutex;  // before objects_mutex
  std::unordered_map<const void*, std::unique_ptr<CUdevResource>> descriptions;
  std::unordered_map<const void*, std::unique_ptr<GreenContext>> contexts;
  std::unordered_map<CUstream, CUgreenCtx> streams;
};
Table& table() {
  static Table* instance = new Table;
  return *instance;
}

GreenContext* to_green(CUgreenCtx handle) {
  const auto it = table().contexts.find(handle);
  return it == table().contexts.end() ? nullptr : it->second.get();
}

// Smallest group of multiprocessors, and what its size must be a multiple of, by compute capability.
void partition_rule(const abi::CardDesc& card, unsigned* least, unsigned* multiple) {
  *least = card.cc_major >= 9 ? 8 : card.cc_major == 8 ? 4 : card.cc_major == 7 ? 2 : 1;
  *multiple = card.cc_major >= 9 ? 8 : card.cc_major >= 7 ? 2 : 1;
}

CUdevResource sm_resource(const Device* device, unsigned count) {
  CUdevResource resource = {};
  resource.type = CU_DEV_RESOURCE_TYPE_SM;
  resource.sm.smCount = count;
  partition_rule(*device->card, &resource.sm.minSmPartitionSize,
                 &resource.sm.smCoscheduledAlignment);
  const int32_t index = device->index;  // found again when the resource is split
  memcpy(resource._internal_padding, &index, sizeof index);
  return resource;
}

CUresult device_resource(Device* device, CUdevResource* out, CUdevResourceType type) {
  if (!out || type != CU_DEV_RESOURCE_TYPE_SM)
    return type == CU_DEV_RESOURCE_TYPE_SM ? CUDA_ERROR_INVALID_VALUE
                                           : CUDA_ERROR_INVALID_RESOURCE_TYPE;
  *out = sm_resource(
      device,
      static_cast<unsigned>(device->card->attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT]));
  return CUDA_SUCCESS;
}

Device* device_of(const CUdevResource& resource) {
  int32_t index = -1;
  memcpy(&index, resource._internal_padding, sizeof index);
  return driver()->device(index);
}

}  // namespace

CUresult cuDeviceGetDevResource(Driver* state, CUdevice handle, CUdevResource* out,
                                CUdevResourceType type) {
  Device* device = state->device(handle);
  return device ? device_resource(device, out, type) : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuCtxGetDevResource(Driver*, CUcontext handle, CUdevResource* out,
                             CUdevResourceType type) {
  Context* context = handle ? to_context(handle) : current_context();
  return context ? device_resource(context->device, out, type) : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuGreenCtxGetDevResource(Driver*, CUgreenCtx handle, CUdevResource* out,
                                  CUdevResourceType type) {
  std::lock_guard lock(table().mutex);
  const GreenContext* green = to_green(handle);
  if (!green) return CUDA_ERROR_INVALID_CONTEXT;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = green->resource;
  return CUDA_SUCCESS;
}

CUresult cuDevSmResourceSplitByCount(Driver*, CUdevResource* result, unsigned int* groups,
                                     const CUdevResource* input, CUdevResource* remaining,
                                     unsigned int flags, unsigned int least_count) {
  if (!groups || !input || input->type != CU_DEV_RESOURCE_TYPE_SM || (flags & ~3u))
    return CUDA_ERROR_INVALID_VALUE;
  Device* device = device_of(*input);
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  unsigned least = 0, multiple = 0;
  partition_rule(*device->card, &least, &multiple);
  if (flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING) least = multiple = 2;
  if (least_count > input->sm.smCount) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  const unsigned size =
      std::max(least, static_cast<unsigned>(gpu::round_up(std::max(least_count, 1u), multiple)));
  const unsigned most = input->sm.smCount / size;
  if (!result) {  // how many there could be
    *groups = most;
    return CUDA_SUCCESS;
  }
  if (*groups == 0 || most == 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  *groups = std::min(*groups, most);
  for (unsigned i = 0; i < *groups; i++) result[i] = sm_resource(device, size);
  if (!remaining) return CUDA_SUCCESS;
  *remaining = sm_resource(device, input->sm.smCount - *groups * size);
  if (remaining->sm.smCount == 0) remaining->type = CU_DEV_RESOURCE_TYPE_INVALID;
  return CUDA_SUCCESS;
}

CUresult cuDevResourceGenerateDesc(Driver*, CUdevResourceDesc* out, CUdevResource* resources,
                                   unsigned int count) {
  if (!out || !resources || count == 0) return CUDA_ERROR_INVALID_VALUE;
  CUdevResource sum = resources[0];
  for (unsigned i = 0; i < count; i++) {
    if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    if (device_of(resources[i]) != device_of(sum) || !device_of(sum))
      return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    if (i > 0) sum.sm.smCount += resources[i].sm.smCount;
  }
  auto description = std::make_unique<CUdevResource>(sum);
  std::lock_guard lock(table().mutex);
  *out = reinterpret_cast<CUdevResourceDesc>(description.get());
  table().descriptions[*out] = std::move(description);
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(Driver* state, CUgreenCtx* out, CUdevResourceDesc description,
                          Device* device, unsigned int flags) {
  if (!out || flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(table().mutex);
  const auto it = table().descriptions.find(description);
  if (it == table().descriptions.end() || device_of(*it->second) != device)
    return CUDA_ERROR_INVALID_VALUE;
  auto green = std::make_unique<GreenContext>();
  green->device = device;
  green->resource = *it->second;
  green->id = state->new_id();
  if (const CUresult result = cuDevicePrimaryCtxRetain(state, &green->context, device);
      result != CUDA_SUCCESS)
    return result;
  *out = reinterpret_cast<CUgreenCtx>(green.get());
  table().contexts[*out] = std::move(green);
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(Driver* state, CUgreenCtx handle) {
  Device* device = nullptr;
  {
    std::lock_guard lock(table().mutex);
    const GreenContext* green = to_green(handle);
    if (!green) return CUDA_ERROR_INVALID_CONTEXT;
    device = green->device;
    for (auto it = table().streams.begin(); it != table().streams.end();)
      it = it->second == handle ? table().streams.erase(it) : std::next(it);
    table().contexts.erase(handle);
  }
  return cuDevicePrimaryCtxRelease_v2(state, device);
}

CUresult cuCtxFromGreenCtx(Driver*, CUcontext* out, CUgreenCtx handle) {
  std::lock_guard lock(table().mutex);
  const GreenContext* green = to_green(handle);
  if (!green) return CUDA_ERROR_INVALID_CONTEXT;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = green->context;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxGetId(Driver*, CUgreenCtx handle, unsigned long long* id) {
  std::lock_guard lock(table().mutex);
  const GreenContext* green = to_green(handle);
  if (!green) return CUDA_ERROR_INVALID_CONTEXT;
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  *id = green->id;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxStreamCreate(Driver*, CUstream* out, CUgreenCtx handle, unsigned int flags,
                                int priority) {
  if (!out || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(table().mutex);
  const GreenContext* green = to_green(handle);
  if (!green) return CUDA_ERROR_INVALID_CONTEXT;
  Context* context = to_context(green->context);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  const CUresult result = cuStreamCreateWithPriority(context, out, flags, priority);
  if (result == CUDA_SUCCESS) table().streams[*out] = handle;
  return result;
}

CUresult cuStreamGetGreenCtx(Context* context, CUstream stream, CUgreenCtx* out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (!to_stream(stream, context)) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(table().mutex);
  const auto it = table().streams.find(stream);
  *out = it == table().streams.end() ? nullptr : it->second;
  return CUDA_SUCCESS;
}

// Everything submitted is done: there is nothing to wait for.
CUresult cuGreenCtxRecordEvent(Driver* state, CUgreenCtx handle, CUevent event) {
  CUcontext context = nullptr;
  if (const CUresult result = cuCtxFromGreenCtx(state, &context, handle); result != CUDA_SUCCESS)
    return result;
  return cuCtxRecordEvent(state, context, event);
}
CUresult cuGreenCtxWaitEvent(Driver* state, CUgreenCtx handle, CUevent event) {
  CUcontext context = nullptr;
  if (const CUresult result = cuCtxFromGreenCtx(state, &context, handle); result != CUDA_SUCCESS)
    return result;
  return cuCtxWaitEvent(state, context, event);
}

}  // namespace tonnage::driver
