// Footprint: the memory that the driver itself takes on a card, for machine code, variables of
// modules, streams, executable graphs, the buffers of device-side printf and assert, and local
// memory. Measured on an H200 (tools/device, docs/exactness.md); the report marks it as modelled.
//
// It takes its addresses from the same ranges as allocations do. So it also shifts their addresses.
#pragma once

#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

#include "gpu/address_space.h"
#include "gpu/card_memory.h"
#include "image/image.h"
#include "image/resident.h"

namespace tonnage::gpu {

// What an executable graph takes while it is there; by tools/device/graphs.cpp. Memsets and host
// nodes take nothing.
struct GraphFootprint {
  uint64_t branches = 0;  // chains of nodes that can run at the same time
  uint64_t copies = 0;
  // By the size of their parameters.
  uint64_t small_kernels = 0, medium_kernels = 0, large_kernels = 0;
  int pool = -1;  // of the nodes; set by charge_graph

  void add_kernel(size_t parameter_bytes);
};

// One device's. Thread-safe. False, or address 0: the card is full, and has told so; nothing is
// taken then, and the call can be made again.
class Footprint {
 public:
  // `threads`: all that can run on the card at once.
  Footprint(CardMemory* card, AddressSpace* addresses, uint64_t threads)
      : card_(card), addresses_(addresses), threads_(threads) {}

  // What the driver holds when the device's first context has been made (part of
  // CardDesc::context_bytes): only addresses.
  void prepare_context();
  bool is_prepared();
  // An address for a module's variable.
  uint64_t place_variable(uint64_t bytes);
  // A stream's queue. Taken when it is created, given back with it.
  bool charge_stream();
  void refund_stream();
  bool charge_graph(GraphFootprint* footprint);
  void refund_graph(const GraphFootprint& footprint);
  // What a module's code needs besides its kernels comes to the card, with its first kernel.
  bool add_module_code(const image::CodeInfo& code);
  bool add_kernel_code(const image::KernelInfo& kernel, std::string_view name);
  // Before a kernel's first launch.
  bool prepare_launch(const image::KernelInfo& kernel, std::string_view name);
  // Before a launch whose writes go to other cards' memory (NCCL's on Hopper and later): the first
  // takes 2 MiB. Seen on an H200 with NCCL's first launch; that it is the domain is concluded from
  // what else such launches have in common with others, which take none.
  bool prepare_remote_domain();

 private:
  // Memory without device addresses of its own, taken by whole 2 MiB and never given back.
  struct Quantity {
    uint64_t used = 0, units = 1;
  };
  // A heap of the driver's own: grows by whole 2 MiB, gives nothing back.
  struct Heap {
    uint64_t cursor = 0, end = 0;
  };
  static constexpr uint64_t kStreamStateBytes = 48ull << 10;
  static constexpr uint64_t kNodesUsed = 53'000, kLargeNodesUsed = 256ull << 10;
  static constexpr uint64_t kDefaultStack = 1024;  // of local memory per thread; in every context

  void move_heap(uint64_t more_bytes);
  uint64_t take(uint64_t bytes, abi::DriverMemory what, std::string_view name);
  uint64_t grow(Heap* heap, uint64_t bytes, abi::DriverMemory what, std::string_view name);
  bool add(Quantity* quantity, uint64_t bytes, abi::DriverMemory what, std::string_view name);
  bool take_stream_state(abi::DriverMemory what);
  bool take_branch();
  void give_back_branches(uint64_t branches);
  int take_node_piece(uint64_t bytes);
  bool charge_once(bool* has, uint64_t bytes, abi::DriverMemory what, std::string_view name);
  bool take_code(uint64_t bytes, std::string_view name);
  bool use_device_functions(const image::CodeInfo& code);
  bool add_local_memory(uint64_t bytes_per_thread, std::string_view name);

  CardMemory* card_;
  AddressSpace* addresses_;
  uint64_t threads_;
  std::mutex mutex_;
  uint64_t heap_address_ = 0, heap_bytes_ = 0;  // the driver's own block
  image::ChunkPool code_{image::kFirstCodeChunkFree};
  Heap data_, streams_;
  std::vector<uint64_t> node_pools_{kAllocationGranularity - kNodesUsed};  // bytes left in each
  // A context has used seven pieces of the pool of streams' states: of the 131 streams that PyTorch
  // and NCCL make on an H200, the 36th, one of the 70s or 80s, and the 122nd took 2 MiB.
  Quantity stream_states_{7 * kStreamStateBytes, 1}, large_nodes_{kLargeNodesUsed, 1}, node_lists_;
  // What destroyed streams and graphs leave, used again: a queue's place can become several
  // branches'.
  uint64_t idle_states_ = 0, idle_queues_ = 0, idle_branch_bytes_ = 0;
  uint64_t made_streams_ = 0;  // places of streams, the one that every context has included
  bool has_printf_ = false, has_assert_ = false, has_malloc_ = false, has_report_buffer_ = false,
       has_malloc_heap_ = false, prepared_ = false, has_remote_domain_ = false;
  uint64_t local_bytes_per_thread_ = kDefaultStack;
};

}  // namespace tonnage::gpu
