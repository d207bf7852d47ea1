// What executable graphs take of the card: every sequence that tools/device/graphs.cpp recorded on
// an H200, line by line.
#include <string>
#include <vector>

#include "driver/driver_library.h"
#include "gpu/recorded_graphs.h"

namespace tonnage::driver::test {
namespace {

constexpr uint64_t kAllocationGranularity = 2 << 20;

class RealGraphs : public DriverTest, public testing::WithParamInterface<size_t> {
 protected:
  void add(CUgraph graph, CUgraphNode* node, const CUgraphNode* after, const std::string& kind,
           CUfunction kernel, void** arguments) {
    const size_t edges = after ? 1 : 0;
    if (kind == "kernel") {
      CUDA_KERNEL_NODE_PARAMS p{};
      p.func = kernel;
      p.gridDimX = p.gridDimY = p.gridDimZ = p.blockDimX = p.blockDimY = p.blockDimZ = 1;
      p.kernelParams = arguments;
      CU_OK(CU(cuGraphAddKernelNode_v2)(node, graph, after, edges, &p));
    } else if (kind == "memset") {
      CUDA_MEMSET_NODE_PARAMS p{};
      p.dst = memory_;
      p.elementSize = 4;
      p.width = 64;
      p.height = 1;
      CU_OK(CU(cuGraphAddMemsetNode)(node, graph, after, edges, &p, context_));
    } else {
      CUDA_MEMCPY3D p{};
      p.srcMemoryType = p.dstMemoryType = CU_MEMORYTYPE_DEVICE;
      p.srcDevice = memory_;
      p.dstDevice = memory_ + (1 << 20);
      p.WidthInBytes = 256;
      p.Height = p.Depth = 1;
      CU_OK(CU(cuGraphAddMemcpyNode)(node, graph, after, edges, &p, context_));
    }
  }

  CUdeviceptr memory_ = 0;
};

TEST_P(RealGraphs, TakeMemoryAtTheSameOnes) {
  const auto [kind, kept, shape, nodes, parameter_bytes, graphs, streams, expected] =
      testing_data::read_recorded_graphs().at(GetParam());
  std::vector<std::string> seen;

  const std::string source =
      ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry k(.param .align 8 .b8 p[" +
      std::to_string(parameter_bytes) + "]) { ret; }\n";
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  CU_OK(CU(cuModuleLoadData)(&module, source.c_str()));
  CU_OK(CU(cuModuleGetFunction)(&kernel, module, "k"));
  std::vector<char> parameters(parameter_bytes);
  void* arguments[] = {parameters.data()};
  CU_OK(CU(cuMemAlloc_v2)(&memory_, kAllocationGranularity));
  for (size_t made = 1; made < streams; made++) {  // the test has one already
    CUstream stream = nullptr;
    CU_OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  }
  uint64_t before = used();
  for (size_t g = 0; g < graphs; g++) {
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    CU_OK(CU(cuGraphCreate)(&graph, 0));
    CUgraphNode last = nullptr;
    for (size_t n = 0; n < nodes; n++) {
      CUgraphNode node = nullptr;
      add(graph, &node, last && shape == "chain" ? &last : nullptr, kind, kernel, arguments);
      last = node;
    }
    CU_OK(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    const uint64_t granules = (used() - before) / kAllocationGranularity;
    if (granules)
      seen.push_back(std::to_string(g) + (granules > 1 ? "x" + std::to_string(granules) : ""));
    before = used();
    if (kept == "destroy") {
      CU_OK(CU(cuGraphExecDestroy)(exec));
    }
    CU_OK(CU(cuGraphDestroy)(graph));
    EXPECT_EQ(before, used());  // the driver gives nothing back
  }
  EXPECT_EQ(expected, seen);
}
INSTANTIATE_TEST_SUITE_P(H200, RealGraphs,
                         testing::Range(size_t{0}, testing_data::read_recorded_graphs().size()));

// A destroyed stream's place becomes that of branches, as in a program that makes all of PyTorch's
// streams and then a graph.
TEST_F(RealGraphs, TheFirstTakeADestroyedStreamsPlace) {
  CUstream streams[5] = {};
  for (CUstream& stream : streams)
    CU_OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));  // the last opens a granule
  CU_OK(CU(cuStreamDestroy_v2)(streams[0]));
  CU_OK(CU(cuMemAlloc_v2)(&memory_, kAllocationGranularity));
  const uint64_t before = used();
  CUgraph empty = nullptr;
  CUgraphExec none = nullptr;
  CU_OK(CU(cuGraphCreate)(&empty, 0));
  CU_OK(CU(cuGraphInstantiateWithFlags)(&none, empty, 0));  // takes nothing
  for (uint64_t i = 0; i < 33;
       i++) {  // 8 in that place, 24 in the rest of the granule; there is state for 30
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    CU_OK(CU(cuGraphCreate)(&graph, 0));
    CUgraphNode node = nullptr;
    add(graph, &node, nullptr, "memset", nullptr, nullptr);
    CU_OK(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0));
    ASSERT_EQ(before + ((i >= 30) + (i >= 32)) * kAllocationGranularity, used()) << i;
  }
}

}  // namespace
}  // namespace tonnage::driver::test
