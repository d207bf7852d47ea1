// Memory that processes of a session share (exported handles of cuMemCreate and of pools).
//
// A shareable handle is a file descriptor of a sealed memfd. Its content names the memory, and says
// which processes hold it. So the card's ledger has the memory once, until all have freed it.
#pragma once

#include <atomic>
#include <cstdint>

#include "driver/state.h"

namespace tonnage::driver {

struct SharedBlock {
  static constexpr uint32_t kMagic = 0x424d4756;  // "VGMB"
  enum Kind : uint32_t { kMemory = 1, kPool = 2 };

  uint32_t magic;
  uint32_t struct_bytes;
  uint32_t kind;
  int32_t owner_pid;
  uint64_t session_start_ns;  // a handle of another session is refused
  int32_t physical;           // device of the session
  int32_t reserved;
  uint64_t size_bytes;
  uint64_t id;  // the owner's
  CUmemAllocationProp prop;
  CUmemPoolProps pool_props;
  gpu::SharedCharge charge;
};

// A new block held once, mapped; *fd is its descriptor (close-on-exec). Null if the system refuses.
SharedBlock* make_shared_block(SharedBlock::Kind kind, int* fd);
// Maps a block that came through a descriptor, and holds it. Null if the descriptor is not one of
// this session's.
SharedBlock* open_shared_block(SharedBlock::Kind kind, int fd);
// Releases it. The last process takes the memory off the ledger.
void drop_shared_block(SharedBlock* block);
// The visible device with this place in the session; null if it is hidden from this process.
Device* device_at(int physical);

}  // namespace tonnage::driver
