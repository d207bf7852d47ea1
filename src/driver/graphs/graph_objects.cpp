// Graphs, their nodes and user objects: makes, finds, copies and releases them.
#include <algorithm>
#include <queue>
#include <unordered_map>

#include "driver/entry_points.h"
#include "driver/graphs/graph_types.h"

namespace tonnage::driver {
namespace {

// Never destroyed: threads of the host may outlive static destructors.
struct Registry {
  std::recursive_mutex mutex;
  std::unordered_set<const void*> graphs, nodes;
  std::unordered_map<const void*, std::shared_ptr<Graph>> owned;
  std::unordered_map<const void*, std::shared_ptr<GraphExec>> execs;
  std::unordered_set<const void*> user_objects;
};
Registry& registry() {
  static Registry* instance = new Registry;
  return *instance;
}

thread_local int t_depth = 0;
// It has no destructor: exit handlers of other libraries still destroy graphs.
std::vector<UserObject*>& dying_objects() {
  thread_local auto* objects = new std::vector<UserObject*>;
  return *objects;
}

}  // namespace

GraphLock::GraphLock() {
  registry().mutex.lock();
  t_depth++;
}

GraphLock::~GraphLock() {
  std::vector<UserObject*> dying;
  if (--t_depth == 0) dying.swap(dying_objects());
  registry().mutex.unlock();
  for (UserObject* object : dying) {
    if (object->destroy) object->destroy(object->pointer);
    delete object;
  }
}

Graph* to_graph(CUgraph handle) {
  return registry().graphs.count(handle) ? reinterpret_cast<Graph*>(handle) : nullptr;
}
GraphNode* to_node(CUgraphNode handle) {
  return registry().nodes.count(handle) ? reinterpret_cast<GraphNode*>(handle) : nullptr;
}
std::shared_ptr<GraphExec> to_exec(CUgraphExec handle) {
  const auto it = registry().execs.find(handle);
  return it == registry().execs.end() ? nullptr : it->second;
}

void keep_graph(std::shared_ptr<Graph> graph) {
  const void* key = graph.get();
  registry().owned[key] = std::move(graph);
}
std::shared_ptr<Graph> take_graph(Graph* graph) {
  const auto it = registry().owned.find(graph);
  if (it == registry().owned.end()) return nullptr;
  std::shared_ptr<Graph> taken = std::move(it->second);
  registry().owned.erase(it);
  return taken;
}
void keep_exec(std::shared_ptr<GraphExec> exec) {
  const void* key = exec.get();
  registry().execs[key] = std::move(exec);
}
std::shared_ptr<GraphExec> drop_exec(CUgraphExec handle) {
  const auto it = registry().execs.find(handle);
  if (it == registry().execs.end()) return nullptr;
  std::shared_ptr<GraphExec> exec = std::move(it->second);
  registry().execs.erase(it);
  if (exec->source) exec->source->executables.erase(exec.get());
  return exec;
}

std::shared_ptr<Graph> new_graph(Graph* parent, bool executable) {
  auto graph = std::make_shared<Graph>();
  graph->id = driver()->new_id();
  graph->parent = parent;
  graph->executable = executable;
  if (!executable) registry().graphs.insert(graph.get());
  return graph;
}

Graph::~Graph() {
  GraphLock lock;
  if (!executable) {
    forget_graph_allocations(*this);
    registry().graphs.erase(this);
    for (const auto& node : nodes) registry().nodes.erase(node.get());
  }
  for (GraphExec* exec : executables) exec->source = nullptr;
  for (const auto& [object, count] : user_objects) release(object, count);
}

GraphNode* append_node(Graph* graph, NodeParams params, const std::vector<Edge>& dependencies) {
  auto node = std::make_unique<GraphNode>();
  node->graph = graph;
  node->id = driver()->new_id();
  node->params = std::move(params);
  if (auto* child = std::get_if<ChildParams>(&node->params); child && child->graph)
    child->graph->parent = graph;
  node->in = dependencies;
  for (const Edge& edge : dependencies) edge.node->out.push_back({node.get(), edge.data});
  GraphNode* result = node.get();
  if (!graph->executable) registry().nodes.insert(result);
  graph->nodes.push_back(std::move(node));
  return result;
}

void destroy_node(GraphNode* node) {
  const auto cut = [node](std::vector<Edge>* edges) {
    edges->erase(std::remove_if(edges->begin(), edges->end(),
                                [node](const Edge& edge) { return edge.node == node; }),
                 edges->end());
  };
  for (const Edge& edge : node->in) cut(&edge.node->out);
  for (const Edge& edge : node->out) cut(&edge.node->in);
  registry().nodes.erase(node);
  auto& nodes = node->graph->nodes;
  nodes.erase(std::find_if(nodes.begin(), nodes.end(),
                           [node](const auto& other) { return other.get() == node; }));
}

CUresult check_dependencies(Graph* graph, const CUgraphNode* nodes, const CUgraphEdgeData* data,
                            size_t count, std::vector<Edge>* out) {
  if (count && !nodes) return CUDA_ERROR_INVALID_VALUE;
  std::unordered_set<GraphNode*> seen;
  for (size_t i = 0; i < count; i++) {
    GraphNode* node = to_node(nodes[i]);
    if (!node || node->graph != graph || !seen.insert(node).second) return CUDA_ERROR_INVALID_VALUE;
    out->push_back({node, data ? data[i] : CUgraphEdgeData{}});
  }
  return CUDA_SUCCESS;
}

CUresult add_node(CUgraphNode* out, CUgraph handle, const CUgraphNode* dependencies,
                  const CUgraphEdgeData* data, size_t count, NodeParams params) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  Graph* graph = to_graph(handle);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Edge> edges;
  if (const CUresult result = check_dependencies(graph, dependencies, data, count, &edges);
      result != CUDA_SUCCESS)
    return result;
  if (auto* alloc = std::get_if<AllocParams>(&params))
    if (const CUresult result = reserve_graph_allocation(graph, edges, alloc);
        result != CUDA_SUCCESS)
      return result;
  if (auto* release = std::get_if<FreeParams>(&params))
    if (const CUresult result = check_graph_free(graph, release); result != CUDA_SUCCESS)
      return result;
  *out = to_handle(append_node(graph, std::move(params), edges));
  return CUDA_SUCCESS;
}

std::shared_ptr<Graph> clone_graph(const Graph& graph, Graph* parent, bool executable) {
  std::shared_ptr<Graph> copy = new_graph(parent, executable);
  copy->origin_id = graph.id;
  copy->conditional_defaults = graph.conditional_defaults;
  std::unordered_map<const GraphNode*, GraphNode*> made;
  for (const auto& node : graph.nodes) {
    NodeParams params = node->params;
    if (auto* child = std::get_if<ChildParams>(&params))
      child->graph = clone_graph(*child->graph, copy.get(), executable);
    if (auto* conditional = std::get_if<ConditionalParams>(&params)) {
      conditional->handles.clear();
      for (auto& body : conditional->bodies) {
        body = clone_graph(*body, copy.get(), executable);
        conditional->handles.push_back(to_handle(body.get()));
      }
    }
    GraphNode* twin = append_node(copy.get(), std::move(params), {});
    twin->origin_id = node->id;
    twin->enabled = node->enabled;
    made[node.get()] = twin;
  }
  for (const auto& node : graph.nodes) {
    for (const Edge& edge : node->in) made[node.get()]->in.push_back({made[edge.node], edge.data});
    for (const Edge& edge : node->out)
      made[node.get()]->out.push_back({made[edge.node], edge.data});
  }
  for (const auto& [object, count] : graph.user_objects) {
    retain(object, 1);
    copy->user_objects[object] = 1;
  }
  return copy;
}

namespace {

template <class Predicate>
bool any_node(const Graph& graph, Predicate predicate) {
  for (const auto& node : graph.nodes) {
    if (predicate(*node)) return true;
    if (const auto* child = std::get_if<ChildParams>(&node->params);
        child && any_node(*child->graph, predicate))
      return true;
    if (const auto* conditional = std::get_if<ConditionalParams>(&node->params))
      for (const auto& body : conditional->bodies)
        if (any_node(*body, predicate)) return true;
  }
  return false;
}

}  // namespace

bool has_memory_nodes(const Graph& graph) {
  return any_node(graph, [](const GraphNode& node) {
    const CUgraphNodeType type = type_of(node.params);
    return type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE;
  });
}

bool has_conditional_nodes(const Graph& graph) {
  return any_node(graph, [](const GraphNode& node) {
    return type_of(node.params) == CU_GRAPH_NODE_TYPE_CONDITIONAL;
  });
}

GraphNode* find_by_origin(Graph& graph, uint64_t origin_id) {
  for (const auto& node : graph.nodes) {
    if (node->origin_id == origin_id) return node.get();
    if (auto* child = std::get_if<ChildParams>(&node->params))
      if (GraphNode* found = find_by_origin(*child->graph, origin_id)) return found;
    if (auto* conditional = std::get_if<ConditionalParams>(&node->params))
      for (auto& body : conditional->bodies)
        if (GraphNode* found = find_by_origin(*body, origin_id)) return found;
  }
  return nullptr;
}

bool topological_order(const Graph& graph, std::vector<GraphNode*>* out, GraphNode** offender) {
  out->clear();
  std::unordered_map<const GraphNode*, size_t> waiting, position;
  // Ready nodes by order of creation.
  std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
  for (size_t i = 0; i < graph.nodes.size(); i++) {
    const GraphNode* node = graph.nodes[i].get();
    position[node] = i;
    waiting[node] = node->in.size();
    if (node->in.empty()) ready.push(i);
  }
  while (!ready.empty()) {
    GraphNode* node = graph.nodes[ready.top()].get();
    ready.pop();
    out->push_back(node);
    for (const Edge& edge : node->out)
      if (--waiting[edge.node] == 0) ready.push(position[edge.node]);
  }
  if (out->size() == graph.nodes.size()) return true;
  if (offender)
    for (const auto& node : graph.nodes)
      if (waiting[node.get()] > 0) *offender = node.get();
  return false;
}

// --- User objects ---

void retain(UserObject* object, uint64_t count) { object->references += count; }

void release(UserObject* object, uint64_t count) {
  object->references -= std::min(count, object->references);
  if (object->references > 0) return;
  registry().user_objects.erase(object);
  dying_objects().push_back(object);
}

namespace {

UserObject* to_user_object(CUuserObject handle) {
  return registry().user_objects.count(handle) ? reinterpret_cast<UserObject*>(handle) : nullptr;
}

}  // namespace

CUresult cuUserObjectCreate(Driver*, CUuserObject* out, void* pointer, CUhostFn destroy,
                            unsigned int references, unsigned int flags) {
  if (!out || !destroy || references == 0 || references > INT32_MAX ||
      flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
    return CUDA_ERROR_INVALID_VALUE;
  GraphLock lock;
  auto* object = new UserObject{pointer, destroy, references};
  registry().user_objects.insert(object);
  *out = reinterpret_cast<CUuserObject>(object);
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(Driver*, CUuserObject handle, unsigned int count) {
  GraphLock lock;
  UserObject* object = to_user_object(handle);
  if (!object || count == 0 || count > INT32_MAX) return CUDA_ERROR_INVALID_VALUE;
  retain(object, count);
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(Driver*, CUuserObject handle, unsigned int count) {
  GraphLock lock;
  UserObject* object = to_user_object(handle);
  if (!object || count == 0 || count > object->references) return CUDA_ERROR_INVALID_VALUE;
  release(object, count);
  return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(Driver*, CUgraph graph_handle, CUuserObject handle,
                                 unsigned int count, unsigned int flags) {
  GraphLock lock;
  Graph* graph = to_graph(graph_handle);
  UserObject* object = to_user_object(handle);
  if (!graph || !object || count == 0 || count > INT32_MAX ||
      (flags & ~unsigned{CU_GRAPH_USER_OBJECT_MOVE}))
    return CUDA_ERROR_INVALID_VALUE;
  if (flags & CU_GRAPH_USER_OBJECT_MOVE) {
    if (count > object->references) return CUDA_ERROR_INVALID_VALUE;
  } else {
    retain(object, count);
  }
  graph->user_objects[object] += count;
  return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(Driver*, CUgraph graph_handle, CUuserObject handle,
                                  unsigned int count) {
  GraphLock lock;
  Graph* graph = to_graph(graph_handle);
  UserObject* object = to_user_object(handle);
  if (!graph || !object || count == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto it = graph->user_objects.find(object);
  if (it == graph->user_objects.end() || count > it->second) return CUDA_ERROR_INVALID_VALUE;
  it->second -= count;
  if (it->second == 0) graph->user_objects.erase(it);
  release(object, count);
  return CUDA_SUCCESS;
}

// --- Making and destroying ---

CUresult cuGraphCreate(Driver*, CUgraph* out, unsigned int flags) {
  if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
  GraphLock lock;
  std::shared_ptr<Graph> graph = new_graph(nullptr);
  *out = to_handle(graph.get());
  keep_graph(std::move(graph));
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(Driver*, CUgraph handle) {
  GraphLock lock;
  Graph* graph = to_graph(handle);
  if (!graph || graph->parent || graph->captures > 0) return CUDA_ERROR_INVALID_VALUE;
  return registry().owned.erase(graph) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphClone(Driver*, CUgraph* out, CUgraph handle) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  GraphLock lock;
  Graph* graph = to_graph(handle);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  if (has_memory_nodes(*graph) || has_conditional_nodes(*graph)) return CUDA_ERROR_NOT_SUPPORTED;
  std::shared_ptr<Graph> copy = clone_graph(*graph, nullptr, false);
  *out = to_handle(copy.get());
  keep_graph(std::move(copy));
  return CUDA_SUCCESS;
}

}  // namespace tonnage::driver
