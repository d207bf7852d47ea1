// Value propagation with PyTorch's CPU operators in the place of a card's.
//
// "Device memory" is an arena that the CPU allocator hands out while the recorder itself is not
// calling PyTorch; the bridge keeps what is known of it. The operators really compute in the arena,
// so what the recorder says that it knows can be held beside what is there: it may know less, never
// something else.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "recorder/observe/context.h"
#include "recorder/observe/operators.h"
#include "recorder/observe/thread.h"
#include "recorder/state.h"
#include "recorder/values/assumed.h"
#include "recorder/values/budget.h"
#include "recorder/values/collectives.h"
#include "recorder/values/content.h"
#include "recorder/values/device.h"
#include "recorder/values/engine.h"
#include "recorder/values/host_reads.h"

namespace tonnage::recorder {

// --- What the recorder's other parts would be ---

struct CollectiveResult {};
PendingCollective::PendingCollective() = default;
PendingCollective::~PendingCollective() = default;
Collective collective_of(std::string_view) { return Collective::kNone; }
void fill_context(abi::MemoryEvent*) {}

namespace {

constexpr size_t kArenaBytes = size_t{256} << 20;

struct FakeDevice {
  char* arena = static_cast<char*>(::mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  size_t used = 0;
  bool on = false;  // allocations are device memory
  std::vector<char> bytes = std::vector<char>(kArenaBytes);
  std::vector<bool> known = std::vector<bool>(kArenaBytes);
  std::map<std::string, uint32_t> strings;
  std::vector<abi::MemoryEvent> events;
  std::optional<int64_t> posted;

  bool has(const void* p) const { return p >= arena && p < arena + kArenaBytes; }
  size_t at(uint64_t address) const { return address - reinterpret_cast<uint64_t>(arena); }
};
FakeDevice& fake() {
  static auto* instance = new FakeDevice();
  return *instance;
}

class ArenaAllocator : public at::Allocator {
 public:
  at::DataPtr allocate(size_t n) override {
    void* data = nullptr;
    FakeDevice& f = fake();
    if (n > 0 && f.on && !thread_state()->busy) {
      data = f.arena + f.used;
      f.used += (n + 511) / 512 * 512;
      if (f.used > kArenaBytes) throw std::bad_alloc();
      std::fill_n(f.known.begin() + static_cast<long>(f.at(reinterpret_cast<uint64_t>(data))), n,
                  false);
    } else if (n > 0) {
      data = std::aligned_alloc(64, (n + 63) / 64 * 64);
    }
    return {data, data, &release, at::Device(at::kCPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }

 private:
  static void release(void* data) {
    if (!fake().has(data)) std::free(data);
  }
};

const abi::Bridge& fake_bridge() {
  static abi::Bridge b{};
  b.struct_bytes = sizeof b;
  b.version = abi::kBridgeVersion;
  b.content_get = [](uint64_t address, void* out, size_t n) {
    FakeDevice& f = fake();
    for (size_t i = 0; i < n; i++)
      if (!f.known[f.at(address) + i]) return 0;
    std::memcpy(out, f.bytes.data() + f.at(address), n);
    return 1;
  };
  b.content_set = [](uint64_t address, const void* bytes, size_t n) {
    FakeDevice& f = fake();
    std::memcpy(f.bytes.data() + f.at(address), bytes, n);
    std::fill_n(f.known.begin() + static_cast<long>(f.at(address)), n, true);
  };
  b.content_forget = [](uint64_t address, size_t n) {
    std::fill_n(fake().known.begin() + static_cast<long>(fake().at(address)), n, false);
  };
  b.content_any = [](uint64_t address, size_t n) {
    FakeDevice& f = fake();
    for (size_t i = 0; i < n; i++)
      if (f.known[f.at(address) + i]) return 1;
    return 0;
  };
  b.content_fill = [](uint64_t address, uint32_t pattern, unsigned width, size_t n) {
    FakeDevice& f = fake();
    for (size_t i = 0; i < n; i += width)
      std::memcpy(f.bytes.data() + f.at(address) + i, &pattern, width);
    std::fill_n(f.known.begin() + static_cast<long>(f.at(address)), n, true);
  };
  b.operator_depth_add = [](int) {};
  b.post_read = [](int64_t value) { fake().posted = value; };
  b.clear_posted_read = [] {};
  b.set_upload_policy = [](int) {};
  b.intern_string = [](const char* text, size_t n) {
    auto& strings = fake().strings;
    return strings.try_emplace(std::string(text, n), strings.size() + 1).first->second;
  };
  b.emit = [](const abi::MemoryEvent* event) { fake().events.push_back(*event); };
  b.flush = [] {};
  return b;
}

// What the driver does with copies that it sees as such.
void copy_content(c10::ArrayRef<const c10::IValue> inputs) {
  const at::Tensor &to = inputs[0].toTensor(), &from = inputs[1].toTensor();
  if (!device::has(to)) return;
  FakeDevice& f = fake();
  for (size_t i = 0; i < to.nbytes(); i++) {
    const size_t at = f.at(address_of(to)) + i;
    if (device::has(from)) {
      f.known[at] = f.known[f.at(address_of(from)) + i];
      f.bytes[at] = f.bytes[f.at(address_of(from)) + i];
    } else {
      f.known[at] = from.is_contiguous() && from.scalar_type() == to.scalar_type();
      f.bytes[at] = static_cast<const char*>(from.const_data_ptr())[f.known[at] ? i : 0];
    }
  }
}

// What observe/operator_observer.cpp does for values.
std::unique_ptr<at::ObserverContext> call_begins(const at::RecordFunction& f) {
  ThreadState& thread = *thread_state();
  if (thread.busy || !fake().on) return nullptr;
  const OpInfo* info = find_operator(thread, f);
  if (!info || info->only_views) return nullptr;
  thread.frames.emplace_back();
  Frame& frame = thread.frames.back();
  frame.function = &f;
  frame.info = info;
  frame.kind = Frame::Kind::kOperator;
  frame.name = info->name_id;
  frame.serial = thread.next_serial++;
  if (info->needs_results()) begin_values(thread, frame);
  const auto inputs = inputs_of(f, *info);
  if (info->rule == OpRule::kCopy && is_drivers_copy(inputs)) copy_content(inputs);
  return nullptr;
}
void call_ends(const at::RecordFunction& f, at::ObserverContext*) {
  ThreadState& thread = *thread_state();
  if (thread.busy || thread.frames.empty() || thread.frames.back().function != &f) return;
  Frame& frame = thread.frames.back();
  if (frame.info->needs_results()) end_values(thread, frame);
  drop_values(frame);
  thread.frames.pop_back();
}

}  // namespace

namespace device {
bool is(const c10::Device& d) { return d.is_cpu(); }
bool has(const at::Tensor& t) {
  if (!t.defined() || !t.unsafeGetTensorImpl()->has_storage()) return false;
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) return false;  // the 1 of t + 1: on the host
  const void* data = t.storage().data();
  return fake().has(data) || (!data && fake().on && !thread_state()->busy);
}
bool plain(const at::Tensor& t) { return has(t) && !t.is_conj() && !t.is_neg(); }
c10::DispatchKey kernel_key() { return c10::DispatchKey::CPU; }
c10::DispatchKey sparse_kernel_key() { return c10::DispatchKey::SparseCPU; }
bool capturing() { return false; }
RandomState random_state(const c10::Device&, const at::Generator&) { return {}; }
}  // namespace device

namespace {

class ValuesTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    static ArenaAllocator allocator;
    recorder().bridge = &fake_bridge();
    c10::SetCPUAllocator(&allocator, /*priority=*/255);
    at::addGlobalCallback(at::RecordFunctionCallback(&call_begins, &call_ends)
                              .needsInputs(true)
                              .needsOutputs(true)
                              .scopes({at::RecordScope::FUNCTION}));
  }
  void SetUp() override {
    at::manual_seed(1);
    fake().on = true;
  }
  void TearDown() override {
    fake().on = false;
    fake().events.clear();
    fake().posted.reset();
  }

  // Does something without the recorder seeing it.
  template <class F>
  static auto unseen(F f) {
    thread_state()->busy = true;
    struct Back {
      ~Back() { thread_state()->busy = false; }
    } back;
    return f();
  }
  static at::Tensor known_tensor(const at::Tensor& value) {
    at::Tensor device = at::empty(value.sizes(), value.options());
    unseen([&] { device.copy_(value); });
    std::memcpy(fake().bytes.data() + fake().at(address_of(device)), device.data_ptr(),
                device.nbytes());
    std::fill_n(fake().known.begin() + static_cast<long>(fake().at(address_of(device))),
                device.nbytes(), true);
    return device;
  }
  static at::Tensor unknown_tensor(const at::Tensor& value) {
    at::Tensor device = known_tensor(value);
    fake_bridge().content_forget(address_of(device), device.nbytes());
    return device;
  }
  static at::Tensor host(const std::function<at::Tensor()>& make) {
    at::Tensor made;
    unseen([&] { made = make(); });
    return made;
  }

  // How many bytes of the tensor are known; fails if one is known to be what it is not.
  static size_t known_bytes(const at::Tensor& t, const std::string& what) {
    size_t known = 0;
    const auto* there = static_cast<const char*>(t.data_ptr());
    const size_t n = span_bytes(t), begin = fake().at(address_of(t));
    for (size_t i = 0; i < n; i++) {
      if (!fake().known[begin + i]) continue;
      known++;
      if (fake().bytes[begin + i] != there[i] && !is_assumed(address_of(t) + i)) {
        ADD_FAILURE() << what << ": byte " << i << " is said to be known and is another";
        return known;
      }
    }
    return known;
  }
  static bool all_known(const at::Tensor& t, const std::string& what = "") {
    return known_bytes(t, what) == span_bytes(t);
  }
  static bool none_known(const at::Tensor& t, const std::string& what = "") {
    return known_bytes(t, what) == 0;
  }
};

TEST_F(ValuesTest, WhatFollowsFromKnownValuesIsKnown) {
  const at::Tensor a = known_tensor(host([] { return at::arange(24).view({4, 6}); }));
  EXPECT_TRUE(all_known(a + 1, "add"));
  EXPECT_TRUE(all_known(a.t().contiguous(), "contiguous"));
  EXPECT_TRUE(all_known(at::cat({a, a}), "cat"));
  EXPECT_TRUE(all_known(a.sum(0), "sum"));
  EXPECT_TRUE(all_known(std::get<0>(a.max(1)), "max"));
  EXPECT_TRUE(all_known(a.cumsum(1), "cumsum"));
  EXPECT_TRUE(all_known(a.gt(7), "gt"));
  EXPECT_TRUE(all_known(at::full({3, 3}, 5, a.options()), "full"));
  EXPECT_TRUE(all_known(at::arange(3, 20, 4, a.options()), "arange"));
}

TEST_F(ValuesTest, WhatFollowsFromUnknownValuesIsUnknown) {
  const at::Tensor u = unknown_tensor(host([] { return at::rand({8, 8}); }));
  EXPECT_TRUE(none_known(u + 1));
  EXPECT_TRUE(none_known(u.sum(0)));
  EXPECT_TRUE(none_known(u.mm(u)));
}

// Every way to write unknown data into known memory that ATen has a kernel of its own for.
TEST_F(ValuesTest, UnknownDataMakesKnownMemoryUnknown) {
  using Write =
      std::function<void(at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&)>;
  const std::map<std::string, Write> writes = {
      {"copy_", [](auto& z, auto& u, auto&, auto&) { z.copy_(u); }},
      {"copy_ of another type", [](auto& z, auto& u, auto&, auto&) { z.copy_(u.to(at::kDouble)); }},
      {"add_", [](auto& z, auto& u, auto&, auto&) { z.add_(u); }},
      {"mul_", [](auto& z, auto& u, auto&, auto&) { z.mul_(u); }},
      {"lerp_", [](auto& z, auto& u, auto&, auto&) { z.lerp_(u, 0.5); }},
      {"addcmul_", [](auto& z, auto& u, auto&, auto&) { z.addcmul_(u, u); }},
      {"index_put_", [](auto& z, auto& u, auto& i, auto&) { z.index_put_({i}, u); }},
      {"index_put_ accumulate",
       [](auto& z, auto& u, auto& i, auto&) { z.index_put_({i}, u, true); }},
      {"index_put_ by mask", [](auto& z, auto& u, auto&, auto& m) { z.index_put_({m}, u); }},
      {"index_copy_", [](auto& z, auto& u, auto& i, auto&) { z.index_copy_(0, i, u); }},
      {"index_add_", [](auto& z, auto& u, auto& i, auto&) { z.index_add_(0, i, u); }},
      {"scatter_", [](auto& z, auto& u, auto& i, auto&) { z.scatter_(0, i, u); }},
      {"scatter_add_", [](auto& z, auto& u, auto& i, auto&) { z.scatter_add_(0, i, u); }},
      {"scatter_reduce_",
       [](auto& z, auto& u, auto& i, auto&) { z.scatter_reduce_(0, i, u, "amax"); }},
      {"masked_scatter_", [](auto& z, auto& u, auto&, auto& m) { z.masked_scatter_(m, u); }},
      {"put_", [](auto& z, auto& u, auto& i, auto&) { z.put_(i, u); }},
      {"fill_", [](auto& z, auto& u, auto&, auto&) { z.fill_(u.select(0, 3)); }},
      {"out=", [](auto& z, auto& u, auto&, auto&) { at::add_out(z, u, u); }},
      {"clamp_", [](auto& z, auto& u, auto&, auto&) { z.clamp_(u, u + 1); }},
      {"sort out",
       [](auto& z, auto& u, auto& i, auto&) {
         at::Tensor order = at::empty_like(i);
         at::sort_out(z, order, u, 0);
       }},
      {"foreach add_",
       [](auto& z, auto& u, auto&, auto&) {
         at::_foreach_add_(std::vector<at::Tensor>{z}, std::vector<at::Tensor>{u});
       }},
      {"foreach copy_",
       [](auto& z, auto& u, auto&, auto&) {
         at::_foreach_copy_(std::vector<at::Tensor>{z}, std::vector<at::Tensor>{u});
       }},
      {"a view",
       [](auto& z, auto& u, auto&, auto&) {
         z.view({8, 8}).copy_(u.view({8, 8}));
       }},
      {"set by another operator", [](auto& z, auto& u, auto&, auto&) { at::cumsum_out(z, u, 0); }},
  };
  const at::Tensor i = known_tensor(host([] { return at::arange(64); }));
  const at::Tensor m = known_tensor(host([] { return at::ones({64}, at::kBool); }));
  for (const auto& [name, write] : writes) {
    for (const double old : {0.0, 2.0}) {
      const at::Tensor u = unknown_tensor(host([] { return at::rand({64}) + 0.25; }));
      at::Tensor z = known_tensor(host([&] { return at::full({64}, old); }));
      write(z, u, i, m);
      EXPECT_TRUE(none_known(z, name)) << name << " over " << old;
    }
  }
}

// The operator's own host code reads the number, which is assumed from then on.
TEST_F(ValuesTest, ANumberThatAnOperatorReadsIsAssumed) {
  const at::Tensor u = unknown_tensor(host([] { return at::rand({64}) + 0.25; }));
  const at::Tensor m = known_tensor(host([] { return at::ones({64}, at::kBool); }));
  at::Tensor z = known_tensor(host([] { return at::zeros({64}); }));
  z.masked_fill_(m, u.select(0, 3));
  known_bytes(z, "masked_fill_");
  EXPECT_TRUE(is_assumed(address_of(z)));
}

TEST_F(ValuesTest, UnknownDataLeavesTheRestKnown) {
  const at::Tensor i = known_tensor(host([] { return at::arange(8); }));
  const at::Tensor u = unknown_tensor(host([] { return at::rand({8}); }));
  at::Tensor z = known_tensor(host([] { return at::full({64}, 2.0); }));
  z.index_put_({i}, u);
  EXPECT_EQ(56 * 4u, known_bytes(z, "index_put_"));
  z = known_tensor(host([] { return at::full({8, 8}, 2.0); }));
  z.select(1, 3).copy_(u);
  EXPECT_EQ(56 * 4u, known_bytes(z, "a column"));
  const at::Tensor mask = known_tensor(host([] { return at::arange(64).lt(8); }));
  z = known_tensor(host([] { return at::full({64}, 2.0); }));
  EXPECT_EQ(56 * 4u, known_bytes(at::where(mask, u.repeat({8}), z), "where"));
}

TEST_F(ValuesTest, KnownDataInUnknownMemoryIsKnown) {
  const at::Tensor order = known_tensor(host([] { return at::arange(5, -1, -1); }));
  at::Tensor z = at::empty({6}, order.options());
  z.scatter_(0, order, order);
  EXPECT_TRUE(all_known(z, "scatter_"));
  at::Tensor part = unknown_tensor(host([] { return at::full({8}, 3); }));
  part.slice(0, 0, 3).fill_(7);
  part.index_put_({order.slice(0, 0, 3)}, order.slice(0, 0, 3));
  EXPECT_EQ(6 * 8u, known_bytes(part, "part"));
}

TEST_F(ValuesTest, AMaskWrittenByIndexIsAsTheMaskItself) {
  const at::Tensor scores = unknown_tensor(host([] { return at::randn({400}); }));
  const at::Tensor i = known_tensor(host([] { return at::arange(400); }));
  at::Tensor keep = known_tensor(host([] { return at::zeros({400}, at::kBool); }));
  keep.index_put_({i}, scores.gt(0));
  EXPECT_TRUE(none_known(keep));
}

TEST_F(ValuesTest, CountsOfKnownDataAreComputed) {
  const at::Tensor mask = known_tensor(host([] { return at::arange(100).remainder(4).eq(0); }));
  mask.nonzero();
  EXPECT_EQ(25, fake().posted);
  const at::Tensor numbers = known_tensor(host([] { return at::arange(100).remainder(7); }));
  at::_unique2(numbers);
  EXPECT_EQ(7, fake().posted);
  at::unique_consecutive(numbers);
  EXPECT_EQ(100, fake().posted);
}

TEST_F(ValuesTest, CountsOfUnknownDataAreTheirBoundOrAShare) {
  const at::Tensor u = unknown_tensor(host([] { return at::ones({100}, at::kBool); }));
  u.nonzero();
  EXPECT_EQ(100, fake().posted);
  recorder().settings.assume_selected = 0.25;
  u.nonzero();
  recorder().settings.assume_selected = -1;
  EXPECT_EQ(25, fake().posted);
  ASSERT_EQ(2u, fake().events.size());
  EXPECT_EQ(abi::EventKind::kAssumedSize, fake().events[0].kind);
}

double assumed_value(const at::Tensor& t) {
  assume_elements(t);
  float value = 0;
  EXPECT_TRUE(fake_bridge().content_get(address_of(t), &value, sizeof value));
  return value;
}

TEST_F(ValuesTest, StatisticsOfAnUnknownTensorFitTogether) {
  const at::Tensor u = unknown_tensor(host([] { return at::randn({50, 40}); }));
  const at::Tensor low = u.min(), high = u.max(), middle = u.mean();
  const at::Tensor quantile = at::quantile(u, 0.9), sorted = std::get<0>(u.flatten().sort());
  const auto [least, most] = at::aminmax(u);
  const at::Tensor again = u.max();
  // In whatever order they are asked for.
  const double mean = assumed_value(middle), max = assumed_value(high), min = assumed_value(low);
  EXPECT_LT(min, mean);
  EXPECT_LT(mean, max);
  EXPECT_EQ(min, assumed_value(least));
  EXPECT_EQ(max, assumed_value(most));
  EXPECT_EQ(max, assumed_value(again));
  const double q = assumed_value(quantile);
  EXPECT_LT(mean, q);
  EXPECT_LT(q, max);
  EXPECT_EQ(min, assumed_value(sorted.select(0, 0)));
  EXPECT_NEAR(max, assumed_value(sorted.select(0, sorted.size(0) - 1)), 1e-6);
}

TEST_F(ValuesTest, NumbersOfDifferentContentFall) {
  double last = 2;
  at::Tensor u = unknown_tensor(host([] { return at::randn({50, 40}); }));
  for (int step = 0; step < 5; step++) {
    u.add_(1);
    const double loss = assumed_value(u.mean());
    EXPECT_LT(loss, last);
    last = loss;
  }
}

TEST_F(ValuesTest, WhatFollowsFromAnAssumedNumberIsMarkedToo) {
  const at::Tensor u = unknown_tensor(host([] { return at::randn({5}); }));
  const at::Tensor loss = u.mean();
  assume_elements(loss);
  const at::Tensor twice = loss * 2;
  EXPECT_TRUE(is_assumed(address_of(twice)));
  float value = 0, half = 0;
  fake_bridge().content_get(address_of(twice), &value, sizeof value);
  fake_bridge().content_get(address_of(loss), &half, sizeof half);
  EXPECT_EQ(value, 2 * half);
  at::Tensor over = loss.clone();
  over.fill_(3.0);
  EXPECT_FALSE(is_assumed(address_of(over)));
}

TEST_F(ValuesTest, DistancesOfKnownPositionsAreKnownFarBeyondTheOrdinarySize) {
  const at::Tensor p = known_tensor(host([] { return at::rand({400, 3}); }));
  const at::Tensor difference = p.unsqueeze(1) - p.unsqueeze(0);
  EXPECT_TRUE(all_known(difference, "difference"));
  const at::Tensor square = difference.pow(2).sum(-1);
  EXPECT_TRUE(all_known(square, "square"));
  EXPECT_TRUE(all_known(at::linalg_vector_norm(difference, 2, {-1}), "norm"));
  EXPECT_TRUE(all_known(at::_cdist_forward(p, p, 2.0, std::nullopt), "cdist"));
  const at::Tensor near = square.lt(0.01);
  EXPECT_TRUE(all_known(near, "near"));
  const at::Tensor pairs = near.nonzero();
  EXPECT_EQ(pairs.size(0), fake().posted);
  // Operators that no neighbour list needs stay at the ordinary size.
  EXPECT_TRUE(none_known(square.exp(), "exp"));
}

TEST(ComputeBudgetTest, AdmitsAgainWhatItAdmittedOnce) {
  ComputeBudget budget;
  EXPECT_FALSE(budget.admits(0, 1, 2'000'000'000));
  EXPECT_TRUE(budget.admits(0, 2, 400'000'000));
  EXPECT_TRUE(budget.admits(0, 2, 400'000'000));
  EXPECT_FALSE(budget.admits(0, 3, 400'000'000));
  EXPECT_TRUE(budget.admits(2'000'000, 3, 400'000'000));
}

}  // namespace
}  // namespace tonnage::recorder
