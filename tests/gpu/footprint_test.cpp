// What the driver takes for itself: every sequence of executable graphs that
// tools/device/graphs.cpp recorded on an H200, line by line, without a driver in between.
#include "gpu/footprint.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu/fakes.h"
#include "gpu/recorded_graphs.h"

namespace tonnage::gpu {
namespace {

struct TestFootprint {
  TestAddresses addresses;
  FakeCard card;
  Footprint footprint{&card, &addresses.space, 132 * 2048};
  TestFootprint() { footprint.prepare_context(); }
};

GraphFootprint make_footprint(const std::string& kind, uint64_t nodes, size_t parameter_bytes,
                              bool chain) {
  GraphFootprint made;
  made.branches = chain && nodes ? 1 : nodes;
  for (uint64_t i = 0; i < nodes && kind == "kernel"; i++) made.add_kernel(parameter_bytes);
  if (kind == "copy" || kind == "memcpy") made.copies = nodes;
  return made;
}

class RecordedGraphs : public testing::TestWithParam<size_t> {};

TEST_P(RecordedGraphs, TakeMemoryAtTheSameOnes) {
  const auto [kind, kept, shape, nodes, parameter_bytes, graphs, streams, expected] =
      testing_data::read_recorded_graphs().at(GetParam());
  std::vector<std::string> seen;
  TestFootprint test;
  for (size_t i = 0; i < streams; i++) test.footprint.charge_stream();
  for (size_t g = 0; g < graphs; g++) {
    const uint64_t before = test.card.used;
    GraphFootprint made = make_footprint(kind, nodes, parameter_bytes, shape == "chain");
    test.footprint.charge_graph(&made);
    const uint64_t units = (test.card.used - before) / kAllocationGranularity;
    if (units) seen.push_back(std::to_string(g) + (units > 1 ? "x" + std::to_string(units) : ""));
    if (kept == "destroy") test.footprint.refund_graph(made);
  }
  EXPECT_EQ(expected, seen);
}
INSTANTIATE_TEST_SUITE_P(H200, RecordedGraphs,
                         testing::Range(size_t{0}, testing_data::read_recorded_graphs().size()));

TEST(Footprint, LocalMemoryIsOfTheKernelThatNeedsMore) {
  TestFootprint test;
  image::KernelInfo kernel;
  kernel.local_bytes = 512;
  test.footprint.prepare_launch(kernel, "small");
  EXPECT_EQ(test.card.used, 0u) << "a context has 1,024 bytes for each thread";
  kernel.local_bytes = 25'000;
  test.footprint.prepare_launch(kernel, "large");
  const uint64_t threads = 132 * 2048;
  const uint64_t expected = round_up(25'000 * threads, kAllocationGranularity) -
                            round_up(1024 * threads, kAllocationGranularity);
  EXPECT_EQ(test.card.by_purpose[abi::DriverMemory::kLocalMemory], expected);
  EXPECT_EQ(test.card.last_name, "large");
  test.footprint.prepare_launch(kernel, "again");
  EXPECT_EQ(test.card.used, expected);
}

}  // namespace
}  // namespace tonnage::gpu
