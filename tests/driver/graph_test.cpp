// Graphs: capture and its rules, nodes, replay on known content, update, and memory that graphs own.
#include <string.h>

#include <thread>
#include <vector>

#include "driver/driver_library.h"

namespace tonnage::driver::test {
namespace {

constexpr char kKernels[] = R"(.version 7.0
.target sm_70
.address_size 64
.visible .entry touch(.param .u64 pointer, .param .u32 count) { ret; }
)";

class GraphTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    CU_OK(CU(cuStreamCreate)(&other_, CU_STREAM_NON_BLOCKING));
    CU_OK(CU(cuMemAlloc_v2)(&memory_, 4 * kMiB));
    CU_OK(CU(cuModuleLoadData)(&module_, kKernels));
    CU_OK(CU(cuModuleGetFunction)(&kernel_, module_, "touch"));
  }
  void TearDown() override {
    CU(cuStreamDestroy_v2)(other_);
    CU(cuMemFree_v2)(memory_);
    CU(cuModuleUnload)(module_);
    DriverTest::TearDown();
  }
  CUresult begin(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    return CU(cuStreamBeginCapture_v2)(stream_, mode);
  }
  CUresult end() { return CU(cuStreamEndCapture)(stream_, &graph_); }
  CUresult set(CUstream stream, unsigned value, size_t offset = 0) {
    return CU(cuMemsetD32Async)(memory_ + offset, value, 4, stream);
  }
  CUresult launch(CUstream stream) {
    unsigned count = 4;
    void* params[] = {&memory_, &count};
    return CU(cuLaunchKernel)(kernel_, 1, 1, 1, 32, 1, 1, 0, stream, params, nullptr);
  }
  unsigned word(size_t offset = 0) {
    unsigned value = ~0u;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuMemcpyDtoHAsync_v2)(&value, memory_ + offset, 4, other_));
    return value;
  }
  CUstreamCaptureStatus status(CUstream stream) {
    CUstreamCaptureStatus value = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuStreamIsCapturing)(stream, &value));
    return value;
  }
  size_t node_count() {
    size_t count = 0;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuGraphGetNodes)(graph_, nullptr, &count));
    return count;
  }
  std::vector<CUgraphNode> nodes() {
    size_t count = node_count();
    std::vector<CUgraphNode> list(count);
    EXPECT_EQ(CUDA_SUCCESS, CU(cuGraphGetNodes)(graph_, list.data(), &count));
    return list;
  }

  CUstream other_ = nullptr;
  CUdeviceptr memory_ = 0;
  CUmodule module_ = nullptr;
  CUfunction kernel_ = nullptr;
  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
};

TEST_F(GraphTest, CapturedWorkRunsWhenTheGraphIsLaunched) {
  CU_OK(set(stream_, 1));
  CU_OK(begin());
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_ACTIVE, status(stream_));
  CU_OK(set(stream_, 2));
  CU_OK(CU(cuMemcpyDtoDAsync_v2)(memory_ + 1024, memory_, 16, stream_));
  CU_OK(launch(stream_));
  EXPECT_EQ(1u, word());  // nothing ran
  CU_OK(end());
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_NONE, status(stream_));
  EXPECT_EQ(3u, node_count());
  CU_OK(CU(cuGraphInstantiateWithFlags)(&exec_, graph_, 0));
  EXPECT_EQ(1u, word());
  CU_OK(CU(cuGraphLaunch)(exec_, stream_));
  EXPECT_EQ(0u, word(1024));  // the kernel may have written behind its pointer: unknown again
  CU_OK(CU(cuGraphExecDestroy)(exec_));
  CU_OK(CU(cuGraphDestroy)(graph_));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuGraphDestroy)(graph_));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuGraphLaunch)(exec_, stream_));
}

TEST_F(GraphTest, ReplayFollowsTheContentOfItsInputs) {
  CU_OK(begin());
  CU_OK(CU(cuMemcpyDtoDAsync_v2)(memory_ + 1024, memory_, 16, stream_));
  CU_OK(CU(cuMemsetD2D16Async)(memory_ + 2048, 64, 0x1234, 4, 3, stream_));
  CU_OK(end());
  CU_OK(CU(cuGraphInstantiateWithFlags)(&exec_, graph_, 0));
  for (unsigned value : {11u, 22u}) {
    CU_OK(set(stream_, value));
    CU_OK(CU(cuGraphLaunch)(exec_, stream_));
    EXPECT_EQ(value, word(1024));
  }
  EXPECT_EQ(0x12341234u, word(2048 + 2 * 64));
  CU_OK(CU(cuGraphExecDestroy)(exec_));
  CU_OK(CU(cuGraphDestroy)(graph_));
}

TEST_F(GraphTest, AForkJoinsBack) {
  CUevent fork = nullptr, join = nullptr;
  CU_OK(CU(cuEventCreate)(&fork, CU_EVENT_DISABLE_TIMING));
  CU_OK(CU(cuEventCreate)(&join, CU_EVENT_DISABLE_TIMING));
  CU_OK(begin());
  CU_OK(set(stream_, 1));
  CU_OK(CU(cuEventRecord)(fork, stream_));
  CU_OK(CU(cuStreamWaitEvent)(other_, fork, 0));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_ACTIVE, status(other_));
  CU_OK(set(other_, 2, 64));
  CU_OK(set(stream_, 3, 128));
  CU_OK(CU(cuEventRecord)(join, other_));
  CU_OK(CU(cuStreamWaitEvent)(stream_, join, 0));
  CU_OK(set(stream_, 4, 192));
  CU_FAILS(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, CU(cuStreamEndCapture)(other_, &graph_));
  CU_OK(end());
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_NONE, status(other_));
  const std::vector<CUgraphNode> list = nodes();
  ASSERT_EQ(4u, list.size());
  size_t edges = 0, dependencies = 0;
  CU_OK(CU(cuGraphGetEdges)(graph_, nullptr, nullptr, &edges));
  EXPECT_EQ(4u, edges);
  CU_OK(CU(cuGraphNodeGetDependencies)(list[3], nullptr, &dependencies));
  EXPECT_EQ(2u, dependencies);
  CU_OK(CU(cuGraphNodeGetDependentNodes)(list[0], nullptr, &dependencies));
  EXPECT_EQ(2u, dependencies);
  CU_OK(CU(cuGraphDestroy)(graph_));
}

TEST_F(GraphTest, AForkThatIsNotJoinedIsAnError) {
  CUevent fork = nullptr;
  CU_OK(CU(cuEventCreate)(&fork, CU_EVENT_DISABLE_TIMING));
  CU_OK(begin());
  CU_OK(CU(cuEventRecord)(fork, stream_));
  CU_OK(CU(cuStreamWaitEvent)(other_, fork, 0));
  CU_OK(set(other_, 2));
  CU_FAILS(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, end());
  EXPECT_EQ(nullptr, graph_);
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_NONE, status(other_));
  CU_FAILS(CUDA_ERROR_CAPTURED_EVENT, CU(cuEventQuery)(fork));
  CU_OK(CU(cuEventRecord)(fork, stream_));
  CU_OK(CU(cuEventQuery)(fork));
}

TEST_F(GraphTest, UnsafeCallsBreakACapture) {
  CU_OK(begin());
  CUdeviceptr address = 0;
  CU_FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CU(cuMemAlloc_v2)(&address, kMiB));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_INVALIDATED, status(stream_));
  CU_FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, set(stream_, 1));
  CU_FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
  // Another thread is concerned by a global capture, not by a relaxed one.
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                          CU_STREAM_CAPTURE_MODE_RELAXED}) {
    CU_OK(begin(mode));
    CUresult code = CUDA_SUCCESS;
    std::thread([&] {
      CU(cuCtxSetCurrent)(context_);
      code = CU(cuMemAlloc_v2)(&address, kMiB);
    }).join();
    const bool refused = mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    EXPECT_EQ(refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS, code);
    EXPECT_EQ(refused ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS, end());
    if (refused) continue;
    CU_OK(CU(cuMemFree_v2)(address));
    CU_OK(CU(cuGraphDestroy)(graph_));
  }
  // A thread may exempt itself.
  CU_OK(begin());
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  CU_OK(CU(cuThreadExchangeStreamCaptureMode)(&mode));
  EXPECT_EQ(CU_STREAM_CAPTURE_MODE_GLOBAL, mode);
  CU_OK(CU(cuMemAlloc_v2)(&address, kMiB));
  CU_OK(CU(cuThreadExchangeStreamCaptureMode)(&mode));
  EXPECT_EQ(CU_STREAM_CAPTURE_MODE_RELAXED, mode);
  CU_OK(end());
  CU_OK(CU(cuMemFree_v2)(address));
  CU_OK(CU(cuGraphDestroy)(graph_));
}

TEST_F(GraphTest, AskingAnotherStreamOrEventIsUnsafe) {
  CUevent event = nullptr;
  CU_OK(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
  CU_OK(begin());
  CU_FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CU(cuStreamQuery)(other_));
  CU_FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
  CU_OK(begin());
  CU_FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CU(cuEventQuery)(event));
  CU_FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
  CU_OK(begin(CU_STREAM_CAPTURE_MODE_RELAXED));
  CU_OK(CU(cuStreamQuery)(other_));
  CU_OK(CU(cuEventQuery)(event));
  CU_OK(end());
  CU_OK(CU(cuGraphDestroy)(graph_));
}

TEST_F(GraphTest, WaitingForACapturingStreamBreaksIt) {
  for (int which = 0; which < 3; which++) {
    CU_OK(begin());
    CUresult code = CUDA_SUCCESS;
    if (which == 0) code = CU(cuStreamSynchronize)(stream_);
    if (which == 1) code = CU(cuStreamQuery)(stream_);
    if (which == 2) code = CU(cuCtxSynchronize)();
    EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, code) << which;
    CU_FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
  }
}

TEST_F(GraphTest, TheLegacyStreamIsUnusableWhileABlockingStreamCaptures) {
  CUstream blocking = nullptr;
  CU_OK(CU(cuStreamCreate)(&blocking, CU_STREAM_DEFAULT));
  CU_FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
           CU(cuStreamBeginCapture_v2)(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CU_OK(CU(cuStreamBeginCapture_v2)(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUstreamCaptureStatus value;
  CU_FAILS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, CU(cuStreamIsCapturing)(nullptr, &value));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_ACTIVE, status(blocking));  // asking breaks nothing
  CU_FAILS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, set(nullptr, 1));
  CU_FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CU(cuStreamEndCapture)(blocking, &graph_));
  CU_OK(begin(CU_STREAM_CAPTURE_MODE_RELAXED));
  CU_OK(set(nullptr, 1));  // a stream that does not block does not mind
  CU_OK(end());
  CU_OK(CU(cuGraphDestroy)(graph_));
  CU_OK(CU(cuStreamDestroy_v2)(blocking));
}

TEST_F(GraphTest, CaptureStates) {
  CU_FAILS(CUDA_ERROR_ILLEGAL_STATE, end());
  CU_OK(begin());
  CU_FAILS(CUDA_ERROR_ILLEGAL_STATE, begin());
  CUresult code = CUDA_SUCCESS;
  std::thread([&] {
    CU(cuCtxSetCurrent)(context_);
    code = CU(cuStreamEndCapture)(stream_, &graph_);
  }).join();
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, code);
  // Two captures do not merge.
  CUevent event = nullptr;
  CU_OK(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
  CU_OK(CU(cuStreamBeginCapture_v2)(other_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CU_OK(CU(cuEventRecord)(event, stream_));
  CU_FAILS(CUDA_ERROR_STREAM_CAPTURE_MERGE, CU(cuStreamWaitEvent)(other_, event, 0));
  CU_FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CU(cuStreamEndCapture)(other_, &graph_));
  CU_FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
  // Nor does work from outside come in.
  CU_OK(CU(cuEventRecord)(event, other_));
  CU_OK(begin());
  CU_FAILS(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, CU(cuStreamWaitEvent)(stream_, event, 0));
  CU_FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
}

TEST_F(GraphTest, CaptureCanBeAskedAndSteered) {
  CU_OK(begin());
  CU_OK(set(stream_, 1));
  CU_OK(set(stream_, 2, 64));
  CUstreamCaptureStatus value;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* dependencies = nullptr;
  size_t count = 0;
  CU_OK(CU(cuStreamGetCaptureInfo_v2)(stream_, &value, &id, &graph, &dependencies, &count));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_ACTIVE, value);
  EXPECT_NE(0u, id);
  ASSERT_EQ(1u, count);
  // A node by hand, and the stream goes on after it.
  CUgraphNode empty = nullptr;
  CU_OK(CU(cuGraphAddEmptyNode)(&empty, graph, nullptr, 0));
  CU_OK(CU(cuStreamUpdateCaptureDependencies)(stream_, &empty, 1,
                                              CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
  CU_OK(CU(cuStreamGetCaptureInfo_v2)(stream_, &value, nullptr, nullptr, &dependencies, &count));
  EXPECT_EQ(2u, count);
  CU_OK(CU(cuStreamUpdateCaptureDependencies)(stream_, &empty, 1,
                                              CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  CU_OK(set(stream_, 3, 128));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuGraphDestroy)(graph));
  CU_OK(end());
  EXPECT_EQ(graph, graph_);
  const std::vector<CUgraphNode> list = nodes();
  CUgraphNode before = nullptr;
  count = 1;
  CU_OK(CU(cuGraphNodeGetDependencies)(list.back(), &before, &count));
  EXPECT_EQ(1u, count);
  EXPECT_EQ(empty, before);
  CU_FAILS(CUDA_ERROR_ILLEGAL_STATE, CU(cuStreamUpdateCaptureDependencies)(stream_, &empty, 1, 0));
  CU_OK(CU(cuGraphDestroy)(graph_));
}

TEST_F(GraphTest, KernelNodesKeepTheirArguments) {
  CU_OK(CU(cuGraphCreate)(&graph_, 0));
  CUgraphNode node = nullptr;
  unsigned count = 77;
  void* params[] = {&memory_, &count};
  CUDA_KERNEL_NODE_PARAMS kernel = {};
  kernel.func = kernel_;
  kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = 1;
  kernel.blockDimX = 32;
  kernel.blockDimY = kernel.blockDimZ = 1;
  kernel.kernelParams = params;
  CU_OK(CU(cuGraphAddKernelNode_v2)(&node, graph_, nullptr, 0, &kernel));
  count = 1;  // was copied
  CUDA_KERNEL_NODE_PARAMS got = {};
  CU_OK(CU(cuGraphKernelNodeGetParams_v2)(node, &got));
  EXPECT_EQ(kernel_, got.func);
  EXPECT_EQ(32u, got.blockDimX);
  EXPECT_EQ(77u, *static_cast<unsigned*>(got.kernelParams[1]));
  EXPECT_EQ(memory_, *static_cast<CUdeviceptr*>(got.kernelParams[0]));
  CUgraphNodeType type;
  CU_OK(CU(cuGraphNodeGetType)(node, &type));
  EXPECT_EQ(CU_GRAPH_NODE_TYPE_KERNEL, type);
  CUDA_MEMSET_NODE_PARAMS set = {};
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuGraphMemsetNodeGetParams)(node, &set));
  kernel.gridDimX = 0;
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuGraphKernelNodeSetParams_v2)(node, &kernel));
  CUkernelNodeAttrValue attribute = {};
  attribute.priority = -3;
  CU_OK(CU(cuGraphKernelNodeSetAttribute)(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &attribute));
  attribute.priority = 0;
  CU_OK(CU(cuGraphKernelNodeGetAttribute)(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &attribute));
  EXPECT_EQ(-3, attribute.priority);
  CU_OK(CU(cuGraphDestroy)(graph_));
}

TEST_F(GraphTest, EdgesAreCheckedAndCyclesRefused) {
  CU_OK(CU(cuGraphCreate)(&graph_, 0));
  CUgraphNode a = nullptr, b = nullptr, c = nullptr;
  CU_OK(CU(cuGraphAddEmptyNode)(&a, graph_, nullptr, 0));
  CU_OK(CU(cuGraphAddEmptyNode)(&b, graph_, &a, 1));
  const CUgraphNode twice[] = {a, a};
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuGraphAddEmptyNode)(&c, graph_, twice, 2));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE,
           CU(cuGraphAddDependencies)(graph_, &a, &b, 1));  // already there
  CU_OK(CU(cuGraphAddDependencies)(graph_, &b, &a, 1));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuGraphInstantiateWithFlags)(&exec_, graph_, 0));
  CU_OK(CU(cuGraphRemoveDependencies)(graph_, &b, &a, 1));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuGraphRemoveDependencies)(graph_, &b, &a, 1));
  CU_OK(CU(cuGraphInstantiateWithFlags)(&exec_, graph_, 0));
  CU_OK(CU(cuGraphDestroyNode)(a));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuGraphDestroyNode)(a));
  size_t roots = 0;
  CU_OK(CU(cuGraphGetRootNodes)(graph_, nullptr, &roots));
  EXPECT_EQ(1u, roots);
  CU_OK(CU(cuGraphExecDestroy)(exec_));
  CU_OK(CU(cuGraphDestroy)(graph_));
}

TEST_F(GraphTest, ClonesAndChildrenAreCopies) {
  CU_OK(begin());
  CU_OK(set(stream_, 5));
  CU_OK(end());
  CUgraph clone = nullptr, parent = nullptr, inner = nullptr;
  CU_OK(CU(cuGraphClone)(&clone, graph_));
  CUgraphNode twin = nullptr, child = nullptr;
  CU_OK(CU(cuGraphNodeFindInClone)(&twin, nodes()[0], clone));
  EXPECT_NE(nodes()[0], twin);
  CU_OK(CU(cuGraphCreate)(&parent, 0));
  CU_OK(CU(cuGraphAddChildGraphNode)(&child, parent, nullptr, 0, graph_));
  CU_OK(CU(cuGraphChildGraphNodeGetGraph)(child, &inner));
  EXPECT_NE(graph_, inner);
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuGraphDestroy)(inner));  // its parent's
  CU_OK(CU(cuGraphDestroy)(graph_));
  CU_OK(set(stream_, 0));
  CU_OK(CU(cuGraphInstantiateWithFlags)(&exec_, parent, 0));
  CU_OK(CU(cuGraphLaunch)(exec_, stream_));
  EXPECT_EQ(5u, word());
  CU_OK(CU(cuGraphExecDestroy)(exec_));
  CU_OK(CU(cuGraphDestroy)(parent));
  CU_OK(CU(cuGraphDestroy)(clone));
}

TEST_F(GraphTest, AnExecutableGraphIsUpdatedOrRefuses) {
  CU_OK(begin());
  CU_OK(set(stream_, 5));
  CU_OK(end());
  CU_OK(CU(cuGraphInstantiateWithFlags)(&exec_, graph_, 0));
  CUgraph first = graph_;
  CU_OK(begin());
  CU_OK(set(stream_, 6));
  CU_OK(end());
  CUgraphExecUpdateResultInfo info = {};
  CU_OK(CU(cuGraphExecUpdate_v2)(exec_, graph_, &info));
  CU_OK(CU(cuGraphLaunch)(exec_, stream_));
  EXPECT_EQ(6u, word());
  CU_OK(CU(cuGraphDestroy)(graph_));
  // By the node of the graph that it was made from.
  graph_ = first;
  CUDA_MEMSET_NODE_PARAMS params = {};
  CU_OK(CU(cuGraphMemsetNodeGetParams)(nodes()[0], &params));
  params.value = 7;
  CU_OK(CU(cuGraphExecMemsetNodeSetParams)(exec_, nodes()[0], &params, context_));
  CU_OK(CU(cuGraphLaunch)(exec_, stream_));
  EXPECT_EQ(7u, word());
  CU_OK(set(stream_, 0));
  CU_OK(CU(cuGraphNodeSetEnabled)(exec_, nodes()[0], 0));
  CU_OK(CU(cuGraphLaunch)(exec_, stream_));
  EXPECT_EQ(0u, word());
  CUgraph longer = nullptr;
  CU_OK(begin());
  CU_OK(set(stream_, 1));
  CU_OK(set(stream_, 2));
  CU_OK(CU(cuStreamEndCapture)(stream_, &longer));
  CU_FAILS(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, CU(cuGraphExecUpdate_v2)(exec_, longer, &info));
  EXPECT_EQ(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, info.result);
  CU_OK(CU(cuGraphDestroy)(longer));
  CU_OK(CU(cuGraphDestroy)(first));
  CU_OK(CU(cuGraphExecDestroy)(exec_));
}

void count_calls(void* data) { ++*static_cast<int*>(data); }

TEST_F(GraphTest, HostFunctionsRunAtEveryLaunchAndUserObjectsDieOnce) {
  int calls = 0, deaths = 0;
  CU_OK(begin());
  CU_OK(CU(cuLaunchHostFunc)(stream_, count_calls, &calls));
  CU_OK(end());
  EXPECT_EQ(0, calls);
  CUuserObject object = nullptr;
  CU_OK(
      CU(cuUserObjectCreate)(&object, &deaths, count_calls, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  CU_OK(CU(cuGraphRetainUserObject)(graph_, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  CU_OK(CU(cuGraphInstantiateWithFlags)(&exec_, graph_, 0));
  CU_OK(CU(cuGraphDestroy)(graph_));
  EXPECT_EQ(0, deaths);  // the executable graph holds it too
  CU_OK(CU(cuGraphLaunch)(exec_, stream_));
  CU_OK(CU(cuGraphLaunch)(exec_, stream_));
  EXPECT_EQ(2, calls);
  CU_OK(CU(cuGraphExecDestroy)(exec_));
  EXPECT_EQ(1, deaths);
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuUserObjectRelease)(object, 1));
}

TEST_F(GraphTest, ConditionalBodiesRunByTheirDefault) {
  CU_OK(CU(cuGraphCreate)(&graph_, 0));
  CUgraphConditionalHandle handle = 0;
  CU_OK(CU(cuGraphConditionalHandleCreate)(&handle, graph_, context_, 1,
                                           CU_GRAPH_COND_ASSIGN_DEFAULT));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE,
           CU(cuGraphInstantiateWithFlags)(&exec_, graph_, 0));  // no node uses it
  CUgraphNodeParams params = {};
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  params.conditional.handle = handle;
  params.conditional.type = CU_GRAPH_COND_TYPE_IF;
  params.conditional.size = 2;
  params.conditional.ctx = context_;
  CUgraphNode node = nullptr, inner = nullptr;
  CU_OK(CU(cuGraphAddNode_v2)(&node, graph_, nullptr, nullptr, 0, &params));
  for (int branch = 0; branch < 2; branch++) {
    const CUDA_MEMSET_NODE_PARAMS set = {memory_, 0, branch ? 20u : 10u, 4, 1, 1};
    CU_OK(CU(cuGraphAddMemsetNode)(&inner, params.conditional.phGraph_out[branch], nullptr, 0, &set,
                                   context_));
  }
  CU_FAILS(CUDA_ERROR_NOT_SUPPORTED, CU(cuGraphClone)(&graph_, graph_));
  CU_OK(CU(cuGraphInstantiateWithFlags)(&exec_, graph_, 0));
  CU_OK(CU(cuGraphLaunch)(exec_, stream_));
  EXPECT_EQ(10u, word());
  CU_OK(CU(cuGraphExecDestroy)(exec_));
  CU_OK(CU(cuGraphDestroy)(graph_));
}

class GraphMemoryTest : public GraphTest {
 protected:
  void SetUp() override {
    GraphTest::SetUp();
    // The driver's own memory for executable graphs is there before anything is counted.
    CUgraphNode node = nullptr;
    CU_OK(CU(cuGraphCreate)(&graph_, 0));
    CU_OK(CU(cuGraphAddEmptyNode)(&node, graph_, nullptr, 0));
    CU_OK(CU(cuGraphInstantiateWithFlags)(&exec_, graph_, 0));
    CU_OK(CU(cuGraphExecDestroy)(exec_));
    CU_OK(CU(cuGraphDestroy)(graph_));
  }
  uint64_t attribute(CUgraphMem_attribute which) {
    cuuint64_t value = ~0ull;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuDeviceGetGraphMemAttribute)(0, which, &value));
    return value;
  }
};

TEST_F(GraphMemoryTest, MemoryInsideAGraphIsSharedOverTime) {
  CU_OK(CU(cuDeviceGraphMemTrim)(0));
  const uint64_t before = used();
  CUdeviceptr a = 0, b = 0;
  CU_OK(begin());
  CU_OK(CU(cuMemAllocAsync)(&a, 50 * kMiB, stream_));
  CU_OK(CU(cuMemFreeAsync)(a, stream_));
  CU_OK(CU(cuMemAllocAsync)(&b, 60 * kMiB, stream_));
  CU_OK(CU(cuMemsetD32Async)(b, 9, 4, stream_));
  CU_OK(CU(cuMemcpyDtoDAsync_v2)(memory_, b, 16, stream_));
  CU_OK(CU(cuMemFreeAsync)(b, stream_));
  CU_OK(end());
  EXPECT_EQ(before, used());
  CU_FAILS(CUDA_ERROR_NOT_SUPPORTED, CU(cuGraphClone)(&graph_, graph_));
  CU_FAILS(CUDA_ERROR_NOT_SUPPORTED, CU(cuGraphDestroyNode)(nodes()[0]));
  CU_OK(CU(cuGraphInstantiateWithFlags)(&exec_, graph_, 0));
  CUgraphExec second = nullptr;
  CU_FAILS(CUDA_ERROR_NOT_SUPPORTED, CU(cuGraphInstantiateWithFlags)(&second, graph_, 0));
  for (int i = 0; i < 3; i++) CU_OK(CU(cuGraphLaunch)(exec_, stream_));
  EXPECT_EQ(9u, word());
  EXPECT_EQ(64 * kMiB, used() - before);  // the larger of the two, in chunks
  EXPECT_EQ(64 * kMiB, attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT));
  EXPECT_EQ(64 * kMiB, attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT));
  CU_OK(CU(cuGraphExecDestroy)(exec_));
  EXPECT_EQ(0u, attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT));
  EXPECT_EQ(64 * kMiB, used() - before);  // kept for the next graph
  CU_OK(CU(cuDeviceGraphMemTrim)(0));
  EXPECT_EQ(before, used());
  CU_OK(CU(cuGraphDestroy)(graph_));
}

TEST_F(GraphMemoryTest, MemoryThatOutlivesItsLaunchMustBeFreedBeforeTheNext) {
  CU_OK(CU(cuDeviceGraphMemTrim)(0));
  const uint64_t before = used();
  CUdeviceptr kept = 0, base = 0;
  CU_OK(begin());
  CU_OK(CU(cuMemAllocAsync)(&kept, 20 * kMiB, stream_));
  CU_OK(end());
  size_t bytes = 0;
  CU_OK(CU(cuGraphInstantiateWithFlags)(&exec_, graph_, 0));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemFree_v2)(kept));  // not allocated before the launch
  CU_OK(CU(cuGraphLaunch)(exec_, stream_));
  CU_OK(CU(cuMemGetAddressRange_v2)(&base, &bytes, kept));
  EXPECT_EQ(20 * kMiB, bytes);
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuGraphLaunch)(exec_, stream_));
  CU_OK(CU(cuDeviceGraphMemTrim)(0));
  EXPECT_EQ(32 * kMiB, used() - before);  // still in use
  CU_OK(CU(cuMemFreeAsync)(kept, stream_));
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemFreeAsync)(kept, stream_));
  CU_OK(CU(cuGraphLaunch)(exec_, stream_));
  CU_OK(CU(cuMemFree_v2)(kept));
  CU_OK(CU(cuGraphExecDestroy)(exec_));
  CU_OK(CU(cuGraphInstantiateWithFlags)(&exec_, graph_,
                                        CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
  CU_OK(CU(cuGraphLaunch)(exec_, stream_));
  CU_OK(CU(cuGraphLaunch)(exec_, stream_));
  CU_OK(CU(cuMemFreeAsync)(kept, stream_));
  CU_OK(CU(cuGraphExecDestroy)(exec_));
  CU_OK(CU(cuGraphDestroy)(graph_));
  CU_OK(CU(cuDeviceGraphMemTrim)(0));
  EXPECT_EQ(before, used());
}

// The sequence and every figure as an H200 (driver 580) answered (tools/device, section graphs).
TEST_F(GraphMemoryTest, TakesWhatAnH200Takes) {
  CU_OK(CU(cuDeviceGraphMemTrim)(0));
  const uint64_t before = used();
  CUdeviceptr a = 0, b = 0, kept = 0;
  CU_OK(begin());
  CU_OK(CU(cuMemAllocAsync)(&a, 50 * kMiB, stream_));
  CU_OK(CU(cuMemsetD8Async)(a, 0, 50 * kMiB, stream_));
  CU_OK(CU(cuMemFreeAsync)(a, stream_));
  CU_OK(CU(cuMemAllocAsync)(&b, 30 * kMiB, stream_));
  CU_OK(CU(cuMemFreeAsync)(b, stream_));
  CU_OK(CU(cuMemAllocAsync)(&kept, 20 * kMiB, stream_));
  CU_OK(end());
  CU_OK(CU(cuGraphInstantiateWithFlags)(&exec_, graph_, 0));
  EXPECT_EQ(before, used());
  const auto expect = [&](uint64_t mib) {
    EXPECT_EQ(mib * kMiB, attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT));
    EXPECT_EQ(mib * kMiB, attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT));
    EXPECT_EQ(mib * kMiB, used() - before);
  };
  expect(0);
  CU_OK(CU(cuGraphLaunch)(exec_, stream_));
  expect(64);
  CU_FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuGraphLaunch)(exec_, stream_));
  CU_OK(CU(cuMemFreeAsync)(kept, stream_));
  CU_OK(CU(cuStreamSynchronize)(stream_));
  expect(64);
  CU_OK(CU(cuGraphLaunch)(exec_, stream_));
  expect(64);
  CU_OK(CU(cuDeviceGraphMemTrim)(0));
  expect(32);  // what outlived its launch
  CU_OK(CU(cuGraphExecDestroy)(exec_));
  CU_OK(CU(cuGraphDestroy)(graph_));
  expect(32);
  CU_OK(CU(cuMemFreeAsync)(kept, stream_));
  CU_OK(CU(cuDeviceGraphMemTrim)(0));
  expect(0);
}

// As an H200 (driver 580) has it: allocations of one graph share an address and its memory where
// one is freed before the next begins; a graph of memory nodes alone takes nothing for itself.
TEST_F(GraphMemoryTest, AllocationsShareAnAddressWhereOneIsFreedBeforeTheNext) {
  CU_OK(CU(cuDeviceGraphMemTrim)(0));
  for (const bool early : {true, false}) {
    const uint64_t before = used();
    CUdeviceptr addresses[3] = {};
    CU_OK(begin());
    for (CUdeviceptr& address : addresses) {
      CU_OK(CU(cuMemAllocAsync)(&address, 64 * kMiB, stream_));
      if (early) {
        CU_OK(CU(cuMemFreeAsync)(address, stream_));
      }
    }
    for (CUdeviceptr address : addresses) {
      if (!early) {
        CU_OK(CU(cuMemFreeAsync)(address, stream_));
      }
    }
    CU_OK(end());
    CU_OK(CU(cuGraphInstantiateWithFlags)(&exec_, graph_, 0));
    EXPECT_EQ(used(), before);
    EXPECT_EQ(addresses[0] == addresses[1], early);
    EXPECT_EQ(addresses[0] == addresses[2], early);
    for (int i = 0; i < 2; i++) {
      CU_OK(CU(cuGraphLaunch)(exec_, stream_));
      EXPECT_EQ(used(), before + (early ? 64 : 192) * kMiB);
    }
    CU_OK(CU(cuGraphExecDestroy)(exec_));
    CU_OK(CU(cuGraphDestroy)(graph_));
    CU_OK(CU(cuDeviceGraphMemTrim)(0));
    EXPECT_EQ(used(), before);
  }
}

// A free node beside the stream's own order frees nothing for what follows in the stream.
TEST_F(GraphMemoryTest, AFreeBesideTheOrderGivesNothingToTheNext) {
  CU_OK(CU(cuDeviceGraphMemTrim)(0));
  const uint64_t before = used();
  CUdeviceptr first = 0, second = 0;
  CU_OK(begin());
  CU_OK(CU(cuMemAllocAsync)(&first, 64 * kMiB, stream_));
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph capturing = nullptr;
  const CUgraphNode* dependencies = nullptr;
  size_t count = 0;
  CU_OK(CU(cuStreamGetCaptureInfo_v2)(stream_, &status, &id, &capturing, &dependencies, &count));
  CUgraphNode node = nullptr;
  CU_OK(CU(cuGraphAddMemFreeNode)(&node, capturing, dependencies, count, first));
  CU_OK(CU(cuMemAllocAsync)(&second, 64 * kMiB, stream_));
  CU_OK(CU(cuMemFreeAsync)(second, stream_));
  CU_OK(end());
  EXPECT_NE(first, second);
  CU_OK(CU(cuGraphInstantiateWithFlags)(&exec_, graph_, 0));
  CU_OK(CU(cuGraphLaunch)(exec_, stream_));
  EXPECT_EQ(used(), before + 128 * kMiB);
  CU_OK(CU(cuGraphExecDestroy)(exec_));
  CU_OK(CU(cuGraphDestroy)(graph_));
  CU_OK(CU(cuDeviceGraphMemTrim)(0));
  EXPECT_EQ(used(), before);
}

TEST_F(GraphMemoryTest, ALaunchThatDoesNotFitFails) {
  CUdeviceptr address = 0;
  CU_OK(begin());
  CU_OK(CU(cuMemAllocAsync)(&address, kCardBytes - 16 * kMiB, stream_));
  CU_OK(CU(cuMemFreeAsync)(address, stream_));
  CU_OK(end());
  CU_OK(CU(cuGraphInstantiateWithFlags)(&exec_, graph_, 0));
  const uint64_t before = used();
  CU_FAILS(CUDA_ERROR_OUT_OF_MEMORY, CU(cuGraphLaunch)(exec_, stream_));
  EXPECT_EQ(before, used());
  CU_OK(CU(cuGraphExecDestroy)(exec_));
  CU_OK(CU(cuGraphDestroy)(graph_));
}

}  // namespace
}  // namespace tonnage::driver::test
