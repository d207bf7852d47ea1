// Executable graphs: instantiating, changing, launching.
#include <algorithm>

#include "driver/api/copy.h"
#include "driver/entry_points.h"
#include "driver/graphs/graph_types.h"

namespace tonnage::driver {
namespace {

constexpr unsigned long long kKnownFlags =
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
    CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;

struct Verdict {
  CUresult code = CUDA_SUCCESS;
  CUgraphInstantiateResult result = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  GraphNode* node = nullptr;
};

bool launchable_from_device(const Graph& graph, GraphNode** offender) {
  for (const auto& node : graph.nodes) {
    switch (type_of(node->params)) {
      case CU_GRAPH_NODE_TYPE_KERNEL:
      case CU_GRAPH_NODE_TYPE_MEMCPY:
      case CU_GRAPH_NODE_TYPE_MEMSET: break;
      case CU_GRAPH_NODE_TYPE_GRAPH:
        if (!launchable_from_device(*std::get<ChildParams>(node->params).graph, offender))
          return false;
        break;
      default: *offender = node.get(); return false;
    }
  }
  return true;
}

// Everything about the structure that adding nodes does not check.
Verdict check(const Graph& graph) {
  std::vector<GraphNode*> order;
  Verdict verdict;
  if (!topological_order(graph, &order, &verdict.node))
    return {CUDA_ERROR_INVALID_VALUE, CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE, verdict.node};
  std::unordered_set<CUgraphConditionalHandle> used;
  for (const auto& node : graph.nodes) {
    if (const auto* child = std::get_if<ChildParams>(&node->params))
      if (verdict = check(*child->graph); verdict.code != CUDA_SUCCESS) return verdict;
    if (const auto* conditional = std::get_if<ConditionalParams>(&node->params)) {
      used.insert(conditional->handle);
      for (const auto& body : conditional->bodies)
        if (verdict = check(*body); verdict.code != CUDA_SUCCESS) return verdict;
    }
  }
  for (const auto& [handle, value] : graph.conditional_defaults)
    if (!used.count(handle))
      return {CUDA_ERROR_INVALID_VALUE, CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED, nullptr};
  return {};
}

Verdict instantiate(CUgraphExec* out, CUgraph handle, unsigned long long flags) {
  const Verdict invalid = {CUDA_ERROR_INVALID_VALUE, CUDA_GRAPH_INSTANTIATE_ERROR, nullptr};
  Graph* graph = to_graph(handle);
  if (!out || !graph || graph->parent || graph->captures > 0 || (flags & ~kKnownFlags))
    return invalid;
  const bool from_device = flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH;
  if (from_device && (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)) return invalid;
  Verdict verdict = check(*graph);
  if (verdict.code != CUDA_SUCCESS) return verdict;
  if (from_device && graph->nodes.empty()) return invalid;
  if (from_device && !launchable_from_device(*graph, &verdict.node))
    return {CUDA_ERROR_NOT_SUPPORTED, CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED,
            verdict.node};
  if (!graph->executables.empty() && has_memory_nodes(*graph))
    return {CUDA_ERROR_NOT_SUPPORTED, CUDA_GRAPH_INSTANTIATE_ERROR, nullptr};
  auto exec = std::make_shared<GraphExec>();
  exec->graph = clone_graph(*graph, nullptr, true);
  topological_order(*exec->graph, &exec->order, nullptr);
  exec->source = graph;
  exec->flags = flags & ~static_cast<unsigned long long>(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
  measure_graph_memory(exec.get());
  if (const Context* context = current_context(); context && context->device)
    if (const CUresult result = charge_graph_exec(exec.get(), context->device);
        result != CUDA_SUCCESS) {
      release_graph_memory(exec.get());
      return {result, CUDA_GRAPH_INSTANTIATE_ERROR, nullptr};
    }
  graph->executables.insert(exec.get());
  *out = reinterpret_cast<CUgraphExec>(exec.get());
  keep_exec(std::move(exec));
  return {};
}

// --- Update ---

struct Mismatch {
  CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  const GraphNode* node = nullptr;  // of the updating graph
  const GraphNode* from = nullptr;  // what the updating edge comes from
};

Mismatch compare_params(const GraphNode& old_node, const GraphNode& new_node);

// Nodes are paired in order of creation, which capture and hand-written code repeat from one graph
// to the next.
Mismatch compare(const Graph& old_graph, const Graph& new_graph) {
  if (old_graph.nodes.size() != new_graph.nodes.size())
    return {CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, nullptr, nullptr};
  std::unordered_map<const GraphNode*, size_t> old_index, new_index;
  for (size_t i = 0; i < old_graph.nodes.size(); i++) {
    old_index[old_graph.nodes[i].get()] = i;
    new_index[new_graph.nodes[i].get()] = i;
  }
  for (size_t i = 0; i < old_graph.nodes.size(); i++) {
    const GraphNode &a = *old_graph.nodes[i], &b = *new_graph.nodes[i];
    if (a.params.index() != b.params.index())
      return {CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, &b, nullptr};
    if (a.in.size() != b.in.size())
      return {CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, &b, nullptr};
    for (const Edge& edge : b.in) {
      const bool found = std::any_of(a.in.begin(), a.in.end(), [&](const Edge& other) {
        return old_index[other.node] == new_index[edge.node] && same(other.data, edge.data);
      });
      if (!found) return {CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, &b, edge.node};
    }
    if (const Mismatch mismatch = compare_params(a, b);
        mismatch.result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
      return mismatch;
  }
  return {};
}

bool same_kinds(const CUDA_MEMCPY3D& a, const CUDA_MEMCPY3D& b) {
  return a.srcMemoryType == b.srcMemoryType && a.dstMemoryType == b.dstMemoryType;
}

Mismatch compare_params(const GraphNode& old_node, const GraphNode& new_node) {
  const Mismatch changed = {CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, &new_node, nullptr};
  switch (type_of(new_node.params)) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const auto &a = std::get<KernelParams>(old_node.params),
                 &b = std::get<KernelParams>(new_node.params);
      if (a.context != b.context)
        return {CU_GRAPH_EXEC_UPDATE_ERROR_FUNCTION_CHANGED, &new_node, nullptr};
      return {};
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: {
      const auto &a = std::get<MemcpyParams>(old_node.params),
                 &b = std::get<MemcpyParams>(new_node.params);
      return same_kinds(a.copy, b.copy) && a.context == b.context ? Mismatch{} : changed;
    }
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return std::get<MemsetParams>(old_node.params).context ==
                     std::get<MemsetParams>(new_node.params).context
                 ? Mismatch{}
                 : changed;
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return compare(*std::get<ChildParams>(old_node.params).graph,
                     *std::get<ChildParams>(new_node.params).graph);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return std::get<AllocParams>(old_node.params).address ==
                     std::get<AllocParams>(new_node.params).address
                 ? Mismatch{}
                 : Mismatch{CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED, &new_node, nullptr};
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return std::get<FreeParams>(old_node.params).address ==
                     std::get<FreeParams>(new_node.params).address
                 ? Mismatch{}
                 : Mismatch{CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED, &new_node, nullptr};
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: {
      const auto &a = std::get<ConditionalParams>(old_node.params),
                 &b = std::get<ConditionalParams>(new_node.params);
      if (a.type != b.type || a.bodies.size() != b.bodies.size()) return changed;
      for (size_t i = 0; i < a.bodies.size(); i++)
        if (const Mismatch mismatch = compare(*a.bodies[i], *b.bodies[i]);
            mismatch.result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
          return mismatch;
      return {};
    }
    default: return {};
  }
}

// Takes over the parameters of a graph that `compare` found to match.
void adopt(Graph& old_graph, const Graph& new_graph) {
  for (size_t i = 0; i < old_graph.nodes.size(); i++) {
    GraphNode& a = *old_graph.nodes[i];
    const GraphNode& b = *new_graph.nodes[i];
    if (auto* child = std::get_if<ChildParams>(&a.params)) {
      adopt(*child->graph, *std::get<ChildParams>(b.params).graph);
    } else if (auto* conditional = std::get_if<ConditionalParams>(&a.params)) {
      const auto& other = std::get<ConditionalParams>(b.params);
      for (size_t j = 0; j < conditional->bodies.size(); j++)
        adopt(*conditional->bodies[j], *other.bodies[j]);
    } else {
      a.params = b.params;
    }
  }
}

CUresult update(CUgraphExec exec_handle, CUgraph graph_handle, CUgraphExecUpdateResultInfo* info) {
  GraphLock lock;
  const std::shared_ptr<GraphExec> exec = to_exec(exec_handle);
  Graph* graph = to_graph(graph_handle);
  if (!exec || !graph || !info) return CUDA_ERROR_INVALID_VALUE;
  const Mismatch mismatch = compare(*exec->graph, *graph);
  info->result = mismatch.result;
  info->errorNode = to_handle(const_cast<GraphNode*>(mismatch.node));
  info->errorFromNode = to_handle(const_cast<GraphNode*>(mismatch.from));
  if (mismatch.result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  adopt(*exec->graph, *graph);
  return CUDA_SUCCESS;
}

// Changes one node of an executable graph; `node` is of the graph that it was made from.
CUresult set_exec_params(CUgraphExec exec_handle, CUgraphNode node, const CUgraphNodeParams& api) {
  GraphLock lock;
  const std::shared_ptr<GraphExec> exec = to_exec(exec_handle);
  GraphNode* source = to_node(node);
  GraphNode* target = exec && source ? find_by_origin(*exec->graph, source->id) : nullptr;
  if (!target) return CUDA_ERROR_INVALID_VALUE;
  if (api.type != type_of(target->params)) return CUDA_ERROR_INVALID_VALUE;
  if (auto* child = std::get_if<ChildParams>(&target->params)) {
    Graph* graph = to_graph(api.graph.graph);
    if (!graph || compare(*child->graph, *graph).result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
      return CUDA_ERROR_INVALID_VALUE;
    adopt(*child->graph, *graph);
    return CUDA_SUCCESS;
  }
  NodeParams params;
  if (const CUresult result = make_params(&api, nullptr, &params); result != CUDA_SUCCESS)
    return result;
  if (const auto* now = std::get_if<MemcpyParams>(&target->params))
    if (!same_kinds(now->copy, std::get<MemcpyParams>(params).copy))
      return CUDA_ERROR_INVALID_VALUE;
  return replace_params(target, std::move(params));
}

// --- Running ---

void run_batch(const BatchParams& params) {
  for (const CUstreamBatchMemOpParams& operation : params.operations) {
    if (operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32)
      fill_bytes(operation.writeValue.address, operation.writeValue.value, 4, 4);
    else if (operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64)
      move_bytes(operation.writeValue.address,
                 reinterpret_cast<uint64_t>(&operation.writeValue.value64), 8);
  }
}

CUresult run(GraphExec* exec, const Graph& graph, const std::vector<GraphNode*>& order,
             Stream* stream);

CUresult run(GraphExec* exec, const Graph& graph, Stream* stream) {
  std::vector<GraphNode*> order;
  topological_order(graph, &order, nullptr);
  return run(exec, graph, order, stream);
}

// The values that kernels would set are unknown. So a condition has its default value, and the body
// of a loop runs at most once.
CUresult run_conditional(GraphExec* exec, const Graph& graph, const ConditionalParams& params,
                         Stream* stream) {
  const auto found = graph.conditional_defaults.find(params.handle);
  const unsigned value = found == graph.conditional_defaults.end() ? 0 : found->second;
  size_t body = params.bodies.size();
  if (params.type == CU_GRAPH_COND_TYPE_SWITCH)
    body = value;
  else if (value != 0)
    body = 0;
  else if (params.type == CU_GRAPH_COND_TYPE_IF)
    body = 1;  // the else branch, if there is one
  return body < params.bodies.size() ? run(exec, *params.bodies[body], stream) : CUDA_SUCCESS;
}

CUresult run_node(GraphExec* exec, const Graph& graph, GraphNode& node, Stream* stream) {
  switch (type_of(node.params)) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      std::vector<CUlaunchAttribute> attributes;
      return run_kernel(stream, launch_of(std::get<KernelParams>(node.params), &attributes),
                        /*in_graph=*/true);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      advance(stream);
      run_memcpy(std::get<MemcpyParams>(node.params).copy);
      break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
      advance(stream);
      run_memset(std::get<MemsetParams>(node.params).set);
      break;
    case CU_GRAPH_NODE_TYPE_HOST: {
      const CUDA_HOST_NODE_PARAMS host = std::get<HostParams>(node.params).host;
      host.fn(host.userData);
      break;
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return run(exec, *std::get<ChildParams>(node.params).graph, stream);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      if (Event* event = to_event(std::get<EventRecordParams>(node.params).event)) {
        event->ticks.store(stream->ticks.load());
        event->recorded.store(true);
      }
      break;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: run_graph_alloc(std::get<AllocParams>(node.params)); break;
    case CU_GRAPH_NODE_TYPE_MEM_FREE: run_graph_free(std::get<FreeParams>(node.params)); break;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: run_batch(std::get<BatchParams>(node.params)); break;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return run_conditional(exec, graph, std::get<ConditionalParams>(node.params), stream);
    default: break;  // empty nodes and waits: everything before them is done
  }
  return CUDA_SUCCESS;
}

CUresult run(GraphExec* exec, const Graph& graph, const std::vector<GraphNode*>& order,
             Stream* stream) {
  for (GraphNode* node : order)
    if (node->enabled)
      if (const CUresult result = run_node(exec, graph, *node, stream); result != CUDA_SUCCESS)
        return result;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuGraphInstantiateWithFlags(Driver*, CUgraphExec* out, CUgraph graph,
                                     unsigned long long flags) {
  GraphLock lock;
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)
    return CUDA_ERROR_INVALID_VALUE;  // needs a stream: WithParams
  return instantiate(out, graph, flags).code;
}
CUresult cuGraphInstantiate_v2(Driver*, CUgraphExec* out, CUgraph graph, CUgraphNode* error_node,
                               char* log, size_t log_bytes) {
  GraphLock lock;
  const Verdict verdict = instantiate(out, graph, 0);
  if (error_node) *error_node = to_handle(verdict.node);
  if (log && log_bytes) log[0] = 0;
  return verdict.code;
}
CUresult cuGraphInstantiate(Driver* state, CUgraphExec* out, CUgraph graph, CUgraphNode* error_node,
                            char* log, size_t log_bytes) {
  return cuGraphInstantiate_v2(state, out, graph, error_node, log, log_bytes);
}
CUresult cuGraphInstantiateWithParams(Driver* state, CUgraphExec* out, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  GraphLock lock;
  const Verdict verdict = instantiate(out, graph, params->flags);
  params->hErrNode_out = to_handle(verdict.node);
  params->result_out = verdict.result;
  if (verdict.code != CUDA_SUCCESS || !(params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD))
    return verdict.code;
  const CUresult result = cuGraphUpload(*out, params->hUploadStream);
  if (result != CUDA_SUCCESS) {
    cuGraphExecDestroy(state, *out);
    params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
  }
  return result;
}

CUresult cuGraphExecGetFlags(Driver*, CUgraphExec handle, cuuint64_t* flags) {
  GraphLock lock;
  const std::shared_ptr<GraphExec> exec = to_exec(handle);
  if (!exec || !flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = exec->flags;
  return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(Driver*, CUgraphExec handle) {
  GraphLock lock;
  const std::shared_ptr<GraphExec> exec = drop_exec(handle);
  if (!exec) return CUDA_ERROR_INVALID_VALUE;
  release_graph_memory(exec.get());
  return CUDA_SUCCESS;
}

CUresult cuGraphExecUpdate_v2(Driver*, CUgraphExec exec, CUgraph graph,
                              CUgraphExecUpdateResultInfo* info) {
  return update(exec, graph, info);
}
CUresult cuGraphExecUpdate(Driver*, CUgraphExec exec, CUgraph graph, CUgraphNode* error_node,
                           CUgraphExecUpdateResult* result) {
  CUgraphExecUpdateResultInfo info = {};
  const CUresult code = update(exec, graph, &info);
  if (error_node) *error_node = info.errorNode;
  if (result) *result = info.result;
  return code;
}

CUresult cuGraphExecNodeSetParams(Driver*, CUgraphExec exec, CUgraphNode node,
                                  CUgraphNodeParams* params) {
  return params ? set_exec_params(exec, node, *params) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphExecKernelNodeSetParams_v2(Driver*, CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams api = {};
  api.type = CU_GRAPH_NODE_TYPE_KERNEL;
  static_assert(sizeof *params == sizeof api.kernel);
  std::copy_n(reinterpret_cast<const char*>(params), sizeof *params,
              reinterpret_cast<char*>(&api.kernel));
  return set_exec_params(exec, node, api);
}
CUresult cuGraphExecKernelNodeSetParams(Driver* state, CUgraphExec exec, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  CUDA_KERNEL_NODE_PARAMS wide = {};
  std::copy_n(reinterpret_cast<const char*>(params), sizeof *params,
              reinterpret_cast<char*>(&wide));
  return cuGraphExecKernelNodeSetParams_v2(state, exec, node, &wide);
}
CUresult cuGraphExecMemcpyNodeSetParams(Driver*, CUgraphExec exec, CUgraphNode node,
                                        const CUDA_MEMCPY3D* copy, CUcontext context) {
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams api = {};
  api.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  api.memcpy.copyCtx = context;
  api.memcpy.copyParams = *copy;
  return set_exec_params(exec, node, api);
}
CUresult cuGraphExecMemsetNodeSetParams(Driver*, CUgraphExec exec, CUgraphNode node,
                                        const CUDA_MEMSET_NODE_PARAMS* set, CUcontext context) {
  if (!set) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams api = {};
  api.type = CU_GRAPH_NODE_TYPE_MEMSET;
  api.memset = {set->dst,   set->pitch,  set->value, set->elementSize,
                set->width, set->height, context};
  return set_exec_params(exec, node, api);
}
CUresult cuGraphExecHostNodeSetParams(Driver*, CUgraphExec exec, CUgraphNode node,
                                      const CUDA_HOST_NODE_PARAMS* host) {
  if (!host) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams api = {};
  api.type = CU_GRAPH_NODE_TYPE_HOST;
  api.host = {host->fn, host->userData};
  return set_exec_params(exec, node, api);
}
CUresult cuGraphExecChildGraphNodeSetParams(Driver*, CUgraphExec exec, CUgraphNode node,
                                            CUgraph child) {
  CUgraphNodeParams api = {};
  api.type = CU_GRAPH_NODE_TYPE_GRAPH;
  api.graph.graph = child;
  return set_exec_params(exec, node, api);
}
CUresult cuGraphExecEventRecordNodeSetEvent(Driver*, CUgraphExec exec, CUgraphNode node,
                                            CUevent event) {
  CUgraphNodeParams api = {};
  api.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
  api.eventRecord.event = event;
  return set_exec_params(exec, node, api);
}
CUresult cuGraphExecEventWaitNodeSetEvent(Driver*, CUgraphExec exec, CUgraphNode node,
                                          CUevent event) {
  CUgraphNodeParams api = {};
  api.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT;
  api.eventWait.event = event;
  return set_exec_params(exec, node, api);
}
CUresult cuGraphExecBatchMemOpNodeSetParams(Driver*, CUgraphExec exec, CUgraphNode node,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS* batch) {
  if (!batch) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams api = {};
  api.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  api.memOp = {batch->ctx, batch->count, batch->paramArray, batch->flags};
  return set_exec_params(exec, node, api);
}
CUresult cuGraphExecExternalSemaphoresSignalNodeSetParams(Driver*, CUgraphExec exec,
                                                          CUgraphNode node,
                                                          const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS*) {
  CUgraphNodeParams api = {};
  api.type = CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL;
  return set_exec_params(exec, node, api);
}
CUresult cuGraphExecExternalSemaphoresWaitNodeSetParams(Driver*, CUgraphExec exec, CUgraphNode node,
                                                        const CUDA_EXT_SEM_WAIT_NODE_PARAMS*) {
  CUgraphNodeParams api = {};
  api.type = CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT;
  return set_exec_params(exec, node, api);
}

CUresult cuGraphNodeSetEnabled(Driver*, CUgraphExec exec_handle, CUgraphNode node,
                               unsigned int enabled) {
  GraphLock lock;
  const std::shared_ptr<GraphExec> exec = to_exec(exec_handle);
  GraphNode* source = to_node(node);
  GraphNode* target = exec && source ? find_by_origin(*exec->graph, source->id) : nullptr;
  if (!target || type_of(target->params) > CU_GRAPH_NODE_TYPE_MEMSET)
    return CUDA_ERROR_INVALID_VALUE;
  target->enabled = enabled != 0;
  return CUDA_SUCCESS;
}
CUresult cuGraphNodeGetEnabled(Driver*, CUgraphExec exec_handle, CUgraphNode node,
                               unsigned int* enabled) {
  GraphLock lock;
  const std::shared_ptr<GraphExec> exec = to_exec(exec_handle);
  GraphNode* source = to_node(node);
  GraphNode* target = exec && source ? find_by_origin(*exec->graph, source->id) : nullptr;
  if (!target || !enabled || type_of(target->params) > CU_GRAPH_NODE_TYPE_MEMSET)
    return CUDA_ERROR_INVALID_VALUE;
  *enabled = target->enabled;
  return CUDA_SUCCESS;
}

CUresult cuGraphUpload(CUgraphExec handle, Stream* stream) {
  bool capturing = false;
  if (const CUresult result = capture_state(stream, &capturing); result != CUDA_SUCCESS)
    return result;
  if (capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  GraphLock lock;
  const std::shared_ptr<GraphExec> exec = to_exec(handle);
  return exec ? prepare_graph_memory(exec.get()) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphLaunch(CUgraphExec handle, Stream* stream) {
  bool capturing = false;
  if (const CUresult result = capture_state(stream, &capturing); result != CUDA_SUCCESS)
    return result;
  std::shared_ptr<GraphExec> exec;
  {
    GraphLock lock;
    exec = to_exec(handle);
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    if (capturing) return capture_child_graph(stream, *exec->graph);
    if (const CUresult result = begin_graph_launch(exec.get()); result != CUDA_SUCCESS)
      return result;
    if (const CUresult result = prepare_graph_memory(exec.get()); result != CUDA_SUCCESS)
      return result;
  }
  // Not under the lock: host functions are the host's own code.
  return run(exec.get(), *exec->graph, exec->order, stream);
}

}  // namespace tonnage::driver
