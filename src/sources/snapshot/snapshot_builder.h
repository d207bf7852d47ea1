// The pickle machine's visitor that makes a Record: events and segments flow into it while they are
// parsed.
#pragma once

#include <array>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "record/record.h"
#include "sources/snapshot/pickle_machine.h"
#include "sources/snapshot/snapshot_keys.h"

namespace tonnage::sources::snapshot {

class Builder final : public pickle::Visitor {
 public:
  // known_size: bytes that the whole pickle has, 0 if unknown; only to reserve memory.
  explicit Builder(uint64_t known_size) : known_size_(known_size) {}

  void attach(pickle::Heap& heap);  // before the machine runs
  Role list_role(pickle::Machine& machine, size_t position) override;
  uint64_t dict_items(pickle::Machine& machine, Role role, uint64_t token,
                      const pickle::Value* items, size_t count) override;
  void list_items(pickle::Machine& machine, Role role, const pickle::Value* items,
                  size_t count) override;

  // Takes what the machine left: settings, and lists that did not stream. Error: not a snapshot.
  Result<record::Record> finish(pickle::Value root, const std::string& source, bool truncated);

 private:
  enum RoleKind : uint8_t {
    kSegmentList = 2,
    kAnnotationList = 3,
    kTraceList = pickle::kRoleEarly
  };
  static constexpr uint8_t kFrameToken = 2, kStackToken = 3;

  struct DeviceCount {
    uint64_t allocs = 0, frees = 0, events = 0;
  };

  uint64_t new_event(uint8_t device);
  void set_event(abi::MemoryEvent& event, const pickle::Value* items, size_t count);
  void set_action(abi::MemoryEvent& event, uint32_t action);
  void add_segment(const pickle::Value* items, size_t count);
  void add_block(record::SegmentState& segment, const pickle::Object& dict, uint64_t& next_address);
  void add_annotation(const pickle::Value* items, size_t count);
  void add_dict(RoleKind kind, uint64_t tag, const pickle::Object& dict);
  void add_list(RoleKind kind, uint64_t tag, pickle::Value list);
  void read_settings(const pickle::Object& dict);
  uint32_t stack_of(pickle::Value frames);
  uint32_t intern_stack(const std::vector<uint32_t>& frames);
  uint32_t frame_of(pickle::Value frame);
  uint32_t record_string(pickle::Value text);
  std::string text_of(pickle::Value value) const;
  void finish_events(bool truncated);
  void note_old_blocks();

  pickle::Heap* heap_ = nullptr;
  static constexpr uint64_t kNoTime = UINT64_MAX;
  static constexpr uint64_t kMaxTimeUs = uint64_t{1} << 52;  // beyond the year 140000: not a time

  uint64_t known_size_, first_event_offset_ = 0;
  uint64_t base_us_ = kNoTime;  // of the first event
  int64_t earliest_us_ = 0;     // relative to it
  record::Record record_;
  std::vector<abi::MemoryEvent> annotations_;
  std::vector<uint64_t> old_frees_;  // events of the one-word "free" of old versions
  std::array<DeviceCount, 256> counts_{};
  std::vector<uint32_t> string_ids_;  // pickle string -> record string + 1
  std::vector<abi::Frame> frames_;
  std::unordered_map<uint64_t, std::vector<uint32_t>> frame_index_;  // hash of content -> frames
  std::vector<uint32_t> stack_slots_;      // open addressing: stack id, 0 = free
  std::vector<uint64_t> stack_hashes_{0};  // by stack id
  std::vector<uint32_t> scratch_frames_;
  uint64_t appended_events_ = 0;  // events whose dict has reached its list
  uint64_t odd_items_ = 0, bad_segments_ = 0;
  std::map<std::string, uint64_t> unknown_actions_;
};

}  // namespace tonnage::sources::snapshot
