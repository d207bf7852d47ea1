// Capture of streams: what is submitted becomes nodes of a graph instead of running.
//
// A capture begins on one stream; others join it by waiting for events recorded in it, and must be
// joined back by the end. Source of the rules: CUDA driver API manual, "Stream Management", and the
// Programming Guide, "Stream Capture".
#include <algorithm>
#include <atomic>
#include <thread>

#include "driver/entry_points.h"
#include "driver/graphs/graph_types.h"

namespace tonnage::driver {

// Objects stay for the life of the process (an event may name a capture long after its end); what
// is large in them is freed when the capture ends.
struct CaptureSession {
  uint64_t id = 0;
  std::shared_ptr<Graph> graph;  // null when it ended
  bool into_existing = false;    // the graph is the host's own
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  Stream* origin = nullptr;
  bool active = true, broken = false;
  // What the next node of each stream depends on. Streams leave only at the end.
  struct Place {
    std::vector<Edge> frontier;
    std::vector<CUgraphNode> nodes;  // the copies that cuStreamGetCaptureInfo hands out
    std::vector<CUgraphEdgeData> data;
  };
  std::unordered_map<Stream*, Place> streams;
};

namespace {

std::atomic<int> g_active{0};
thread_local CUstreamCaptureMode t_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

std::vector<CaptureSession*>& active_sessions() {
  static auto* sessions = new std::vector<CaptureSession*>;
  return *sessions;
}

bool is_legacy(const Stream* stream) {
  return stream->context && stream == &stream->context->legacy_stream;
}

// Blocking streams order themselves with the legacy stream, which therefore cannot be used while
// one captures.
CaptureSession* blocking_capture(const Context* context) {
  for (CaptureSession* session : active_sessions())
    for (const auto& [stream, place] : session->streams)
      if (stream->context == context && !(stream->flags & CU_STREAM_NON_BLOCKING)) return session;
  return nullptr;
}

CaptureSession* session_of(Stream* stream) {
  return stream->capture.load(std::memory_order_acquire);
}

void add_edges(std::vector<Edge>* frontier, const std::vector<Edge>& more) {
  for (const Edge& edge : more) {
    const bool known = std::any_of(frontier->begin(), frontier->end(), [&](const Edge& other) {
      return other.node == edge.node && same(other.data, edge.data);
    });
    if (!known) frontier->push_back(edge);
  }
}

// The stream's capture, if it is capturing and not broken.
CUresult healthy(Stream* stream, CaptureSession** out) {
  CaptureSession* session = session_of(stream);
  if (!session) return CUDA_ERROR_ILLEGAL_STATE;
  if (session->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  *out = session;
  return CUDA_SUCCESS;
}

CUresult append(Stream* stream, NodeParams params) {
  CaptureSession* session = nullptr;
  if (const CUresult result = healthy(stream, &session); result != CUDA_SUCCESS) return result;
  CaptureSession::Place& place = session->streams[stream];
  std::vector<Edge> dependencies;
  for (Edge edge : place.frontier) {
    // Two edges to one node may differ in their data; the stricter, ordinary one is enough.
    const auto twin = std::find_if(dependencies.begin(), dependencies.end(),
                                   [&](const Edge& e) { return e.node == edge.node; });
    if (twin == dependencies.end())
      dependencies.push_back(edge);
    else if (plain(edge.data))
      twin->data = edge.data;
  }
  if (auto* kernel = std::get_if<KernelParams>(&params)) {
    const auto it = kernel->attributes.find(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
    if (it != kernel->attributes.end() && it->second.programmaticStreamSerializationAllowed) {
      for (Edge& edge : dependencies) {
        if (!std::holds_alternative<KernelParams>(edge.node->params) || !plain(edge.data)) continue;
        edge.data.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
        edge.data.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
      }
    }
  }
  GraphNode* node = append_node(session->graph.get(), std::move(params), dependencies);
  place.frontier = {{node, {}}};
  return CUDA_SUCCESS;
}

CUresult begin(Stream* stream, CUgraph graph_handle, const CUgraphNode* dependencies,
               const CUgraphEdgeData* data, size_t count, CUstreamCaptureMode mode, bool existing) {
  if (mode != CU_STREAM_CAPTURE_MODE_GLOBAL && mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
      mode != CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  if (is_legacy(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  GraphLock lock;
  if (session_of(stream)) return CUDA_ERROR_ILLEGAL_STATE;
  std::vector<Edge> frontier;
  Graph* graph = nullptr;
  if (existing) {
    graph = to_graph(graph_handle);
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = check_dependencies(graph, dependencies, data, count, &frontier);
        result != CUDA_SUCCESS)
      return result;
  }
  auto* session = new CaptureSession;
  session->id = driver()->new_id();
  session->graph = existing ? std::shared_ptr<Graph>(graph, [](Graph*) {}) : new_graph(nullptr);
  session->graph->captures++;
  session->into_existing = existing;
  session->mode = mode;
  session->thread = std::this_thread::get_id();
  session->origin = stream;
  session->streams[stream].frontier = std::move(frontier);
  active_sessions().push_back(session);
  g_active.fetch_add(1);
  stream->capture.store(session, std::memory_order_release);
  return CUDA_SUCCESS;
}

void end(CaptureSession* session) {
  for (auto& [stream, place] : session->streams)
    stream->capture.store(nullptr, std::memory_order_release);
  session->streams.clear();
  session->active = false;
  session->graph->captures--;
  session->graph.reset();
  auto& all = active_sessions();
  all.erase(std::remove(all.begin(), all.end(), session), all.end());
  g_active.fetch_sub(1);
}

// Whether everything that other streams captured comes before what the origin would do next.
bool joined(CaptureSession* session) {
  std::unordered_set<const GraphNode*> before;
  std::vector<const GraphNode*> open;
  for (const Edge& edge : session->streams[session->origin].frontier) open.push_back(edge.node);
  while (!open.empty()) {
    const GraphNode* node = open.back();
    open.pop_back();
    if (!before.insert(node).second) continue;
    for (const Edge& edge : node->in) open.push_back(edge.node);
  }
  for (const auto& [stream, place] : session->streams)
    for (const Edge& edge : place.frontier)
      if (!before.count(edge.node)) return false;
  return true;
}

CUresult status(Stream* stream, CaptureSession** out) {
  if (is_legacy(stream) && blocking_capture(stream->context))
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  *out = session_of(stream);
  return CUDA_SUCCESS;
}

CUstreamCaptureStatus status_of(const CaptureSession* session) {
  if (!session) return CU_STREAM_CAPTURE_STATUS_NONE;
  return session->broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult capture_info(Stream* stream, CUstreamCaptureStatus* out_status, cuuint64_t* id,
                      CUgraph* graph, const CUgraphNode** dependencies,
                      const CUgraphEdgeData** data, size_t* count) {
  if (!out_status || (data && !dependencies)) return CUDA_ERROR_INVALID_VALUE;
  GraphLock lock;
  CaptureSession* session = nullptr;
  if (const CUresult result = status(stream, &session); result != CUDA_SUCCESS) return result;
  *out_status = status_of(session);
  if (*out_status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  CaptureSession::Place& place = session->streams[stream];
  place.nodes.clear();
  place.data.clear();
  for (const Edge& edge : place.frontier) {
    if (dependencies && !data && !plain(edge.data)) return CUDA_ERROR_LOSSY_QUERY;
    place.nodes.push_back(to_handle(edge.node));
    place.data.push_back(edge.data);
  }
  if (id) *id = session->id;
  if (graph) *graph = to_handle(session->graph.get());
  if (dependencies) *dependencies = place.nodes.data();
  if (data) *data = place.data.data();
  if (count) *count = place.nodes.size();
  return CUDA_SUCCESS;
}

CUresult update_dependencies(Stream* stream, const CUgraphNode* nodes, const CUgraphEdgeData* data,
                             size_t count, unsigned flags) {
  if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES) return CUDA_ERROR_INVALID_VALUE;
  GraphLock lock;
  CaptureSession* session = nullptr;
  if (const CUresult result = healthy(stream, &session); result != CUDA_SUCCESS) return result;
  std::vector<Edge> edges;
  if (const CUresult result = check_dependencies(session->graph.get(), nodes, data, count, &edges);
      result != CUDA_SUCCESS)
    return result;
  CaptureSession::Place& place = session->streams[stream];
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
    place.frontier = std::move(edges);
  else
    add_edges(&place.frontier, edges);
  return CUDA_SUCCESS;
}

}  // namespace

// --- What the other entry points ask ---

bool is_capturing(Stream* stream) { return session_of(stream) != nullptr; }

CUresult capture_state(Stream* stream, bool* capturing) {
  *capturing = false;
  if (g_active.load(std::memory_order_relaxed) == 0) return CUDA_SUCCESS;
  GraphLock lock;
  if (CaptureSession* session = session_of(stream)) {
    if (session->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    *capturing = true;
    return CUDA_SUCCESS;
  }
  if (!is_legacy(stream)) return CUDA_SUCCESS;
  CaptureSession* session = blocking_capture(stream->context);
  if (!session) return CUDA_SUCCESS;
  session->broken = true;
  return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult capture_unsafe() {
  if (g_active.load(std::memory_order_relaxed) == 0 || t_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_SUCCESS;
  GraphLock lock;
  bool refused = false;
  for (CaptureSession* session : active_sessions()) {
    const bool own = session->thread == std::this_thread::get_id() &&
                     session->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool others =
        t_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && session->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !others) continue;
    session->broken = true;
    refused = true;
  }
  return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult capture_refuse_wait(Stream* stream) {
  if (g_active.load(std::memory_order_relaxed) == 0) return CUDA_SUCCESS;
  GraphLock lock;
  if (CaptureSession* session = session_of(stream)) {
    if (session->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    session->broken = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  bool capturing = false;
  if (const CUresult result = capture_state(stream, &capturing); result != CUDA_SUCCESS)
    return result;
  return capture_unsafe();
}

CUresult capture_refuse_wait(Context* context) {
  if (g_active.load(std::memory_order_relaxed) == 0) return CUDA_SUCCESS;
  GraphLock lock;
  bool refused = false;
  for (CaptureSession* session : active_sessions())
    for (const auto& [stream, place] : session->streams)
      if (stream->context == context) refused = session->broken = true;
  return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult capture_refuse_event(Event* event) {
  if (!event->capture) return capture_unsafe();
  GraphLock lock;
  if (!event->capture) return capture_unsafe();
  if (event->capture->active) event->capture->broken = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult capture_kernel(Stream* stream, const KernelLaunch& launch) {
  CUDA_KERNEL_NODE_PARAMS api = {};
  api.func = launch.function;
  api.gridDimX = launch.grid[0], api.gridDimY = launch.grid[1], api.gridDimZ = launch.grid[2];
  api.blockDimX = launch.block[0], api.blockDimY = launch.block[1], api.blockDimZ = launch.block[2];
  api.sharedMemBytes = launch.shared_bytes;
  api.kernelParams = launch.params;
  api.extra = launch.extra;
  api.ctx = to_handle(stream->context);
  NodeParams params;
  if (const CUresult result = make_kernel_params(api, &params); result != CUDA_SUCCESS)
    return result;
  auto& kernel = std::get<KernelParams>(params);
  for (size_t i = 0; i < launch.attribute_count; i++)
    if (launch.attributes[i].id != CU_LAUNCH_ATTRIBUTE_IGNORE)
      kernel.attributes[launch.attributes[i].id] = launch.attributes[i].value;
  if (launch.cooperative) kernel.attributes[CU_LAUNCH_ATTRIBUTE_COOPERATIVE].cooperative = 1;
  if (!kernel.attributes.count(CU_LAUNCH_ATTRIBUTE_PRIORITY))
    kernel.attributes[CU_LAUNCH_ATTRIBUTE_PRIORITY].priority = stream->priority;
  GraphLock lock;
  return append(stream, std::move(params));
}

CUresult capture_memcpy(Stream* stream, const CUDA_MEMCPY3D& copy) {
  NodeParams params;
  if (const CUresult result = make_memcpy_params(&copy, to_handle(stream->context), &params);
      result != CUDA_SUCCESS)
    return result;
  GraphLock lock;
  return append(stream, std::move(params));
}

CUresult capture_memset(Stream* stream, const CUDA_MEMSET_NODE_PARAMS& set) {
  NodeParams params;
  if (const CUresult result = make_memset_params(&set, to_handle(stream->context), &params);
      result != CUDA_SUCCESS)
    return result;
  GraphLock lock;
  return append(stream, std::move(params));
}

CUresult capture_host(Stream* stream, CUhostFn function, void* data) {
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  GraphLock lock;
  return append(stream, HostParams{{function, data}});
}

CUresult capture_batch_mem_op(Stream* stream, unsigned count,
                              const CUstreamBatchMemOpParams* operations, unsigned flags) {
  NodeParams params;
  if (const CUresult result =
          make_batch_params(to_handle(stream->context), count, operations, flags, &params);
      result != CUDA_SUCCESS)
    return result;
  GraphLock lock;
  return append(stream, std::move(params));
}

CUresult capture_child_graph(Stream* stream, const Graph& graph) {
  if (has_memory_nodes(graph) || has_conditional_nodes(graph)) return CUDA_ERROR_NOT_SUPPORTED;
  CaptureSession* session = nullptr;
  if (const CUresult result = healthy(stream, &session); result != CUDA_SUCCESS) return result;
  return append(stream, ChildParams{clone_graph(graph, session->graph.get(), false)});
}

// --- Events ---

CUresult capture_event_record(Stream* stream, Event* event, unsigned flags) {
  GraphLock lock;
  if (flags & CU_EVENT_RECORD_EXTERNAL)
    return append(stream, EventRecordParams{reinterpret_cast<CUevent>(event)});
  CaptureSession* session = nullptr;
  if (const CUresult result = healthy(stream, &session); result != CUDA_SUCCESS) return result;
  event->capture = session;
  event->capture_nodes.clear();
  for (const Edge& edge : session->streams[stream].frontier)
    event->capture_nodes.push_back(edge.node);
  return CUDA_SUCCESS;
}

void capture_forget_event(Event* event) {
  if (!event->capture) return;
  GraphLock lock;
  event->capture = nullptr;
  event->capture_nodes.clear();
}

CUresult capture_event_wait(Stream* stream, Event* event, unsigned flags, bool* handled) {
  *handled = false;
  if (g_active.load(std::memory_order_relaxed) == 0 && !event->capture) return CUDA_SUCCESS;
  GraphLock lock;
  CaptureSession* own = session_of(stream);
  *handled = true;
  if (own && own->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (flags & CU_EVENT_WAIT_EXTERNAL) {
    if (own) return append(stream, EventWaitParams{reinterpret_cast<CUevent>(event)});
    *handled = false;
    return CUDA_SUCCESS;
  }
  CaptureSession* other = event->capture;
  if (!other) {
    if (!own) {
      *handled = false;
      return CUDA_SUCCESS;
    }
    if (!event->recorded.load())
      return CUDA_SUCCESS;  // waiting for an event that was never recorded does nothing
    own->broken = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (!other->active) return CUDA_ERROR_CAPTURED_EVENT;
  if (other->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (own && own != other) {
    own->broken = other->broken = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (!own) {
    if (is_legacy(stream)) {
      other->broken = true;
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    stream->capture.store(other, std::memory_order_release);
  }
  std::vector<Edge> edges;
  for (GraphNode* node : event->capture_nodes) edges.push_back({node, {}});
  add_edges(&other->streams[stream].frontier, edges);
  return CUDA_SUCCESS;
}

// --- Memory ---

CUresult capture_mem_alloc(Stream* stream, const CUmemPoolProps& pool, size_t bytes,
                           CUdeviceptr* out) {
  GraphLock lock;
  CaptureSession* session = nullptr;
  if (const CUresult result = healthy(stream, &session); result != CUDA_SUCCESS) return result;
  AllocParams params;
  params.pool = pool;
  params.bytes = bytes;
  if (const CUresult result = reserve_graph_allocation(session->graph.get(),
                                                       session->streams[stream].frontier, &params);
      result != CUDA_SUCCESS)
    return result;
  *out = params.address;
  return append(stream, std::move(params));
}

CUresult capture_mem_free(Stream* stream, CUdeviceptr address) {
  GraphLock lock;
  CaptureSession* session = nullptr;
  if (const CUresult result = healthy(stream, &session); result != CUDA_SUCCESS) return result;
  FreeParams params{address};
  if (const CUresult result = check_graph_free(session->graph.get(), &params);
      result != CUDA_SUCCESS)
    return result;
  return append(stream, params);
}

void capture_stream_destroyed(Stream* stream) {
  if (!session_of(stream)) return;
  GraphLock lock;
  CaptureSession* session = session_of(stream);
  if (!session) return;
  session->broken = true;
  stream->capture.store(nullptr, std::memory_order_release);
  session->streams.erase(stream);
  if (session->origin == stream) end(session);  // nobody can end it any more
}

CUresult cuStreamBeginCapture_v2(Stream* stream, CUstreamCaptureMode mode) {
  return begin(stream, nullptr, nullptr, nullptr, 0, mode, false);
}
CUresult cuStreamBeginCapture(Stream* stream) {
  return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}
CUresult cuStreamBeginCaptureToGraph(Stream* stream, CUgraph graph, const CUgraphNode* dependencies,
                                     const CUgraphEdgeData* data, size_t count,
                                     CUstreamCaptureMode mode) {
  return begin(stream, graph, dependencies, data, count, mode, true);
}

CUresult cuThreadExchangeStreamCaptureMode(Driver*, CUstreamCaptureMode* mode) {
  if (!mode ||
      (*mode != CU_STREAM_CAPTURE_MODE_GLOBAL && *mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
       *mode != CU_STREAM_CAPTURE_MODE_RELAXED))
    return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, t_mode);
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(Stream* stream, CUgraph* out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  GraphLock lock;
  CaptureSession* session = stream->capture.load();
  if (!session) return CUDA_ERROR_ILLEGAL_STATE;
  if (session->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (session->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      session->thread != std::this_thread::get_id())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  *out = nullptr;
  CUresult result = CUDA_SUCCESS;
  if (session->broken)
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  else if (!joined(session))
    result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  const std::shared_ptr<Graph> graph = session->graph;
  const bool existing = session->into_existing;
  end(session);
  if (result != CUDA_SUCCESS) return result;
  *out = to_handle(graph.get());
  if (!existing) keep_graph(graph);
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(Stream* stream, CUstreamCaptureStatus* out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  GraphLock lock;
  CaptureSession* session = nullptr;
  const CUresult result = status(stream, &session);
  if (result == CUDA_SUCCESS) *out = status_of(session);
  return result;
}

CUresult cuStreamGetCaptureInfo(Stream* stream, CUstreamCaptureStatus* status_out, cuuint64_t* id) {
  return capture_info(stream, status_out, id, nullptr, nullptr, nullptr, nullptr);
}
CUresult cuStreamGetCaptureInfo_v2(Stream* stream, CUstreamCaptureStatus* status_out,
                                   cuuint64_t* id, CUgraph* graph, const CUgraphNode** dependencies,
                                   size_t* count) {
  return capture_info(stream, status_out, id, graph, dependencies, nullptr, count);
}
CUresult cuStreamGetCaptureInfo_v3(Stream* stream, CUstreamCaptureStatus* status_out,
                                   cuuint64_t* id, CUgraph* graph, const CUgraphNode** dependencies,
                                   const CUgraphEdgeData** data, size_t* count) {
  return capture_info(stream, status_out, id, graph, dependencies, data, count);
}
CUresult cuStreamUpdateCaptureDependencies(Stream* stream, CUgraphNode* nodes, size_t count,
                                           unsigned int flags) {
  return update_dependencies(stream, nodes, nullptr, count, flags);
}
CUresult cuStreamUpdateCaptureDependencies_v2(Stream* stream, CUgraphNode* nodes,
                                              const CUgraphEdgeData* data, size_t count,
                                              unsigned int flags) {
  return update_dependencies(stream, nodes, data, count, flags);
}

}  // namespace tonnage::driver
