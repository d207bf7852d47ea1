// Adding nodes of each type, and reading and changing their parameters.
#include <string.h>

#include "driver/entry_points.h"
#include "driver/graphs/graph_types.h"

namespace tonnage::driver {
namespace {

// Makes the parameters and adds the node. `make` fills NodeParams and returns a CUresult.
template <class Make>
CUresult add(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
             Make make) {
  GraphLock lock;
  NodeParams params;
  if (const CUresult result = make(&params); result != CUDA_SUCCESS) return result;
  return add_node(out, graph, dependencies, nullptr, count, std::move(params));
}

// Calls `use` with the parameters of a node of type P.
template <class P, class Use>
CUresult with(CUgraphNode handle, Use use) {
  GraphLock lock;
  GraphNode* node = to_node(handle);
  P* params = node ? std::get_if<P>(&node->params) : nullptr;
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  return use(*params);
}

template <class Make>
CUresult set(CUgraphNode handle, Make make) {
  GraphLock lock;
  GraphNode* node = to_node(handle);
  if (!node) return CUDA_ERROR_INVALID_VALUE;
  NodeParams params;
  if (const CUresult result = make(&params); result != CUDA_SUCCESS) return result;
  return replace_params(node, std::move(params));
}

CUDA_KERNEL_NODE_PARAMS widen(const CUDA_KERNEL_NODE_PARAMS_v1& from) {
  CUDA_KERNEL_NODE_PARAMS to = {};
  memcpy(&to, &from, sizeof from);  // the later version only appends
  return to;
}

CUresult make_event(CUevent event, bool record, NodeParams* out) {
  if (!to_event(event)) return CUDA_ERROR_INVALID_HANDLE;
  if (record)
    *out = EventRecordParams{event};
  else
    *out = EventWaitParams{event};
  return CUDA_SUCCESS;
}

CUresult make_host(const CUDA_HOST_NODE_PARAMS* host, NodeParams* out) {
  if (!host || !host->fn) return CUDA_ERROR_INVALID_VALUE;
  *out = HostParams{*host};
  return CUDA_SUCCESS;
}

CUresult make_batch(const CUDA_BATCH_MEM_OP_NODE_PARAMS* batch, NodeParams* out) {
  return batch ? make_batch_params(batch->ctx, batch->count, batch->paramArray, batch->flags, out)
               : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult replace_params(GraphNode* node, NodeParams params) {
  if (params.index() != node->params.index()) return CUDA_ERROR_INVALID_VALUE;
  switch (type_of(params)) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      auto& now = std::get<KernelParams>(node->params);
      auto& next = std::get<KernelParams>(params);
      if (next.attributes.empty())
        next.attributes = now.attributes;  // attributes are set apart from parameters
      break;
    }
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return CUDA_ERROR_NOT_SUPPORTED;  // fixed at creation
    default: break;
  }
  node->params = std::move(params);
  if (auto* child = std::get_if<ChildParams>(&node->params)) child->graph->parent = node->graph;
  return CUDA_SUCCESS;
}

// --- Kernels ---

CUresult cuGraphAddKernelNode_v2(Context*, CUgraphNode* out, CUgraph graph,
                                 const CUgraphNode* dependencies, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS* params) {
  return add(out, graph, dependencies, count, [&](NodeParams* p) {
    return params ? make_kernel_params(*params, p) : CUDA_ERROR_INVALID_VALUE;
  });
}
CUresult cuGraphAddKernelNode(Context* context, CUgraphNode* out, CUgraph graph,
                              const CUgraphNode* dependencies, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_KERNEL_NODE_PARAMS wide = widen(*params);
  return cuGraphAddKernelNode_v2(context, out, graph, dependencies, count, &wide);
}
CUresult cuGraphKernelNodeGetParams_v2(Driver*, CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* out) {
  return with<KernelParams>(node, [&](KernelParams& params) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    write_kernel_params(params, out);
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphKernelNodeGetParams(Driver* state, CUgraphNode node,
                                    CUDA_KERNEL_NODE_PARAMS_v1* out) {
  CUDA_KERNEL_NODE_PARAMS wide = {};
  const CUresult result =
      out ? cuGraphKernelNodeGetParams_v2(state, node, &wide) : CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) memcpy(out, &wide, sizeof *out);
  return result;
}
CUresult cuGraphKernelNodeSetParams_v2(Driver*, CUgraphNode node,
                                       const CUDA_KERNEL_NODE_PARAMS* params) {
  return set(node, [&](NodeParams* p) {
    return params ? make_kernel_params(*params, p) : CUDA_ERROR_INVALID_VALUE;
  });
}
CUresult cuGraphKernelNodeSetParams(Driver* state, CUgraphNode node,
                                    const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_KERNEL_NODE_PARAMS wide = widen(*params);
  return cuGraphKernelNodeSetParams_v2(state, node, &wide);
}
CUresult cuGraphKernelNodeGetAttribute(Driver*, CUgraphNode node, CUkernelNodeAttrID attribute,
                                       CUkernelNodeAttrValue* out) {
  return with<KernelParams>(node, [&](KernelParams& params) {
    if (!out || attribute <= CU_LAUNCH_ATTRIBUTE_IGNORE || attribute >= CU_LAUNCH_ATTRIBUTE_MAX)
      return CUDA_ERROR_INVALID_VALUE;
    const auto it = params.attributes.find(attribute);
    *out = it == params.attributes.end() ? CUkernelNodeAttrValue{} : it->second;
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphKernelNodeSetAttribute(Driver*, CUgraphNode node, CUkernelNodeAttrID attribute,
                                       const CUkernelNodeAttrValue* value) {
  return with<KernelParams>(node, [&](KernelParams& params) {
    if (!value || attribute <= CU_LAUNCH_ATTRIBUTE_IGNORE || attribute >= CU_LAUNCH_ATTRIBUTE_MAX)
      return CUDA_ERROR_INVALID_VALUE;
    params.attributes[attribute] = *value;
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphKernelNodeCopyAttributes(Driver*, CUgraphNode to, CUgraphNode from) {
  return with<KernelParams>(from, [&](KernelParams& source) {
    return with<KernelParams>(to, [&](KernelParams& target) {
      target.attributes = source.attributes;
      return CUDA_SUCCESS;
    });
  });
}

// --- Copies and sets ---

CUresult cuGraphAddMemcpyNode(Context*, CUgraphNode* out, CUgraph graph,
                              const CUgraphNode* dependencies, size_t count,
                              const CUDA_MEMCPY3D* copy, CUcontext context) {
  return add(out, graph, dependencies, count,
             [&](NodeParams* p) { return make_memcpy_params(copy, context, p); });
}
CUresult cuGraphMemcpyNodeGetParams(Driver*, CUgraphNode node, CUDA_MEMCPY3D* out) {
  return with<MemcpyParams>(node, [&](MemcpyParams& params) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = params.copy;
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphMemcpyNodeSetParams(Driver*, CUgraphNode node, const CUDA_MEMCPY3D* copy) {
  return set(node, [&](NodeParams* p) { return make_memcpy_params(copy, nullptr, p); });
}
CUresult cuGraphAddMemsetNode(Context*, CUgraphNode* out, CUgraph graph,
                              const CUgraphNode* dependencies, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context) {
  return add(out, graph, dependencies, count,
             [&](NodeParams* p) { return make_memset_params(params, context, p); });
}
CUresult cuGraphMemsetNodeGetParams(Driver*, CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* out) {
  return with<MemsetParams>(node, [&](MemsetParams& params) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = params.set;
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphMemsetNodeSetParams(Driver*, CUgraphNode node,
                                    const CUDA_MEMSET_NODE_PARAMS* params) {
  return set(node, [&](NodeParams* p) { return make_memset_params(params, nullptr, p); });
}

// --- Host functions, child graphs, empty nodes, events ---

CUresult cuGraphAddHostNode(Context*, CUgraphNode* out, CUgraph graph,
                            const CUgraphNode* dependencies, size_t count,
                            const CUDA_HOST_NODE_PARAMS* params) {
  return add(out, graph, dependencies, count, [&](NodeParams* p) { return make_host(params, p); });
}
CUresult cuGraphHostNodeGetParams(Driver*, CUgraphNode node, CUDA_HOST_NODE_PARAMS* out) {
  return with<HostParams>(node, [&](HostParams& params) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = params.host;
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphHostNodeSetParams(Driver*, CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params) {
  return set(node, [&](NodeParams* p) { return make_host(params, p); });
}
CUresult cuGraphAddChildGraphNode(Context*, CUgraphNode* out, CUgraph graph,
                                  const CUgraphNode* dependencies, size_t count, CUgraph child) {
  return add(out, graph, dependencies, count, [&](NodeParams* p) {
    CUgraphNodeParams params = {};
    params.type = CU_GRAPH_NODE_TYPE_GRAPH;
    params.graph.graph = child;
    return make_params(&params, to_graph(graph), p);
  });
}
CUresult cuGraphChildGraphNodeGetGraph(Driver*, CUgraphNode node, CUgraph* out) {
  return with<ChildParams>(node, [&](ChildParams& params) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = to_handle(params.graph.get());
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphAddEmptyNode(Context*, CUgraphNode* out, CUgraph graph,
                             const CUgraphNode* dependencies, size_t count) {
  return add(out, graph, dependencies, count, [](NodeParams* p) {
    *p = EmptyParams();
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphAddEventRecordNode(Context*, CUgraphNode* out, CUgraph graph,
                                   const CUgraphNode* dependencies, size_t count, CUevent event) {
  return add(out, graph, dependencies, count,
             [&](NodeParams* p) { return make_event(event, true, p); });
}
CUresult cuGraphEventRecordNodeGetEvent(Driver*, CUgraphNode node, CUevent* out) {
  return with<EventRecordParams>(node, [&](EventRecordParams& params) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = params.event;
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphEventRecordNodeSetEvent(Driver*, CUgraphNode node, CUevent event) {
  return set(node, [&](NodeParams* p) { return make_event(event, true, p); });
}
CUresult cuGraphAddEventWaitNode(Context*, CUgraphNode* out, CUgraph graph,
                                 const CUgraphNode* dependencies, size_t count, CUevent event) {
  return add(out, graph, dependencies, count,
             [&](NodeParams* p) { return make_event(event, false, p); });
}
CUresult cuGraphEventWaitNodeGetEvent(Driver*, CUgraphNode node, CUevent* out) {
  return with<EventWaitParams>(node, [&](EventWaitParams& params) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = params.event;
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphEventWaitNodeSetEvent(Driver*, CUgraphNode node, CUevent event) {
  return set(node, [&](NodeParams* p) { return make_event(event, false, p); });
}

// --- Memory operations and memory ---

CUresult cuGraphAddBatchMemOpNode(Context*, CUgraphNode* out, CUgraph graph,
                                  const CUgraphNode* dependencies, size_t count,
                                  const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return add(out, graph, dependencies, count, [&](NodeParams* p) { return make_batch(params, p); });
}
CUresult cuGraphBatchMemOpNodeGetParams(Driver*, CUgraphNode node,
                                        CUDA_BATCH_MEM_OP_NODE_PARAMS* out) {
  return with<BatchParams>(node, [&](BatchParams& params) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = {params.context, static_cast<unsigned>(params.operations.size()),
            params.operations.data(), params.flags};
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphBatchMemOpNodeSetParams(Driver*, CUgraphNode node,
                                        const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return set(node, [&](NodeParams* p) { return make_batch(params, p); });
}
CUresult cuGraphAddMemAllocNode(Context*, CUgraphNode* out, CUgraph graph,
                                const CUgraphNode* dependencies, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  const CUresult result = add(out, graph, dependencies, count, [&](NodeParams* p) {
    if (!params) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams api = {};
    api.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    static_assert(sizeof *params == sizeof api.alloc);
    memcpy(&api.alloc, params, sizeof *params);
    return make_params(&api, nullptr, p);
  });
  if (result != CUDA_SUCCESS) return result;
  return with<AllocParams>(*out, [&](AllocParams& made) {
    params->dptr = made.address;
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphMemAllocNodeGetParams(Driver*, CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* out) {
  return with<AllocParams>(node, [&](AllocParams& params) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = {params.pool, params.access.data(), params.access.size(), params.bytes, params.address};
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphAddMemFreeNode(Context*, CUgraphNode* out, CUgraph graph,
                               const CUgraphNode* dependencies, size_t count, CUdeviceptr address) {
  return add(out, graph, dependencies, count, [&](NodeParams* p) {
    *p = FreeParams{address};
    return address ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}
CUresult cuGraphMemFreeNodeGetParams(Driver*, CUgraphNode node, CUdeviceptr* out) {
  return with<FreeParams>(node, [&](FreeParams& params) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = params.address;
    return CUDA_SUCCESS;
  });
}

// External semaphores: none can be imported, so there is no valid handle to make a node of.
CUresult cuGraphAddExternalSemaphoresSignalNode(Driver*, CUgraphNode* out, CUgraph,
                                                const CUgraphNode*, size_t,
                                                const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS* params) {
  return out && params ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphAddExternalSemaphoresWaitNode(Driver*, CUgraphNode* out, CUgraph,
                                              const CUgraphNode*, size_t,
                                              const CUDA_EXT_SEM_WAIT_NODE_PARAMS* params) {
  return out && params ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphExternalSemaphoresSignalNodeGetParams(Driver*, CUgraphNode node,
                                                      CUDA_EXT_SEM_SIGNAL_NODE_PARAMS*) {
  return with<SignalParams>(node, [](SignalParams&) { return CUDA_SUCCESS; });
}
CUresult cuGraphExternalSemaphoresSignalNodeSetParams(Driver*, CUgraphNode node,
                                                      const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS*) {
  return with<SignalParams>(node, [](SignalParams&) { return CUDA_SUCCESS; });
}
CUresult cuGraphExternalSemaphoresWaitNodeGetParams(Driver*, CUgraphNode node,
                                                    CUDA_EXT_SEM_WAIT_NODE_PARAMS*) {
  return with<WaitParams>(node, [](WaitParams&) { return CUDA_SUCCESS; });
}
CUresult cuGraphExternalSemaphoresWaitNodeSetParams(Driver*, CUgraphNode node,
                                                    const CUDA_EXT_SEM_WAIT_NODE_PARAMS*) {
  return with<WaitParams>(node, [](WaitParams&) { return CUDA_SUCCESS; });
}

// --- Any type ---

CUresult cuGraphConditionalHandleCreate(Driver* state, CUgraphConditionalHandle* out,
                                        CUgraph handle, CUcontext context, unsigned int value,
                                        unsigned int flags) {
  GraphLock lock;
  Graph* graph = to_graph(handle);
  if (!out || !graph || (flags & ~unsigned{CU_GRAPH_COND_ASSIGN_DEFAULT}))
    return CUDA_ERROR_INVALID_VALUE;
  if (context && !to_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  *out = state->new_id();
  graph->conditional_defaults[*out] = flags & CU_GRAPH_COND_ASSIGN_DEFAULT ? value : 0;
  return CUDA_SUCCESS;
}

CUresult cuGraphAddNode_v2(Context*, CUgraphNode* out, CUgraph handle,
                           const CUgraphNode* dependencies, const CUgraphEdgeData* data,
                           size_t count, CUgraphNodeParams* api) {
  GraphLock lock;
  Graph* graph = to_graph(handle);
  if (!out || !graph) return CUDA_ERROR_INVALID_VALUE;
  // Before the parameters: making them may take a child graph over.
  std::vector<Edge> edges;
  if (const CUresult result = check_dependencies(graph, dependencies, data, count, &edges);
      result != CUDA_SUCCESS)
    return result;
  NodeParams params;
  if (const CUresult result = make_params(api, graph, &params); result != CUDA_SUCCESS)
    return result;
  if (const CUresult result = add_node(out, handle, dependencies, data, count, std::move(params));
      result != CUDA_SUCCESS)
    return result;
  GraphNode* node = to_node(*out);
  if (auto* alloc = std::get_if<AllocParams>(&node->params)) api->alloc.dptr = alloc->address;
  if (auto* conditional = std::get_if<ConditionalParams>(&node->params))
    api->conditional.phGraph_out = conditional->handles.data();
  return CUDA_SUCCESS;
}
CUresult cuGraphAddNode(Context* context, CUgraphNode* out, CUgraph graph,
                        const CUgraphNode* dependencies, size_t count, CUgraphNodeParams* api) {
  return cuGraphAddNode_v2(context, out, graph, dependencies, nullptr, count, api);
}
CUresult cuGraphNodeSetParams(Driver*, CUgraphNode node, CUgraphNodeParams* api) {
  return set(node, [&](NodeParams* p) { return make_params(api, nullptr, p); });
}

}  // namespace tonnage::driver
