// cuGraphDebugDotPrint: a graph as a DOT file.
#include <stdio.h>

#include "driver/entry_points.h"
#include "driver/graphs/graph_types.h"

namespace tonnage::driver {
namespace {

const char* type_name(CUgraphNodeType type) {
  static const char* const names[] = {
      "KERNEL",       "MEMCPY",       "MEMSET",           "HOST",           "GRAPH",     "EMPTY",
      "EVENT_WAIT",   "EVENT_RECORD", "EXT_SEMAS_SIGNAL", "EXT_SEMAS_WAIT", "MEM_ALLOC", "MEM_FREE",
      "BATCH_MEM_OP", "CONDITIONAL"};
  const auto index = static_cast<size_t>(type);
  return index < sizeof names / sizeof names[0] ? names[index] : "UNKNOWN";
}

void write_details(FILE* file, const GraphNode& node, unsigned flags) {
  const bool all = flags & CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE;
  const auto shown = [&](unsigned flag) { return all || (flags & flag); };
  if (const auto* kernel = std::get_if<KernelParams>(&node.params)) {
    const char* name = nullptr;
    const CUfunction function =
        kernel->function ? kernel->function : reinterpret_cast<CUfunction>(kernel->kernel);
    if (cuFuncGetName(&name, function) == CUDA_SUCCESS && name) fprintf(file, "\\n%s", name);
    if (shown(CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_PARAMS))
      fprintf(file, "\\ngrid %u %u %u block %u %u %u shared %u", kernel->grid[0], kernel->grid[1],
              kernel->grid[2], kernel->block[0], kernel->block[1], kernel->block[2],
              kernel->shared_bytes);
  } else if (const auto* copy = std::get_if<MemcpyParams>(&node.params)) {
    if (shown(CU_GRAPH_DEBUG_DOT_FLAGS_MEMCPY_NODE_PARAMS))
      fprintf(file, "\\n%zu x %zu x %zu", copy->copy.WidthInBytes, copy->copy.Height,
              copy->copy.Depth);
  } else if (const auto* set = std::get_if<MemsetParams>(&node.params)) {
    if (shown(CU_GRAPH_DEBUG_DOT_FLAGS_MEMSET_NODE_PARAMS))
      fprintf(file, "\\n0x%llx value %u, %zu x %zu of %u",
              static_cast<unsigned long long>(set->set.dst), set->set.value, set->set.width,
              set->set.height, set->set.elementSize);
  } else if (const auto* alloc = std::get_if<AllocParams>(&node.params)) {
    if (shown(CU_GRAPH_DEBUG_DOT_FLAGS_MEM_ALLOC_NODE_PARAMS))
      fprintf(file, "\\n0x%llx, %zu bytes", static_cast<unsigned long long>(alloc->address),
              alloc->bytes);
  } else if (const auto* release = std::get_if<FreeParams>(&node.params)) {
    if (shown(CU_GRAPH_DEBUG_DOT_FLAGS_MEM_FREE_NODE_PARAMS))
      fprintf(file, "\\n0x%llx", static_cast<unsigned long long>(release->address));
  }
}

void write_graph(FILE* file, const Graph& graph, unsigned flags) {
  const auto id = [](const Graph& g) { return static_cast<unsigned long long>(g.id); };
  const auto name = [](const GraphNode& node) { return static_cast<unsigned long long>(node.id); };
  fprintf(file, "subgraph cluster_%llu {\nlabel=\"graph_%llu\";\n", id(graph), id(graph));
  for (const auto& node : graph.nodes) {
    fprintf(file, "\"node_%llu\"[shape=box label=\"%llu %s", name(*node), name(*node),
            type_name(type_of(node->params)));
    write_details(file, *node, flags);
    fprintf(file, "\"];\n");
  }
  for (const auto& node : graph.nodes)
    for (const Edge& edge : node->out)
      fprintf(file, "\"node_%llu\" -> \"node_%llu\";\n", name(*node), name(*edge.node));
  fprintf(file, "}\n");
  for (const auto& node : graph.nodes) {
    if (const auto* child = std::get_if<ChildParams>(&node->params))
      write_graph(file, *child->graph, flags);
    if (const auto* conditional = std::get_if<ConditionalParams>(&node->params))
      for (const auto& body : conditional->bodies) write_graph(file, *body, flags);
  }
}

}  // namespace

CUresult cuGraphDebugDotPrint(Driver*, CUgraph handle, const char* path, unsigned int flags) {
  GraphLock lock;
  const Graph* graph = to_graph(handle);
  if (!graph || !path) return CUDA_ERROR_INVALID_VALUE;
  FILE* file = fopen(path, "we");
  if (!file) return CUDA_ERROR_OPERATING_SYSTEM;
  fprintf(file, "digraph dot {\n");
  write_graph(file, *graph, flags);
  fprintf(file, "}\n");
  return fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

}  // namespace tonnage::driver
