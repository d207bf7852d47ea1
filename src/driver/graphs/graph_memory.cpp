// Memory that graphs own (allocation and free nodes) and the per-device pool that it comes from.
//
// An allocation node's address is fixed when the node is made; the card's memory is taken when the
// graph is first uploaded or launched, in chunks, and stays reserved until cuDeviceGraphMemTrim.
// Graphs run one after another here, so all of them share the same memory, except for allocations
// that outlive their launch. Sources: CUDA Programming Guide, "Graph Memory Nodes"; the figures of
// an H200 (driver 580).
#include <algorithm>
#include <atomic>

#include "driver/api/virtual_memory.h"
#include "driver/entry_points.h"
#include "driver/graphs/graph_types.h"
#include "driver/recording.h"

namespace tonnage::driver {
namespace {

struct GraphAllocation {
  uint64_t requested = 0, range_bytes = 0, counted = 0;
  const Graph* owner = nullptr;  // compared only
  Device* device = nullptr;
  bool freed_in_owner = false, freed_elsewhere = false;  // by a free node
  bool live = false;                                     // launched and not freed yet
  int holders = 0;                                       // the owner and its executable graph
};

struct DevicePool {
  std::vector<uint64_t> chunks;  // of kPoolChunk each
  uint64_t reserved = 0, reserved_high = 0, used_high = 0;
  uint64_t live = 0;  // allocations that outlive their launch
  uint64_t peak = 0;  // most that a launch needed, while a graph that launched is still there
  std::unordered_set<GraphExec*> mapped;

  uint64_t used() const {
    return std::min(reserved, gpu::round_up(std::max(live, peak), kPoolChunk));
  }
  void note() {
    reserved_high = std::max(reserved_high, reserved);
    used_high = std::max(used_high, used());
  }
};

struct State {
  std::map<uint64_t, GraphAllocation> allocations;
  std::unordered_map<Device*, DevicePool> pools;
};
State& state_of_graphs() {
  static State* instance = new State;
  return *instance;
}
std::atomic<size_t> g_allocations{0};  // lets cuMemFree pass without the lock

void drop_if_unused(std::map<uint64_t, GraphAllocation>::iterator it) {
  if (it->second.live || it->second.holders > 0) return;
  Allocation removed;
  remove_allocation(it->first, &removed);
  release_range(it->first, it->second.range_bytes);
  state_of_graphs().allocations.erase(it);
  g_allocations.store(state_of_graphs().allocations.size());
}

void end_life(std::map<uint64_t, GraphAllocation>::iterator it) {
  GraphAllocation& allocation = it->second;
  if (!allocation.live) return;
  allocation.live = false;
  state_of_graphs().pools[allocation.device].live -= allocation.counted;
  driver()->content.forget(it->first, allocation.requested);
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

CUresult reserve_graph_allocation(Graph* graph, AllocParams* params) {
  if (params->pool.allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (params->pool.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  if (params->pool.handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
  Device* device = driver()->device(params->pool.location.id);
  if (!device || params->bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (params->bytes > driver()->ledger.total(device->physical)) return CUDA_ERROR_OUT_OF_MEMORY;
  GraphAllocation allocation;
  allocation.requested = params->bytes;
  allocation.range_bytes = gpu::round_up(params->bytes, gpu::kAllocationGranularity);
  allocation.counted = gpu::round_up(params->bytes, kPoolUnit);
  allocation.owner = graph;
  allocation.device = device;
  allocation.holders = 1;
  params->address = reserve_range(allocation.range_bytes);
  if (!params->address) return CUDA_ERROR_OUT_OF_MEMORY;
  state_of_graphs().allocations[params->address] = allocation;
  g_allocations.store(state_of_graphs().allocations.size());
  // Known from now on: work on it is captured or put into nodes before the graph is launched.
  Allocation known;
  known.address = params->address;
  known.requested_bytes = params->bytes;
  known.kind = abi::DeviceMemoryKind::kGraph;
  known.device = device;
  known.buffer_id = driver()->new_id();
  known.owned_elsewhere = true;
  add_allocation(known);
  return CUDA_SUCCESS;
}

CUresult check_graph_free(Graph* graph, CUdeviceptr address) {
  auto& allocations = state_of_graphs().allocations;
  const auto it = allocations.find(address);
  if (it == allocations.end() || it->second.freed_in_owner) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& node : graph->nodes)
    if (const auto* other = std::get_if<FreeParams>(&node->params);
        other && other->address == address)
      return CUDA_ERROR_INVALID_VALUE;
  const bool own = it->second.owner == graph;
  if (own && it->second.freed_elsewhere) return CUDA_ERROR_INVALID_VALUE;
  (own ? it->second.freed_in_owner : it->second.freed_elsewhere) = true;
  return CUDA_SUCCESS;
}

void forget_graph_allocations(const Graph& graph) {
  auto& allocations = state_of_graphs().allocations;
  for (const auto& node : graph.nodes) {
    const auto* alloc = std::get_if<AllocParams>(&node->params);
    const auto it = alloc ? allocations.find(alloc->address) : allocations.end();
    if (it == allocations.end()) continue;
    it->second.holders--;
    drop_if_unused(it);
  }
}

void measure_graph_memory(GraphExec* exec) {
  uint64_t now = 0, most = 0;
  std::unordered_map<CUdeviceptr, uint64_t> inside;
  auto& allocations = state_of_graphs().allocations;
  each_memory_node(*exec->graph, [&](const GraphNode& node) {
    exec->has_memory = true;
    if (const auto* alloc = std::get_if<AllocParams>(&node.params)) {
      const auto it = allocations.find(alloc->address);
      if (it == allocations.end()) return;
      it->second.holders++;
      exec->device = it->second.device;
      inside[alloc->address] = it->second.counted;
      now += it->second.counted;
      most = std::max(most, now);
    } else if (const auto it = inside.find(std::get<FreeParams>(node.params).address);
               it != inside.end()) {
      now -= it->second;
      inside.erase(it);
    }
  });
  exec->transient_bytes = most;
}

CUresult begin_graph_launch(GraphExec* exec) {
  if (!exec->has_memory) return CUDA_SUCCESS;
  auto& allocations = state_of_graphs().allocations;
  CUresult result = CUDA_SUCCESS;
  each_memory_node(*exec->graph, [&](const GraphNode& node) {
    const auto* alloc = std::get_if<AllocParams>(&node.params);
    const auto it = alloc ? allocations.find(alloc->address) : allocations.end();
    if (it == allocations.end() || !it->second.live) return;
    if (exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
      end_life(it);
    else
      result = CUDA_ERROR_INVALID_VALUE;
  });
  return result;
}

CUresult prepare_graph_memory(GraphExec* exec) {
  if (!exec->has_memory || !exec->device) return CUDA_SUCCESS;
  DevicePool& pool = state_of_graphs().pools[exec->device];
  const uint64_t needed = pool.live + exec->transient_bytes;
  if (needed > pool.reserved) {
    const uint64_t bytes = gpu::round_up(needed, kPoolChunk) - pool.reserved;
    if (!charge_device(exec->device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint64_t taken = 0; taken < bytes; taken += kPoolChunk) {
      // Known to the record by addresses of their own; those of the allocations in it are the nodes'.
      const uint64_t address = reserve_range(kPoolChunk);
      pool.chunks.push_back(address);
      pool.reserved += kPoolChunk;
      record_device_alloc(exec->device->index, address, kPoolChunk, abi::DeviceMemoryKind::kGraph);
    }
  }
  pool.mapped.insert(exec);
  pool.peak = std::max(pool.peak, needed);
  pool.note();
  return CUDA_SUCCESS;
}

void run_graph_alloc(GraphExec*, const AllocParams& params) {
  GraphLock lock;
  auto& allocations = state_of_graphs().allocations;
  const auto it = allocations.find(params.address);
  if (it == allocations.end() || it->second.live) return;
  it->second.live = true;
  DevicePool& pool = state_of_graphs().pools[it->second.device];
  pool.live += it->second.counted;
}

void run_graph_free(CUdeviceptr address) {
  GraphLock lock;
  auto& allocations = state_of_graphs().allocations;
  const auto it = allocations.find(address);
  if (it == allocations.end()) return;
  end_life(it);
  drop_if_unused(it);
}

bool free_graph_memory(CUdeviceptr address) {
  if (g_allocations.load(std::memory_order_relaxed) == 0) return false;
  GraphLock lock;
  auto& allocations = state_of_graphs().allocations;
  const auto it = allocations.find(address);
  if (it == allocations.end() || !it->second.live || it->second.freed_in_owner) return false;
  end_life(it);
  drop_if_unused(it);
  return true;
}

namespace {

void count_nodes(const Graph& graph, GraphFootprint* footprint) {
  for (const auto& node : graph.nodes) {
    if (const auto* kernel = std::get_if<KernelParams>(&node->params)) {
      const size_t bytes = kernel->buffer.size();
      (bytes <= kMostOfSmallKernel    ? footprint->small_kernels
       : bytes <= kMostOfMediumKernel ? footprint->medium_kernels
                                      : footprint->large_kernels)++;
    } else if (std::holds_alternative<MemcpyParams>(node->params)) {
      footprint->copies++;
    } else if (const auto* child = std::get_if<ChildParams>(&node->params)) {
      count_nodes(*child->graph, footprint);
    } else if (const auto* conditional = std::get_if<ConditionalParams>(&node->params)) {
      for (const auto& body : conditional->bodies) count_nodes(*body, footprint);
    }
  }
}

// Chains that cover the nodes (an empty graph, as torch.compile's graph trees make one, has none
// and takes nothing): each node goes on where one of those before it ended, if no other has gone on
// there.
uint64_t count_branches(const std::vector<GraphNode*>& order) {
  std::unordered_set<const GraphNode*> continued;
  uint64_t branches = 0;
  for (const GraphNode* node : order) {
    const bool goes_on = std::any_of(node->in.begin(), node->in.end(), [&](const Edge& edge) {
      return continued.insert(edge.node).second;
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
  const CUresult result = charge_graph(device, &exec->footprint);
  if (result == CUDA_SUCCESS) exec->home = device;
  return result;
}

void release_graph_memory(GraphExec* exec) {
  if (exec->home) refund_graph(exec->home, exec->footprint);
  if (!exec->has_memory) return;
  if (exec->device) {
    DevicePool& pool = state_of_graphs().pools[exec->device];
    pool.mapped.erase(exec);
    if (pool.mapped.empty()) pool.peak = 0;
  }
  auto& allocations = state_of_graphs().allocations;
  each_memory_node(*exec->graph, [&](const GraphNode& node) {
    const auto* alloc = std::get_if<AllocParams>(&node.params);
    const auto it = alloc ? allocations.find(alloc->address) : allocations.end();
    if (it == allocations.end()) return;
    it->second.holders--;
    drop_if_unused(it);
  });
}

CUresult cuDeviceGraphMemTrim(Device* device) {
  GraphLock lock;
  DevicePool& pool = state_of_graphs().pools[device];
  pool.mapped.clear();  // nothing runs now; the next launch takes what it needs
  pool.peak = 0;
  while (!pool.chunks.empty() && pool.reserved - kPoolChunk >= pool.live) {
    const uint64_t address = pool.chunks.back();
    pool.chunks.pop_back();
    pool.reserved -= kPoolChunk;
    release_range(address, kPoolChunk);
    refund_device(device, kPoolChunk);
    record_device_free(device->index, address, kPoolChunk, tonnage::abi::DeviceMemoryKind::kGraph);
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(Device* device, CUgraphMem_attribute attribute, void* value) {
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  GraphLock lock;
  const DevicePool& pool = state_of_graphs().pools[device];
  auto* out = static_cast<cuuint64_t*>(value);
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: *out = pool.used(); return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: *out = pool.used_high; return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: *out = pool.reserved; return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: *out = pool.reserved_high; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuDeviceSetGraphMemAttribute(Device* device, CUgraphMem_attribute attribute, void* value) {
  if (!value || *static_cast<cuuint64_t*>(value) != 0)
    return CUDA_ERROR_INVALID_VALUE;  // marks can only be reset
  GraphLock lock;
  DevicePool& pool = state_of_graphs().pools[device];
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: pool.used_high = pool.used(); return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      pool.reserved_high = pool.reserved;
      return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace tonnage::driver
