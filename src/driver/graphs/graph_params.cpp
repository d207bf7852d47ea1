// Parameters of graph nodes: from the API's structures to ours and back.
#include <string.h>

#include "driver/api/array.h"
#include "driver/graphs/graph_types.h"

namespace tonnage::driver {
namespace {

CUresult parameter(CUfunction function, size_t index, size_t* offset, size_t* bytes) {
  const CUresult result = cuFuncGetParamInfo(function, index, offset, bytes);
  if (result != CUDA_ERROR_INVALID_HANDLE) return result;
  return cuKernelGetParamInfo(reinterpret_cast<CUkernel>(function), index, offset, bytes);
}

// Copies the arguments out of the caller's memory, which need not outlive the call.
CUresult copy_arguments(CUfunction function, void** params, void** extra, KernelParams* out) {
  out->buffer.clear();
  out->offsets.clear();
  out->as_extra = false;
  if (params && extra) return CUDA_ERROR_INVALID_VALUE;
  if (extra) {
    const void* buffer = nullptr;
    const size_t* bytes = nullptr;
    for (int i = 0; i < 8 && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
      if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
        buffer = extra[i + 1];
      else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
        bytes = static_cast<const size_t*>(extra[i + 1]);
      else
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!bytes || (*bytes && !buffer) || *bytes > (64u << 10)) return CUDA_ERROR_INVALID_VALUE;
    const auto* begin = static_cast<const unsigned char*>(buffer);
    out->buffer.assign(begin, begin + *bytes);
    out->as_extra = true;
    return CUDA_SUCCESS;
  }
  size_t offset = 0, bytes = 0;
  for (size_t i = 0;; i++) {
    const CUresult result = parameter(function, i, &offset, &bytes);
    if (result == CUDA_ERROR_INVALID_VALUE) return CUDA_SUCCESS;  // no more of them
    if (result != CUDA_SUCCESS) return result;
    if (!params || !params[i]) return CUDA_ERROR_INVALID_VALUE;
    if (out->buffer.size() < offset + bytes) out->buffer.resize(offset + bytes);
    memcpy(out->buffer.data() + offset, params[i], bytes);
    out->offsets.push_back(offset);
  }
}

CUcontext or_current(CUcontext context) { return context ? context : to_handle(current_context()); }

bool valid_operand(CUmemorytype type, const void* host, CUdeviceptr device, CUarray array) {
  switch (type) {
    case CU_MEMORYTYPE_HOST: return host != nullptr;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED: return device != 0;
    case CU_MEMORYTYPE_ARRAY: {
      ArrayPlace place;
      return array_place(array, &place);
    }
    default: return false;
  }
}

CUresult make_child_params(CUgraph handle, CUgraphChildGraphNodeOwnership ownership, Graph* into,
                           NodeParams* out) {
  Graph* child = to_graph(handle);
  if (!child || child == into) return CUDA_ERROR_INVALID_VALUE;
  // Taking a graph over (ownership MOVE) is how graphs with memory nodes become children; its own
  // nodes' handles stay valid.
  if (ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE) {
    if (child->parent || child->captures > 0 || !child->executables.empty())
      return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Graph> moved = take_graph(child);
    if (!moved) return CUDA_ERROR_INVALID_VALUE;
    *out = ChildParams{std::move(moved)};
    return CUDA_SUCCESS;
  }
  if (ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE) return CUDA_ERROR_INVALID_VALUE;
  if (has_memory_nodes(*child) || has_conditional_nodes(*child)) return CUDA_ERROR_NOT_SUPPORTED;
  *out = ChildParams{clone_graph(*child, into, false)};
  return CUDA_SUCCESS;
}

CUresult make_conditional_params(const CUDA_CONDITIONAL_NODE_PARAMS& api, Graph* graph,
                                 NodeParams* out) {
  if (!graph) return CUDA_ERROR_NOT_SUPPORTED;
  if (api.type != CU_GRAPH_COND_TYPE_IF && api.type != CU_GRAPH_COND_TYPE_WHILE &&
      api.type != CU_GRAPH_COND_TYPE_SWITCH)
    return CUDA_ERROR_INVALID_VALUE;
  const unsigned most = api.type == CU_GRAPH_COND_TYPE_WHILE ? 1
                        : api.type == CU_GRAPH_COND_TYPE_IF  ? 2
                                                             : 1u << 16;
  if (api.size == 0 || api.size > most || !graph->conditional_defaults.count(api.handle))
    return CUDA_ERROR_INVALID_VALUE;
  ConditionalParams params;
  params.handle = api.handle;
  params.type = api.type;
  params.context = or_current(api.ctx);
  for (unsigned i = 0; i < api.size; i++) {
    params.bodies.push_back(new_graph(graph));
    params.handles.push_back(to_handle(params.bodies.back().get()));
  }
  *out = std::move(params);
  return CUDA_SUCCESS;
}

}  // namespace

void KernelParams::aim() {
  pointers.clear();
  for (size_t offset : offsets) pointers.push_back(buffer.data() + offset);
  extra_bytes = buffer.size();
  extra[0] = CU_LAUNCH_PARAM_BUFFER_POINTER;
  extra[1] = buffer.data();
  extra[2] = CU_LAUNCH_PARAM_BUFFER_SIZE;
  extra[3] = &extra_bytes;
  extra[4] = CU_LAUNCH_PARAM_END;
}

CUresult make_kernel_params(const CUDA_KERNEL_NODE_PARAMS& api, NodeParams* out) {
  if (!api.func == !api.kern) return CUDA_ERROR_INVALID_VALUE;
  for (const unsigned extent :
       {api.gridDimX, api.gridDimY, api.gridDimZ, api.blockDimX, api.blockDimY, api.blockDimZ})
    if (extent == 0) return CUDA_ERROR_INVALID_VALUE;
  KernelParams params;
  params.function = api.func;
  params.kernel = api.kern;
  params.context = or_current(api.ctx);
  params.grid[0] = api.gridDimX, params.grid[1] = api.gridDimY, params.grid[2] = api.gridDimZ;
  params.block[0] = api.blockDimX, params.block[1] = api.blockDimY, params.block[2] = api.blockDimZ;
  params.shared_bytes = api.sharedMemBytes;
  const CUfunction function = api.func ? api.func : reinterpret_cast<CUfunction>(api.kern);
  if (const CUresult result = copy_arguments(function, api.kernelParams, api.extra, &params);
      result != CUDA_SUCCESS)
    return result;
  *out = std::move(params);
  return CUDA_SUCCESS;
}

void write_kernel_params(KernelParams& params, CUDA_KERNEL_NODE_PARAMS* out) {
  params.aim();
  *out = {};
  out->func = params.function;
  out->kern = params.kernel;
  out->ctx = params.context;
  out->gridDimX = params.grid[0], out->gridDimY = params.grid[1], out->gridDimZ = params.grid[2];
  out->blockDimX = params.block[0], out->blockDimY = params.block[1],
  out->blockDimZ = params.block[2];
  out->sharedMemBytes = params.shared_bytes;
  out->kernelParams = params.as_extra || params.pointers.empty() ? nullptr : params.pointers.data();
  out->extra = params.as_extra ? params.extra : nullptr;
}

KernelLaunch launch_of(KernelParams& params, std::vector<CUlaunchAttribute>* attributes) {
  params.aim();
  KernelLaunch launch;
  launch.function = params.function ? params.function : reinterpret_cast<CUfunction>(params.kernel);
  memcpy(launch.grid, params.grid, sizeof launch.grid);
  memcpy(launch.block, params.block, sizeof launch.block);
  launch.shared_bytes = params.shared_bytes;
  launch.params = params.as_extra || params.pointers.empty() ? nullptr : params.pointers.data();
  launch.extra = params.as_extra ? params.extra : nullptr;
  attributes->clear();
  for (const auto& [id, value] : params.attributes) {
    CUlaunchAttribute attribute = {};
    attribute.id = static_cast<CUlaunchAttributeID>(id);
    attribute.value = value;
    attributes->push_back(attribute);
    if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) launch.cooperative = value.cooperative != 0;
  }
  launch.attributes = attributes->data();
  launch.attribute_count = attributes->size();
  return launch;
}

CUresult make_memcpy_params(const CUDA_MEMCPY3D* copy, CUcontext context, NodeParams* out) {
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  if (copy->WidthInBytes == 0 || copy->Height == 0 || copy->Depth == 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (!valid_operand(copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcArray) ||
      !valid_operand(copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstArray))
    return CUDA_ERROR_INVALID_VALUE;
  if (context && !to_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  *out = MemcpyParams{*copy, or_current(context)};
  return CUDA_SUCCESS;
}

CUresult make_memset_params(const CUDA_MEMSET_NODE_PARAMS* set, CUcontext context,
                            NodeParams* out) {
  if (!set || set->dst == 0 || set->width == 0 || set->height == 0) return CUDA_ERROR_INVALID_VALUE;
  if (set->elementSize != 1 && set->elementSize != 2 && set->elementSize != 4)
    return CUDA_ERROR_INVALID_VALUE;
  if (set->dst % set->elementSize || set->width > SIZE_MAX / 4) return CUDA_ERROR_INVALID_VALUE;
  if (set->height > 1 && set->pitch < set->width * set->elementSize)
    return CUDA_ERROR_INVALID_VALUE;
  if (context && !to_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  *out = MemsetParams{*set, or_current(context)};
  return CUDA_SUCCESS;
}

CUresult make_batch_params(CUcontext context, unsigned count,
                           const CUstreamBatchMemOpParams* operations, unsigned flags,
                           NodeParams* out) {
  if (count > 256 || (count && !operations) || flags) return CUDA_ERROR_INVALID_VALUE;
  if (context && !to_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  BatchParams params;
  params.context = or_current(context);
  params.operations.assign(operations, operations + count);
  params.flags = flags;
  *out = std::move(params);
  return CUDA_SUCCESS;
}

CUresult make_params(const CUgraphNodeParams* api, Graph* graph, NodeParams* out) {
  if (!api) return CUDA_ERROR_INVALID_VALUE;
  switch (api->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS_v3) == sizeof(CUDA_KERNEL_NODE_PARAMS));
      CUDA_KERNEL_NODE_PARAMS kernel;
      memcpy(&kernel, &api->kernel, sizeof kernel);
      return make_kernel_params(kernel, out);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return make_memcpy_params(&api->memcpy.copyParams, api->memcpy.copyCtx, out);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS_v2& from = api->memset;
      const CUDA_MEMSET_NODE_PARAMS set = {from.dst,         from.pitch, from.value,
                                           from.elementSize, from.width, from.height};
      return make_memset_params(&set, from.ctx, out);
    }
    case CU_GRAPH_NODE_TYPE_HOST:
      if (!api->host.fn) return CUDA_ERROR_INVALID_VALUE;
      *out = HostParams{{api->host.fn, api->host.userData}};
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return make_child_params(api->graph.graph, api->graph.ownership, graph, out);
    case CU_GRAPH_NODE_TYPE_EMPTY: *out = EmptyParams(); return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      if (!to_event(api->eventWait.event)) return CUDA_ERROR_INVALID_HANDLE;
      *out = EventWaitParams{api->eventWait.event};
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      if (!to_event(api->eventRecord.event)) return CUDA_ERROR_INVALID_HANDLE;
      *out = EventRecordParams{api->eventRecord.event};
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
      // No external semaphore can be imported (external.cpp), so none of these handles can be valid.
      return CUDA_ERROR_INVALID_HANDLE;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
      const CUDA_MEM_ALLOC_NODE_PARAMS_v2& from = api->alloc;
      if (from.bytesize == 0 || (from.accessDescCount && !from.accessDescs))
        return CUDA_ERROR_INVALID_VALUE;
      AllocParams params;
      params.pool = from.poolProps;
      params.access.assign(from.accessDescs, from.accessDescs + from.accessDescCount);
      params.bytes = from.bytesize;
      *out = std::move(params);
      return CUDA_SUCCESS;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      if (!api->free.dptr) return CUDA_ERROR_INVALID_VALUE;
      *out = FreeParams{api->free.dptr};
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return make_batch_params(api->memOp.ctx, api->memOp.count, api->memOp.paramArray,
                               api->memOp.flags, out);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return make_conditional_params(api->conditional, graph, out);
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace tonnage::driver
