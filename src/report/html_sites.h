// Where allocations come from, for the page. Each string, frame and stack is stored once. Internal
// to the report room.
//
// One set of tables for a record, all arrays of numbers:
//   strings  texts; 0 is ""
//   frames   function, file, line of each frame (strings by index)
//   stacks   a tree: parent and frame of each node; node 0 is the root, outside of all frames
//   sites    by device: {"text", "stack", "module", "op", "name"}, one array each; text is the line
//            as the reports write it, stack a node of the tree (the innermost frame)
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>

#include "analysis/timeline/timeline.h"

namespace tonnage::report {

class OriginTables {
 public:
  explicit OriginTables(const analysis::Timeline& timeline) : timeline_(timeline) { text(""); }
  const analysis::Timeline& timeline() const { return timeline_; }

  uint32_t text(const std::string& value);
  uint32_t stack_node(uint32_t stack);

  const nlohmann::ordered_json& strings() const { return strings_; }
  const nlohmann::ordered_json& frames() const { return frames_; }
  const nlohmann::ordered_json& stacks() const { return stacks_; }

 private:
  uint32_t frame(const abi::Frame& frame);

  const analysis::Timeline& timeline_;
  std::unordered_map<std::string, uint32_t> text_index_;
  std::map<std::array<uint32_t, 3>, uint32_t> frame_index_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> node_index_;  // parent, frame
  std::unordered_map<uint32_t, uint32_t> stack_index_;
  nlohmann::ordered_json strings_ = nlohmann::ordered_json::array();
  nlohmann::ordered_json frames_ = nlohmann::ordered_json::array();
  nlohmann::ordered_json stacks_ = nlohmann::ordered_json::array({0, 0});
};

// The sites of one device.
class SiteTable {
 public:
  explicit SiteTable(OriginTables& tables) : tables_(tables) {}
  // event: that made it, kNever where it is older than the history. name: a string of the record.
  // kind: of a device allocation, "" else. -1: nothing is known.
  int64_t of(uint32_t event, uint32_t stack, uint32_t name, const std::string& kind = "");
  nlohmann::ordered_json to_json() const;

 private:
  using Key = std::array<uint32_t, 5>;  // as the columns
  OriginTables& tables_;
  std::map<Key, int64_t> index_;
  std::unordered_map<uint64_t, std::map<std::pair<uint32_t, uint32_t>, Key>> known_;
  std::vector<Key> rows_;
};

// The frames of a stack that a reader looks for, outermost first: of the user's and installed
// packages' code; all frames if there are no such. Of runaway recursion only the outer part.
std::vector<abi::Frame> shown_frames(const record::Record& record, uint32_t stack);

}  // namespace tonnage::report
