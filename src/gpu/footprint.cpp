#include "gpu/footprint.h"

#include <utility>

namespace tonnage::gpu {
namespace {

using abi::DriverMemory;

constexpr uint64_t kStreamBytes = 512ull << 10;  // four share 2 MiB; a context has room for one
// Executable graphs share both pools with streams: every branch takes a piece of the state pool and
// this of the queues' pool.
constexpr uint64_t kBranchBytes = 64ull << 10;
// Their nodes: those of one graph lie together in one piece of a pool, but for kernels with many
// parameters, which have pieces of their own elsewhere. A context has used some of the first
// 2 MiB of either. A list of the nodes is in a third pool.
constexpr uint64_t kNodeBytes = 1816, kMediumNodeBytes = 2880, kLargeNodeBytes = 8192,
                   kNodesHeaderBytes = 8;
constexpr uint64_t kListEntryBytes = 512;
// Nodes of kernels with so many bytes of parameters; the limits lie between sizes that were measured.
constexpr size_t kMostOfSmallKernel = 1200;   // 1,100 and 1,300
constexpr size_t kMostOfMediumKernel = 2250;  // 2,000 and 2,500

// The driver's own block: addresses that it has in a new context, and more when code that can print
// has come.
constexpr uint64_t kHeapOfContext = 414ull << 20;
constexpr uint64_t kHeapForPrintf = 92ull << 20;

uint64_t piece_bytes(const GraphFootprint& f) {
  const uint64_t nodes =
      (f.small_kernels + f.copies) * kNodeBytes + f.medium_kernels * kMediumNodeBytes;
  return nodes ? nodes + kNodesHeaderBytes : 0;
}
uint64_t list_bytes(const GraphFootprint& f) {
  const uint64_t nodes = f.small_kernels + f.medium_kernels + f.large_kernels + f.copies;
  return nodes ? (nodes + 1) * kListEntryBytes : 0;
}

}  // namespace

void GraphFootprint::add_kernel(size_t parameter_bytes) {
  (parameter_bytes <= kMostOfSmallKernel    ? small_kernels
   : parameter_bytes <= kMostOfMediumKernel ? medium_kernels
                                            : large_kernels)++;
}

// Takes `bytes` of the card for the driver itself, and addresses.
uint64_t Footprint::take(uint64_t bytes, DriverMemory what, std::string_view name) {
  const uint64_t size = round_up(bytes, kAllocationGranularity);
  return card_->charge_driver(size, what, name) ? addresses_->allocate(size) : 0;
}

// The driver's own block for a device, with local memory, printf's buffer and so on, moves as a
// whole when it grows: the addresses after it show where it was. The cost to the card is charged
// apart.
void Footprint::move_heap(uint64_t more_bytes) {
  if (heap_address_ == 0) return;
  heap_bytes_ += more_bytes;
  heap_address_ = addresses_->move(heap_address_, heap_bytes_);
}

// `bytes` from a heap.
uint64_t Footprint::grow(Heap* heap, uint64_t bytes, DriverMemory what, std::string_view name) {
  if (heap->cursor + bytes > heap->end) {
    const uint64_t size = round_up(bytes, kAllocationGranularity);
    const uint64_t address = take(size, what, name);
    if (!address) return 0;
    heap->cursor = address;
    heap->end = address + size;
  }
  const uint64_t address = heap->cursor;
  heap->cursor += bytes;
  return address;
}

bool Footprint::add(Quantity* quantity, uint64_t bytes, DriverMemory what, std::string_view name) {
  const uint64_t units =
      round_up(quantity->used + bytes, kAllocationGranularity) / kAllocationGranularity;
  if (units > quantity->units) {
    const uint64_t more = (units - quantity->units) * kAllocationGranularity;
    if (!card_->charge_driver(more, what, name)) return false;
    quantity->units = units;
  }
  quantity->used += bytes;
  return true;
}

void Footprint::prepare_context() {
  std::lock_guard lock(mutex_);
  if (std::exchange(prepared_, true)) return;
  heap_address_ = addresses_->prepare_context();
  heap_bytes_ = kHeapOfContext;
}

bool Footprint::is_prepared() {
  std::lock_guard lock(mutex_);
  return prepared_;
}

uint64_t Footprint::place_variable(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  return grow(&data_, round_up(bytes ? bytes : 1, image::kVariableUnitBytes),
              DriverMemory::kVariables, "module variables");
}

// --- Streams and executable graphs ---

bool Footprint::take_stream_state(DriverMemory what) {
  if (idle_states_ == 0) return add(&stream_states_, kStreamStateBytes, what, "streams");
  idle_states_--;
  return true;
}

bool Footprint::charge_stream() {
  std::lock_guard lock(mutex_);
  if (!take_stream_state(DriverMemory::kStreams)) return false;
  if (idle_queues_ > 0) {
    idle_queues_--;
    return true;
  }
  // Seen with two devices: the room for one stream is gone where another device has a context too.
  const bool has_room = made_streams_ == 0 && addresses_->contexts() == 1;
  if (!has_room && !grow(&streams_, kStreamBytes, DriverMemory::kStreams, "streams")) {
    idle_states_++;
    return false;
  }
  made_streams_++;
  return true;
}

void Footprint::refund_stream() {
  std::lock_guard lock(mutex_);
  idle_states_++;
  idle_queues_++;
}

// One chain of nodes: a piece of the state pool and one of the queues'.
bool Footprint::take_branch() {
  if (!take_stream_state(DriverMemory::kGraphs)) return false;
  if (idle_branch_bytes_ == 0 && idle_queues_ > 0) {
    idle_queues_--;
    idle_branch_bytes_ = kStreamBytes;
  }
  if (idle_branch_bytes_ > 0) {
    idle_branch_bytes_ -= kBranchBytes;
    return true;
  }
  if (grow(&streams_, kBranchBytes, DriverMemory::kGraphs, "graphs")) return true;
  idle_states_++;
  return false;
}

void Footprint::give_back_branches(uint64_t branches) {
  idle_states_ += branches;
  idle_branch_bytes_ += branches * kBranchBytes;
}

// A piece for a graph's nodes; the number of its pool, -1 if there is no room.
int Footprint::take_node_piece(uint64_t bytes) {
  size_t pool = 0;
  while (pool < node_pools_.size() && node_pools_[pool] < bytes) pool++;
  if (pool == node_pools_.size()) {
    const uint64_t size = round_up(bytes, kAllocationGranularity);
    if (!card_->charge_driver(size, DriverMemory::kGraphs, "graphs")) return -1;
    node_pools_.push_back(size);
  }
  node_pools_[pool] -= bytes;
  return static_cast<int>(pool);
}

bool Footprint::charge_graph(GraphFootprint* footprint) {
  std::lock_guard lock(mutex_);
  uint64_t branches = 0;
  while (branches < footprint->branches && take_branch()) branches++;
  const uint64_t piece = piece_bytes(*footprint);
  const bool has_branches = branches == footprint->branches;
  if (has_branches && piece) footprint->pool = take_node_piece(piece);
  const bool has_piece = has_branches && (!piece || footprint->pool >= 0);
  const uint64_t large = footprint->large_kernels * kLargeNodeBytes;
  const bool has_large = has_piece && add(&large_nodes_, large, DriverMemory::kGraphs, "graphs");
  if (has_large && add(&node_lists_, list_bytes(*footprint), DriverMemory::kGraphs, "graphs"))
    return true;
  if (has_large) large_nodes_.used -= large;
  if (footprint->pool >= 0) node_pools_[static_cast<size_t>(footprint->pool)] += piece;
  footprint->pool = -1;
  give_back_branches(branches);
  return false;
}

void Footprint::refund_graph(const GraphFootprint& footprint) {
  std::lock_guard lock(mutex_);
  give_back_branches(footprint.branches);
  if (footprint.pool >= 0)
    node_pools_[static_cast<size_t>(footprint.pool)] += piece_bytes(footprint);
  large_nodes_.used -= footprint.large_kernels * kLargeNodeBytes;
  node_lists_.used -= list_bytes(footprint);
}

// --- Code ---

// Takes `bytes` once, and says in *has that it has them.
bool Footprint::charge_once(bool* has, uint64_t bytes, DriverMemory what, std::string_view name) {
  if (!*has) *has = card_->charge_driver(bytes, what, name);
  return *has;
}

// Machine code from the pool of it.
bool Footprint::take_code(uint64_t bytes, std::string_view name) {
  const uint64_t chunk = code_.take(bytes);
  if (!chunk || take(chunk, DriverMemory::kCode, name)) return true;
  code_.drop_last();
  return false;
}

// What the functions that the code calls need on the card, once per context.
bool Footprint::use_device_functions(const image::CodeInfo& code) {
  constexpr DriverMemory kWhat = DriverMemory::kDeviceFunctions;
  if ((code.uses_printf || code.uses_assert) && !has_printf_) {
    if (!charge_once(&has_printf_, image::kPrintfBytes, kWhat, "device-side printf")) return false;
    move_heap(kHeapForPrintf);
  }
  if (code.uses_assert && !has_assert_) {
    if (!charge_once(&has_assert_, image::kAssertBytes, kWhat, "device-side assertions"))
      return false;
    if (!take_code(image::kAssertCodeBytes, "device-side assertions")) return false;
  }
  return !code.uses_malloc ||
         charge_once(&has_malloc_, image::kMallocBytes, kWhat, "device-side malloc");
}

bool Footprint::add_module_code(const image::CodeInfo& code) {
  std::lock_guard lock(mutex_);
  if (!use_device_functions(code)) return false;
  const uint64_t bytes = image::resident_function_bytes(code);
  return !bytes || take_code(bytes, "device functions");
}

bool Footprint::add_kernel_code(const image::KernelInfo& kernel, std::string_view name) {
  std::lock_guard lock(mutex_);
  return take_code(image::resident_code_bytes(kernel), name);
}

// More local memory per thread than ever before: the card sets it aside for all threads that can
// run at once.
bool Footprint::add_local_memory(uint64_t bytes_per_thread, std::string_view name) {
  if (bytes_per_thread <= local_bytes_per_thread_) return true;
  const auto whole = [&](uint64_t bytes) {
    return round_up(bytes * threads_, kAllocationGranularity);
  };
  const uint64_t more = whole(bytes_per_thread) - whole(local_bytes_per_thread_);
  if (!card_->charge_driver(more, DriverMemory::kLocalMemory, name)) return false;
  local_bytes_per_thread_ = bytes_per_thread;
  move_heap(more);
  return true;
}

bool Footprint::prepare_launch(const image::KernelInfo& kernel, std::string_view name) {
  std::lock_guard lock(mutex_);
  if (!add_local_memory(kernel.local_bytes, name)) return false;
  if (kernel.calls_reporter && !std::exchange(has_report_buffer_, true))
    addresses_->allocate(round_up(image::kReportBufferBytes, kAllocationGranularity));
  return !kernel.calls_malloc || charge_once(&has_malloc_heap_, image::kMallocHeapBytes,
                                             DriverMemory::kDeviceFunctions, "device-side malloc");
}

bool Footprint::prepare_remote_domain() {
  std::lock_guard lock(mutex_);
  return charge_once(&has_remote_domain_, kAllocationGranularity, DriverMemory::kRemoteDomain,
                     "remote memory domain");
}

}  // namespace tonnage::gpu
