// The ledger: how much memory of each card is in use, and by which process. All processes of a
// session share it, inside the session file.
//
// Each process has a slot with what it holds. The memory in use on a card is the sum over the slots
// of living processes. There is no second figure. So nothing has to be corrected after a process
// was killed in the middle of a change.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "abi/session.h"

namespace tonnage::gpu {

// What the ledger asks the system: who lives, and to be alone for a moment.
class ProcessWatch {
 public:
  virtual ~ProcessWatch() = default;
  // This process lives in `slot` from now on; false: another one does.
  virtual bool hold_slot(int slot) = 0;
  virtual bool slot_lives(int slot, int32_t pid) = 0;
  // Between processes; ends by itself when the holder dies.
  virtual void lock() = 0;
  virtual void unlock() = 0;
  // The process with this identity is dead, and its memory is given back. Called while the ledger
  // is locked, before anybody can take that memory; twice if the caller dies at once.
  virtual void tell_gone(uint64_t identity) = 0;
};

// Memory that several processes hold, in memory that they share. One of them is charged for it.
struct SharedCharge {
  static constexpr int kMostHolders = 64;
  std::atomic<uint64_t> charged;  // an identity of the ledger's; 0: nobody
  std::atomic<uint64_t> holders[kMostHolders];
};

// Thread-safe. Devices are indices of the session.
class Ledger {
 public:
  // `pid` is this process's. False: every slot belongs to a process that lives.
  bool attach(abi::Session* session, ProcessWatch* watch, int32_t pid);
  // Adds to what this process holds if the card has room for it; false: nothing changed.
  bool charge(int device, uint64_t bytes);
  void refund(int device, uint64_t bytes);
  // This process has charged the memory and shares it from now on.
  void share(SharedCharge& charge);
  // This process holds it too. False: nobody does any more, or too many.
  bool join(SharedCharge& charge);
  // This process lets go; if it was charged, another holder is now, or nobody.
  void leave(SharedCharge& charge, int device, uint64_t bytes);

  uint64_t used(int device);
  uint64_t free(int device);
  uint64_t used_by_this_process(int device) const;
  uint64_t total(int device) const;
  // Of this process, among all that ever had a slot; 0: it has none.
  uint64_t identity() const { return slot_ < 0 ? 0 : identity_of(slot_); }
  // A forked child holds nothing.
  void forget_slot() { slot_ = -1; }

 private:
  class Alone;
  uint64_t sum_locked(int device);  // takes back what the dead held
  void clear(int slot);
  uint64_t identity_of(int slot) const;
  abi::ProcessAccount* living(uint64_t identity);

  abi::Session* session_ = nullptr;
  ProcessWatch* watch_ = nullptr;
  std::mutex mutex_;
  int slot_ = -1;
};

}  // namespace tonnage::gpu
