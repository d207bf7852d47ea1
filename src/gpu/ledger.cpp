#include "gpu/ledger.h"

#include <algorithm>

namespace tonnage::gpu {

class Ledger::Alone {
 public:
  explicit Alone(Ledger& ledger) : ledger_(ledger), lock_(ledger.mutex_) { ledger_.watch_->lock(); }
  ~Alone() { ledger_.watch_->unlock(); }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

 private:
  Ledger& ledger_;
  std::lock_guard<std::mutex> lock_;
};

bool Ledger::attach(abi::Session* session, ProcessWatch* watch, int32_t pid) {
  session_ = session;
  watch_ = watch;
  const Alone alone(*this);
  for (int i = 0; i < abi::kMaxProcesses; i++) {
    abi::ProcessAccount& process = session_->processes[i];
    // A slot with our number is that of the program we were before exec: its memory is gone.
    const int32_t owner = process.pid.load();
    if (owner != 0 && owner != pid && watch_->slot_lives(i, owner)) continue;
    if (!watch_->hold_slot(i)) continue;
    if (owner != 0) watch_->tell_gone(identity_of(i));
    clear(i);
    process.generation.fetch_add(1);
    process.pid.store(pid);
    session_->drivers_loaded.fetch_add(1);
    slot_ = i;
    session_->slots_used.store(std::max(session_->slots_used.load(), i + 1));
    return true;
  }
  return false;
}

void Ledger::clear(int slot) {
  abi::ProcessAccount& process = session_->processes[slot];
  for (auto& bytes : process.used_bytes) bytes.store(0);
  process.pid.store(0);
}

uint64_t Ledger::sum_locked(int device) {
  uint64_t sum = 0;
  const int slots = std::clamp(session_->slots_used.load(), 0, abi::kMaxProcesses);
  for (int i = 0; i < slots; i++) {
    abi::ProcessAccount& process = session_->processes[i];
    const uint64_t bytes = process.used_bytes[device].load();
    if (bytes == 0) continue;
    if (i == slot_ || watch_->slot_lives(i, process.pid.load())) {
      sum += bytes;
      continue;
    }
    watch_->tell_gone(identity_of(i));
    clear(i);
  }
  return sum;
}

bool Ledger::charge(int device, uint64_t bytes) {
  if (slot_ < 0) return false;
  const uint64_t limit = total(device);
  if (bytes > limit) return false;
  const Alone alone(*this);
  const uint64_t before = sum_locked(device);
  if (before > limit - bytes) return false;
  session_->processes[slot_].used_bytes[device].fetch_add(bytes);
  auto& peak = session_->peak_bytes[device];
  peak.store(std::max(peak.load(), before + bytes));
  return true;
}

void Ledger::refund(int device, uint64_t bytes) {
  if (slot_ < 0) return;
  const Alone alone(*this);
  session_->processes[slot_].used_bytes[device].fetch_sub(bytes);
}

// A slot and how many processes had it before: another process in the same slot is another one.
uint64_t Ledger::identity_of(int slot) const {
  return uint64_t{session_->processes[slot].generation.load()} << 16 |
         static_cast<uint64_t>(slot + 1);
}

abi::ProcessAccount* Ledger::living(uint64_t identity) {
  const int slot = static_cast<int>(identity & 0xffff) - 1;
  if (slot < 0 || slot >= abi::kMaxProcesses) return nullptr;
  abi::ProcessAccount& process = session_->processes[slot];
  if (process.generation.load() != static_cast<uint32_t>(identity >> 16)) return nullptr;
  return watch_->slot_lives(slot, process.pid.load()) ? &process : nullptr;
}

void Ledger::share(SharedCharge& charge) {
  if (slot_ < 0) return;
  charge.holders[0].store(identity());
  charge.charged.store(identity());
}

bool Ledger::join(SharedCharge& charge) {
  if (slot_ < 0) return false;
  const Alone alone(*this);
  std::atomic<uint64_t>* place = nullptr;
  bool is_held = false;
  for (auto& holder : charge.holders) {
    if (holder.load() != 0 && living(holder.load()) != nullptr)
      is_held = true;
    else if (place == nullptr)
      place = &holder;
  }
  if (!is_held || place == nullptr) return false;
  place->store(identity());
  return true;
}

void Ledger::leave(SharedCharge& charge, int device, uint64_t bytes) {
  if (slot_ < 0) return;
  const Alone alone(*this);
  const uint64_t own = identity();
  for (auto& holder : charge.holders) {
    if (holder.load() != own) continue;
    holder.store(0);
    break;
  }
  if (charge.charged.load() != own) return;
  for (auto& holder : charge.holders) {
    abi::ProcessAccount* heir = holder.load() == 0 ? nullptr : living(holder.load());
    if (heir == nullptr) continue;
    charge.charged.store(holder.load());
    // Another process's share first: if we are killed between the two, ours goes as a whole.
    if (holder.load() != own) {
      heir->used_bytes[device].fetch_add(bytes);
      session_->processes[slot_].used_bytes[device].fetch_sub(bytes);
    }
    return;
  }
  charge.charged.store(0);
  session_->processes[slot_].used_bytes[device].fetch_sub(bytes);
}

uint64_t Ledger::used(int device) {
  const Alone alone(*this);
  return sum_locked(device);
}

uint64_t Ledger::free(int device) {
  const uint64_t in_use = used(device), all = total(device);
  return in_use < all ? all - in_use : 0;
}

uint64_t Ledger::used_by_this_process(int device) const {
  return slot_ < 0 ? 0 : session_->processes[slot_].used_bytes[device].load();
}

uint64_t Ledger::total(int device) const { return session_->devices[device].total_bytes; }

}  // namespace tonnage::gpu
