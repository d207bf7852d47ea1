// What graphs are made of. Used by graph*.cpp only; the others use graph.h.
//
// All graphs, nodes and captures of the process are guarded by one lock (GraphLock), taken before
// the driver's own locks. Handles are pointers to these objects; they are checked against the sets
// of live ones, never dereferenced before.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "driver/graphs/graph.h"
#include "driver/state.h"
#include "gpu/footprint.h"

namespace tonnage::driver {

struct GraphExec;

// --- Parameters by node type ---

struct KernelParams {
  CUfunction function = nullptr;  // as given: one of function and kernel may be null
  CUkernel kernel = nullptr;
  CUcontext context = nullptr;
  unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1}, shared_bytes = 0;
  std::vector<unsigned char> buffer;  // the arguments, laid out as the kernel takes them
  std::vector<size_t>
      offsets;  // where each argument starts; empty if they came as one buffer (`extra`)
  bool as_extra = false;
  std::map<int, CUlaunchAttributeValue> attributes;
  // What the API's pointers point to when parameters are read or launched.
  std::vector<void*> pointers;
  size_t extra_bytes = 0;
  void* extra[5] = {};
  // Points `pointers` or `extra` into the buffer of this very object.
  void aim();
};
struct MemcpyParams {
  CUDA_MEMCPY3D copy = {};
  CUcontext context = nullptr;
};
struct MemsetParams {
  CUDA_MEMSET_NODE_PARAMS set = {};
  CUcontext context = nullptr;
};
struct HostParams {
  CUDA_HOST_NODE_PARAMS host = {};
};
struct ChildParams {
  std::shared_ptr<Graph>
      graph;  // owned by the node alone; shared_ptr so that parameters can be copied around
};
struct EmptyParams {};
struct EventWaitParams {
  CUevent event = nullptr;
};
struct EventRecordParams {
  CUevent event = nullptr;
};
// External semaphores cannot be imported (external.cpp), so nodes of these types cannot exist.
struct SignalParams {};
struct WaitParams {};
struct AllocParams {
  CUmemPoolProps pool = {};
  std::vector<CUmemAccessDesc> access;
  size_t bytes = 0;
  CUdeviceptr address = 0;
  uint64_t use =
      0;  // of the address, which others may have before and after; unique in the process
};
struct FreeParams {
  CUdeviceptr address = 0;
  uint64_t use = 0;  // the allocation's
};
struct BatchParams {
  CUcontext context = nullptr;
  std::vector<CUstreamBatchMemOpParams> operations;
  unsigned flags = 0;
};
struct ConditionalParams {
  CUgraphConditionalHandle handle = 0;
  CUgraphConditionalNodeType type = CU_GRAPH_COND_TYPE_IF;
  CUcontext context = nullptr;
  std::vector<std::shared_ptr<Graph>> bodies;
  std::vector<CUgraph> handles;  // what phGraph_out points to
};

// In the order of CUgraphNodeType, so that index() is the type.
using NodeParams =
    std::variant<KernelParams, MemcpyParams, MemsetParams, HostParams, ChildParams, EmptyParams,
                 EventWaitParams, EventRecordParams, SignalParams, WaitParams, AllocParams,
                 FreeParams, BatchParams, ConditionalParams>;
inline CUgraphNodeType type_of(const NodeParams& params) {
  return static_cast<CUgraphNodeType>(params.index());
}

// --- Graphs ---

struct Edge {
  GraphNode* node = nullptr;
  CUgraphEdgeData data = {};
};
inline bool plain(const CUgraphEdgeData& data) {
  return data.from_port == 0 && data.to_port == 0 && data.type == 0;
}
inline bool same(const CUgraphEdgeData& a, const CUgraphEdgeData& b) {
  return a.from_port == b.from_port && a.to_port == b.to_port && a.type == b.type;
}

struct GraphNode {
  Graph* graph = nullptr;
  uint64_t id = 0;         // unique in the process
  uint64_t origin_id = 0;  // of the node that this one was cloned from
  std::vector<Edge> in, out;
  NodeParams params = EmptyParams();
  bool enabled = true;  // in an executable graph
};

// A reference-counted object of the host that graphs keep alive.
struct UserObject {
  void* pointer = nullptr;
  CUhostFn destroy = nullptr;
  uint64_t references = 0;
};

struct Graph {
  uint64_t id = 0;
  uint64_t origin_id = 0;
  Graph* parent = nullptr;  // of a child graph or a conditional body: not the host's to destroy
  bool executable = false;  // belongs to a GraphExec: no handles of its nodes are out
  std::vector<std::unique_ptr<GraphNode>> nodes;  // in order of creation
  std::map<UserObject*, uint64_t> user_objects;
  std::map<CUgraphConditionalHandle, unsigned> conditional_defaults;  // ~0u: none
  std::unordered_set<GraphExec*> executables;  // instantiated from it and alive
  int captures = 0;                            // captures that add to it
  ~Graph();
};

struct GraphExec {
  std::shared_ptr<Graph> graph;   // its own copy
  std::vector<GraphNode*> order;  // top level, dependencies first
  Graph* source = nullptr;        // null once that graph is gone
  unsigned long long flags = 0;
  Device* device = nullptr;
  bool has_memory = false;
  Device* home = nullptr;  // device that keeps its nodes
  gpu::GraphFootprint footprint;
  uint64_t transient_bytes = 0;  // most memory that one launch needs at once (graph_memory.cpp)
};

// Guards all of the above. When the outermost lock of a thread is released, it calls the
// destructors of user objects, so that the program's code never runs under the lock.
class GraphLock {
 public:
  GraphLock();
  ~GraphLock();
  GraphLock(const GraphLock&) = delete;
  GraphLock& operator=(const GraphLock&) = delete;
};

// Null if the handle is not of a live object. Call under a GraphLock.
Graph* to_graph(CUgraph handle);
GraphNode* to_node(CUgraphNode handle);
std::shared_ptr<GraphExec> to_exec(CUgraphExec handle);
inline CUgraph to_handle(Graph* graph) { return reinterpret_cast<CUgraph>(graph); }
inline CUgraphNode to_handle(GraphNode* node) { return reinterpret_cast<CUgraphNode>(node); }

// graph.cpp
std::shared_ptr<Graph> new_graph(Graph* parent, bool executable = false);
void keep_graph(std::shared_ptr<Graph> graph);    // now the host's: lives until cuGraphDestroy
std::shared_ptr<Graph> take_graph(Graph* graph);  // no longer the host's; null if it was not
void keep_exec(std::shared_ptr<GraphExec> exec);
std::shared_ptr<GraphExec> drop_exec(CUgraphExec handle);  // null: not a live one
// A deep copy; nodes' origin_id says what they were copied from. The copy belongs to `parent` (may
// be null).
std::shared_ptr<Graph> clone_graph(const Graph& graph, Graph* parent, bool executable);
bool has_memory_nodes(const Graph& graph);
bool has_conditional_nodes(const Graph& graph);
GraphNode* find_by_origin(Graph& graph, uint64_t origin_id);  // searches child graphs too
// Dependencies first, otherwise in order of creation. False: there is a cycle.
bool topological_order(const Graph& graph, std::vector<GraphNode*>* out, GraphNode** offender);
CUresult check_dependencies(Graph* graph, const CUgraphNode* nodes, const CUgraphEdgeData* data,
                            size_t count, std::vector<Edge>* out);
GraphNode* append_node(Graph* graph, NodeParams params, const std::vector<Edge>& dependencies);
void destroy_node(GraphNode* node);  // with its edges
CUresult add_node(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                  const CUgraphEdgeData* data, size_t count, NodeParams params);
void retain(UserObject* object, uint64_t count);
void release(UserObject* object, uint64_t count);

// graph_nodes.cpp. The new parameters must be of the node's type.
CUresult replace_params(GraphNode* node, NodeParams params);

// graph_params.cpp: from and to the API's structures; checks everything that can be checked without
// the graph.
CUresult make_kernel_params(const CUDA_KERNEL_NODE_PARAMS& api, NodeParams* out);
CUresult make_memcpy_params(const CUDA_MEMCPY3D* copy, CUcontext context, NodeParams* out);
CUresult make_memset_params(const CUDA_MEMSET_NODE_PARAMS* set, CUcontext context, NodeParams* out);
CUresult make_batch_params(CUcontext context, unsigned count,
                           const CUstreamBatchMemOpParams* operations, unsigned flags,
                           NodeParams* out);
CUresult make_params(const CUgraphNodeParams* api, Graph* graph, NodeParams* out);
void write_kernel_params(KernelParams& params, CUDA_KERNEL_NODE_PARAMS* out);
// The launch that a kernel node stands for; points into `params`, `attributes` and stays valid as
// long as both.
KernelLaunch launch_of(KernelParams& params, std::vector<CUlaunchAttribute>* attributes);

// graph_memory.cpp: memory that graphs own.
// Fixes the address of an allocation that comes after `dependencies`.
CUresult reserve_graph_allocation(Graph* graph, const std::vector<Edge>& dependencies,
                                  AllocParams* params);
CUresult check_graph_free(Graph* graph, FreeParams* params);
void forget_graph_allocations(const Graph& graph);  // the graph is destroyed
void measure_graph_memory(GraphExec* exec);
CUresult prepare_graph_memory(
    GraphExec* exec);  // before upload or launch: takes the memory from the card
CUresult begin_graph_launch(GraphExec* exec);  // checks that earlier launches' memory was freed
void run_graph_alloc(const AllocParams& params);
void run_graph_free(const FreeParams& params);
void release_graph_memory(GraphExec* exec);  // the executable graph is destroyed
// What the driver keeps on the device for an executable graph itself. Modelled.
CUresult charge_graph_exec(GraphExec* exec, Device* device);

// graph_capture.cpp
CUresult capture_child_graph(Stream* stream, const Graph& graph);

}  // namespace tonnage::driver
