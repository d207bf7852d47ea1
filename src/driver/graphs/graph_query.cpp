// Asking a graph about its nodes and edges, and changing its edges.
#include <algorithm>

#include "driver/entry_points.h"
#include "driver/graphs/graph_types.h"

namespace tonnage::driver {
namespace {

// Writes a list as all these queries do: *count is the room before the call and the number
// afterwards; the rest of the room becomes null.
template <class Handle>
void write_list(const std::vector<Handle>& list, Handle* out, size_t* count) {
  if (!out) {
    *count = list.size();
    return;
  }
  for (size_t i = 0; i < *count; i++) out[i] = i < list.size() ? list[i] : nullptr;
  *count = std::min(*count, list.size());
}

CUresult write_edges(const std::vector<Edge>& edges, CUgraphNode* nodes, CUgraphEdgeData* data,
                     size_t* count) {
  if (!count || (data && !nodes)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> list;
  for (size_t i = 0; i < edges.size(); i++) {
    if (nodes && !data && !plain(edges[i].data)) return CUDA_ERROR_LOSSY_QUERY;
    if (data && i < *count) data[i] = edges[i].data;
    list.push_back(to_handle(edges[i].node));
  }
  write_list(list, nodes, count);
  return CUDA_SUCCESS;
}

CUresult node_edges(CUgraphNode handle, bool dependents, CUgraphNode* nodes, CUgraphEdgeData* data,
                    size_t* count) {
  GraphLock lock;
  GraphNode* node = to_node(handle);
  if (!node) return CUDA_ERROR_INVALID_VALUE;
  return write_edges(dependents ? node->out : node->in, nodes, data, count);
}

CUresult graph_edges(CUgraph handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data,
                     size_t* count) {
  GraphLock lock;
  Graph* graph = to_graph(handle);
  if (!graph || !count || !from != !to || (data && !from)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> sources, targets;
  for (const auto& node : graph->nodes) {
    for (const Edge& edge : node->out) {
      if (from && !data && !plain(edge.data)) return CUDA_ERROR_LOSSY_QUERY;
      if (data && sources.size() < *count) data[sources.size()] = edge.data;
      sources.push_back(to_handle(node.get()));
      targets.push_back(to_handle(edge.node));
    }
  }
  size_t room = *count;
  write_list(sources, from, count);
  write_list(targets, to, &room);
  return CUDA_SUCCESS;
}

bool has_edge(const GraphNode& from, const GraphNode* to) {
  return std::any_of(from.out.begin(), from.out.end(),
                     [to](const Edge& edge) { return edge.node == to; });
}

void erase_edge(std::vector<Edge>* edges, const GraphNode* node) {
  edges->erase(std::remove_if(edges->begin(), edges->end(),
                              [node](const Edge& edge) { return edge.node == node; }),
               edges->end());
}

CUresult change_edges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                      const CUgraphEdgeData* data, size_t count, bool add) {
  GraphLock lock;
  Graph* graph = to_graph(handle);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  if (count == 0) return CUDA_SUCCESS;
  if (!from || !to) return CUDA_ERROR_INVALID_VALUE;
  if (!add && has_memory_nodes(*graph)) return CUDA_ERROR_NOT_SUPPORTED;
  // Checked as a whole first, so that a refused call changes nothing.
  for (size_t i = 0; i < count; i++) {
    GraphNode *a = to_node(from[i]), *b = to_node(to[i]);
    if (!a || !b || a == b || a->graph != graph || b->graph != graph)
      return CUDA_ERROR_INVALID_VALUE;
    if (has_edge(*a, b) == add) return CUDA_ERROR_INVALID_VALUE;
    for (size_t j = 0; j < i; j++)
      if (from[j] == from[i] && to[j] == to[i]) return CUDA_ERROR_INVALID_VALUE;
    if (!add) {
      const CUgraphEdgeData wanted = data ? data[i] : CUgraphEdgeData{};
      for (const Edge& edge : a->out)
        if (edge.node == b && !same(edge.data, wanted)) return CUDA_ERROR_INVALID_VALUE;
    }
  }
  for (size_t i = 0; i < count; i++) {
    GraphNode *a = to_node(from[i]), *b = to_node(to[i]);
    if (add) {
      const CUgraphEdgeData value = data ? data[i] : CUgraphEdgeData{};
      a->out.push_back({b, value});
      b->in.push_back({a, value});
    } else {
      erase_edge(&a->out, b);
      erase_edge(&b->in, a);
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuGraphNodeGetType(Driver*, CUgraphNode handle, CUgraphNodeType* type) {
  GraphLock lock;
  GraphNode* node = to_node(handle);
  if (!node || !type) return CUDA_ERROR_INVALID_VALUE;
  *type = type_of(node->params);
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeFindInClone(Driver*, CUgraphNode* out, CUgraphNode original, CUgraph clone) {
  GraphLock lock;
  GraphNode* node = to_node(original);
  Graph* graph = to_graph(clone);
  if (!out || !node || !graph) return CUDA_ERROR_INVALID_VALUE;
  GraphNode* found = find_by_origin(*graph, node->id);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  *out = to_handle(found);
  return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(Driver*, CUgraph handle, CUgraphNode* nodes, size_t* count) {
  GraphLock lock;
  Graph* graph = to_graph(handle);
  if (!graph || !count) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> list;
  for (const auto& node : graph->nodes) list.push_back(to_handle(node.get()));
  write_list(list, nodes, count);
  return CUDA_SUCCESS;
}

CUresult cuGraphGetRootNodes(Driver*, CUgraph handle, CUgraphNode* nodes, size_t* count) {
  GraphLock lock;
  Graph* graph = to_graph(handle);
  if (!graph || !count) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> list;
  for (const auto& node : graph->nodes)
    if (node->in.empty()) list.push_back(to_handle(node.get()));
  write_list(list, nodes, count);
  return CUDA_SUCCESS;
}

CUresult cuGraphGetEdges_v2(Driver*, CUgraph graph, CUgraphNode* from, CUgraphNode* to,
                            CUgraphEdgeData* data, size_t* count) {
  return graph_edges(graph, from, to, data, count);
}
CUresult cuGraphGetEdges(Driver*, CUgraph graph, CUgraphNode* from, CUgraphNode* to,
                         size_t* count) {
  return graph_edges(graph, from, to, nullptr, count);
}
CUresult cuGraphNodeGetDependencies_v2(Driver*, CUgraphNode node, CUgraphNode* nodes,
                                       CUgraphEdgeData* data, size_t* count) {
  return node_edges(node, false, nodes, data, count);
}
CUresult cuGraphNodeGetDependencies(Driver*, CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  return node_edges(node, false, nodes, nullptr, count);
}
CUresult cuGraphNodeGetDependentNodes_v2(Driver*, CUgraphNode node, CUgraphNode* nodes,
                                         CUgraphEdgeData* data, size_t* count) {
  return node_edges(node, true, nodes, data, count);
}
CUresult cuGraphNodeGetDependentNodes(Driver*, CUgraphNode node, CUgraphNode* nodes,
                                      size_t* count) {
  return node_edges(node, true, nodes, nullptr, count);
}
CUresult cuGraphAddDependencies_v2(Driver*, CUgraph graph, const CUgraphNode* from,
                                   const CUgraphNode* to, const CUgraphEdgeData* data,
                                   size_t count) {
  return change_edges(graph, from, to, data, count, true);
}
CUresult cuGraphAddDependencies(Driver*, CUgraph graph, const CUgraphNode* from,
                                const CUgraphNode* to, size_t count) {
  return change_edges(graph, from, to, nullptr, count, true);
}
CUresult cuGraphRemoveDependencies_v2(Driver*, CUgraph graph, const CUgraphNode* from,
                                      const CUgraphNode* to, const CUgraphEdgeData* data,
                                      size_t count) {
  return change_edges(graph, from, to, data, count, false);
}
CUresult cuGraphRemoveDependencies(Driver*, CUgraph graph, const CUgraphNode* from,
                                   const CUgraphNode* to, size_t count) {
  return change_edges(graph, from, to, nullptr, count, false);
}

CUresult cuGraphDestroyNode(Driver*, CUgraphNode handle) {
  GraphLock lock;
  GraphNode* node = to_node(handle);
  if (!node) return CUDA_ERROR_INVALID_VALUE;
  Graph* graph = node->graph;
  if (graph->captures > 0) return CUDA_ERROR_INVALID_VALUE;
  if (has_memory_nodes(*graph)) return CUDA_ERROR_NOT_SUPPORTED;
  destroy_node(node);
  return CUDA_SUCCESS;
}

}  // namespace tonnage::driver
