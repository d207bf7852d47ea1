// The memory nodes of graphs: what gpu/graph_memory.h needs to know of them, and the entry points.
#include <algorithm>
#include <atomic>

#include "driver/entry_points.h"
#include "driver/graphs/graph_types.h"
#include "gpu/graph_memory.h"
#include "gpu/memory_pool.h"

namespace tonnage::driver {
namespace {

struct GraphAllocation {
  uint64_t address = 0, requested = 0, counted = 0;
  const Graph* owner = nullptr;  // compared only
  Device* device = nullptr;
  bool freed_in_owner = false, freed_elsewhere = false;  // by a free node
  bool live = false;                                     // launched and not freed yet
  int holders = 0;                                       // the owner and its executable graph
};

struct State {
  std::unordered_map<uint64_t, GraphAllocation> allocations;  // by use
  std::map<uint64_t, uint64_t> uses;                          // by address: the newest
  std::unordered_map<const Graph*, gpu::GraphAddresses> addresses;
};
State& state_of_graphs() {
  static State* instance = new State;
  return *instance;
}
std::atomic<size_t> g_allocations{0};  // lets cuMemFree pass without the lock

GraphAllocation* find_use(uint64_t use) {
  auto& allocations = state_of_graphs().allocations;
  const auto it = allocations.find(use);
  return it == allocations.end() ? nullptr : &it->second;
}

void drop_if_unused(uint64_t use) {
  State& state = state_of_graphs();
  const auto it = state.allocations.find(use);
  if (it == state.allocations.end() || it->second.live || it->second.holders > 0) return;
  const GraphAllocation& allocation = it->second;
  if (const auto newest = state.uses.find(allocation.address);
      newest != state.uses.end() && newest->second == use) {
    Allocation removed;
    remove_allocation(allocation.address, &removed);
    state.uses.erase(newest);
  }
  auto& addresses = state.addresses[allocation.owner];
  addresses.release(&driver()->addresses, use);
  if (addresses.empty()) state.addresses.erase(allocation.owner);
  state.allocations.erase(it);
  g_allocations.store(state.allocations.size());
}

void end_life(GraphAllocation* allocation) {
  if (!allocation->live) return;
  allocation->live = false;
  allocation->device->graph_memory.end_live(allocation->counted);
  driver()->content.forget(allocation->address, allocation->requested);
}

// The allocations that are certainly freed before a node with these dependencies runs.
std::unordered_set<uint64_t> find_freed_before(const std::vector<Edge>& dependencies) {
  std::unordered_set<uint64_t> freed;
  std::unordered_set<const GraphNode*> seen;
  std::vector<const GraphNode*> open;
  for (const Edge& edge : dependencies) open.push_back(edge.node);
  while (!open.empty()) {
    const GraphNode* node = open.back();
    open.pop_back();
    if (!seen.insert(node).second) continue;
    if (const auto* release = std::get_if<FreeParams>(&node->params)) freed.insert(release->use);
    for (const Edge& edge : node->in) open.push_back(edge.node);
  }
  return freed;
}

// Calls `use` with every allocation or free node, in the order of execution.
template <class Use>
void each_memory_node(const Graph& graph, Use use) {
  std::vector<GraphNode*> order;
  topological_order(graph, &order, nullptr);
  for (GraphNode* node : order) {
    const CUgraphNodeType type = type_of(node->params);
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE) use(*node);
    if (const auto* child = std::get_if<ChildParams>(&node->params))
      each_memory_node(*child->graph, use);
    if (const auto* conditional = std::get_if<ConditionalParams>(&node->params))
      for (const auto& body : conditional->bodies) each_memory_node(*body, use);
  }
}

}  // namespace

CUresult reserve_graph_allocation(Graph* graph, const std::vector<Edge>& dependencies,
                                  AllocParams* params) {
  if (params->pool.allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (params->pool.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  if (params->pool.handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
  Driver* driver_state = driver();
  Device* device = driver_state->device(params->pool.location.id);
  if (!device || params->bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (params->bytes > device->total_bytes()) return CUDA_ERROR_OUT_OF_MEMORY;
  State& state = state_of_graphs();
  const std::unordered_set<uint64_t> freed = find_freed_before(dependencies);
  params->use = driver_state->new_id();
  params->address =
      state.addresses[graph].allocate(&driver_state->addresses, params->bytes, params->use,
                                      [&](uint64_t use) { return freed.count(use) > 0; });
  if (!params->address) return CUDA_ERROR_OUT_OF_MEMORY;
  GraphAllocation& allocation = state.allocations[params->use];
  allocation.address = params->address;
  allocation.requested = params->bytes;
  allocation.counted = gpu::round_up(params->bytes, gpu::kPoolUnit);
  allocation.owner = graph;
  allocation.device = device;
  allocation.holders = 1;
  state.uses[params->address] = params->use;
  g_allocations.store(state.allocations.size());
  // Known from now on: work on it is captured or put into nodes before the graph is launched.
  Allocation known;
  known.address = params->address;
  known.requested_bytes = params->bytes;
  known.kind = abi::DeviceMemoryKind::kGraph;
  known.device = device;
  known.buffer_id = driver_state->new_id();
  known.owned_elsewhere = true;
  add_allocation(known);
  return CUDA_SUCCESS;
}

CUresult check_graph_free(Graph* graph, FreeParams* params) {
  State& state = state_of_graphs();
  const auto newest = state.uses.find(params->address);
  GraphAllocation* allocation = newest == state.uses.end() ? nullptr : find_use(newest->second);
  if (!allocation || allocation->freed_in_owner) return CUDA_ERROR_INVALID_VALUE;
  params->use = newest->second;
  for (const auto& node : graph->nodes)
    if (const auto* other = std::get_if<FreeParams>(&node->params);
        other && other->use == params->use)
      return CUDA_ERROR_INVALID_VALUE;
  const bool own = allocation->owner == graph;
  if (own && allocation->freed_elsewhere) return CUDA_ERROR_INVALID_VALUE;
  (own ? allocation->freed_in_owner : allocation->freed_elsewhere) = true;
  return CUDA_SUCCESS;
}

void forget_graph_allocations(const Graph& graph) {
  for (const auto& node : graph.nodes) {
    const auto* alloc = std::get_if<AllocParams>(&node->params);
    GraphAllocation* allocation = alloc ? find_use(alloc->use) : nullptr;
    if (!allocation) continue;
    allocation->holders--;
    drop_if_unused(alloc->use);
  }
}

// A launch needs memory for all its allocations, except where one is freed before another begins.
void measure_graph_memory(GraphExec* exec) {
  std::unordered_map<const Graph*, uint64_t> extents;
  each_memory_node(*exec->graph, [&](const GraphNode& node) {
    exec->has_memory = true;
    const auto* alloc = std::get_if<AllocParams>(&node.params);
    GraphAllocation* allocation = alloc ? find_use(alloc->use) : nullptr;
    if (!allocation) return;
    allocation->holders++;
    exec->device = allocation->device;
    uint64_t& extent = extents[allocation->owner];
    extent = std::max(extent, state_of_graphs().addresses[allocation->owner].extent_of(alloc->use));
  });
  exec->transient_bytes = 0;
  for (const auto& [owner, extent] : extents) exec->transient_bytes += extent;
}

CUresult begin_graph_launch(GraphExec* exec) {
  if (!exec->has_memory) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  each_memory_node(*exec->graph, [&](const GraphNode& node) {
    const auto* alloc = std::get_if<AllocParams>(&node.params);
    GraphAllocation* allocation = alloc ? find_use(alloc->use) : nullptr;
    if (!allocation || !allocation->live) return;
    if (exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
      end_life(allocation);
    else
      result = CUDA_ERROR_INVALID_VALUE;
  });
  return result;
}

CUresult prepare_graph_memory(GraphExec* exec) {
  if (!exec->has_memory || !exec->device) return CUDA_SUCCESS;
  return exec->device->graph_memory.prepare(exec, exec->transient_bytes) ? CUDA_SUCCESS
                                                                         : CUDA_ERROR_OUT_OF_MEMORY;
}

void run_graph_alloc(const AllocParams& params) {
  GraphLock lock;
  GraphAllocation* allocation = find_use(params.use);
  if (!allocation || allocation->live) return;
  allocation->live = true;
  allocation->device->graph_memory.add_live(allocation->counted);
}

void run_graph_free(const FreeParams& params) {
  GraphLock lock;
  GraphAllocation* allocation = find_use(params.use);
  if (!allocation) return;
  end_life(allocation);
  drop_if_unused(params.use);
}

bool free_graph_memory(CUdeviceptr address) {
  if (g_allocations.load(std::memory_order_relaxed) == 0) return false;
  GraphLock lock;
  State& state = state_of_graphs();
  const auto newest = state.uses.find(address);
  GraphAllocation* allocation = newest == state.uses.end() ? nullptr : find_use(newest->second);
  if (!allocation || !allocation->live || allocation->freed_in_owner) return false;
  const uint64_t use = newest->second;
  end_life(allocation);
  drop_if_unused(use);
  return true;
}

namespace {

void count_nodes(const Graph& graph, gpu::GraphFootprint* footprint) {
  for (const auto& node : graph.nodes) {
    if (const auto* kernel = std::get_if<KernelParams>(&node->params)) {
      footprint->add_kernel(kernel->buffer.size());
    } else if (std::holds_alternative<MemcpyParams>(node->params)) {
      footprint->copies++;
    } else if (const auto* child = std::get_if<ChildParams>(&node->params)) {
      count_nodes(*child->graph, footprint);
    } else if (const auto* conditional = std::get_if<ConditionalParams>(&node->params)) {
      for (const auto& body : conditional->bodies) count_nodes(*body, footprint);
    }
  }
}

bool is_memory_node(const GraphNode& node) {
  return std::holds_alternative<AllocParams>(node.params) ||
         std::holds_alternative<FreeParams>(node.params);
}

// The number of chains that cover all nodes that do work. A node continues the chain of one of its
// predecessors, if no other node continues it. A graph without such nodes has no chain and takes
// nothing (memory nodes only, or empty, as torch.compile's graph trees make one).
uint64_t count_branches(const std::vector<GraphNode*>& order) {
  using Nodes = std::vector<const GraphNode*>;
  std::unordered_map<const GraphNode*, Nodes> behind;  // memory nodes: the work that comes before
  const auto work_before = [&](const GraphNode* node) {
    Nodes found;
    const auto add = [&](const GraphNode* earlier) {
      if (std::find(found.begin(), found.end(), earlier) == found.end()) found.push_back(earlier);
    };
    for (const Edge& edge : node->in) {
      if (!is_memory_node(*edge.node))
        add(edge.node);
      else
        for (const GraphNode* earlier : behind[edge.node]) add(earlier);
    }
    return found;
  };
  std::unordered_set<const GraphNode*> continued;
  uint64_t branches = 0;
  for (const GraphNode* node : order) {
    const Nodes before = work_before(node);
    if (is_memory_node(*node)) {
      behind[node] = before;
      continue;
    }
    const bool goes_on = std::any_of(before.begin(), before.end(), [&](const GraphNode* earlier) {
      return continued.insert(earlier).second;
    });
    branches += !goes_on;
  }
  return branches;
}

}  // namespace

CUresult charge_graph_exec(GraphExec* exec, Device* device) {
  exec->footprint = {};
  count_nodes(*exec->graph, &exec->footprint);
  exec->footprint.branches = count_branches(exec->order);
  if (!device->footprint.charge_graph(&exec->footprint)) return CUDA_ERROR_OUT_OF_MEMORY;
  exec->home = device;
  return CUDA_SUCCESS;
}

void release_graph_memory(GraphExec* exec) {
  if (exec->home) exec->home->footprint.refund_graph(exec->footprint);
  if (!exec->has_memory) return;
  if (exec->device) exec->device->graph_memory.forget(exec);
  std::vector<uint64_t> uses;
  each_memory_node(*exec->graph, [&](const GraphNode& node) {
    if (const auto* alloc = std::get_if<AllocParams>(&node.params)) uses.push_back(alloc->use);
  });
  for (uint64_t use : uses) {
    GraphAllocation* allocation = find_use(use);
    if (!allocation) continue;
    allocation->holders--;
    drop_if_unused(use);
  }
}

CUresult cuDeviceGraphMemTrim(Device* device) {
  GraphLock lock;
  device->graph_memory.trim();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(Device* device, CUgraphMem_attribute attribute, void* value) {
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  GraphLock lock;
  const gpu::GraphMemory& memory = device->graph_memory;
  auto* out = static_cast<cuuint64_t*>(value);
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: *out = memory.used(); return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: *out = memory.used_high(); return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: *out = memory.reserved(); return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: *out = memory.reserved_high(); return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuDeviceSetGraphMemAttribute(Device* device, CUgraphMem_attribute attribute, void* value) {
  if (!value || *static_cast<cuuint64_t*>(value) != 0)
    return CUDA_ERROR_INVALID_VALUE;  // marks can only be reset
  GraphLock lock;
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      device->graph_memory.reset_used_high();
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      device->graph_memory.reset_reserved_high();
      return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace tonnage::driver
