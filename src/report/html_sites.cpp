#include "report/html_sites.h"

#include "analysis/diagnosis/findings.h"
#include "analysis/timeline/stacks.h"

namespace tonnage::report {

using Json = nlohmann::ordered_json;
using namespace analysis;

namespace {
constexpr size_t kMaxDepth = 100;
}

std::vector<abi::Frame> shown_frames(const record::Record& record, uint32_t stack) {
  std::vector<abi::Frame> own, all;
  if (stack >= record.stacks.size()) return all;
  const auto& frames = record.stacks[stack];
  for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame) {
    const FileOwner owner = owner_of(record.string(frame->file));
    const bool shown = owner == FileOwner::kUser || owner == FileOwner::kPackage;
    if (shown && own.size() < kMaxDepth) own.push_back(*frame);
    if (all.size() < kMaxDepth) all.push_back(*frame);
  }
  return own.empty() ? all : own;
}

uint32_t OriginTables::text(const std::string& value) {
  const auto [at, made] = text_index_.try_emplace(value, static_cast<uint32_t>(text_index_.size()));
  if (made) strings_.push_back(value);
  return at->second;
}

uint32_t OriginTables::frame(const abi::Frame& frame) {
  const record::Record& record = timeline_.record();
  const std::array<uint32_t, 3> key = {text(record.string(frame.function)),
                                       text(record.string(frame.file)), frame.line};
  const auto [at, made] = frame_index_.try_emplace(key, static_cast<uint32_t>(frame_index_.size()));
  if (made) {
    for (const uint32_t part : key) frames_.push_back(part);
  }
  return at->second;
}

uint32_t OriginTables::stack_node(uint32_t stack) {
  const auto [known, is_new] = stack_index_.try_emplace(stack, 0);
  if (!is_new) return known->second;
  uint32_t node = 0;
  for (const abi::Frame& shown : shown_frames(timeline_.record(), stack)) {
    const uint32_t index = frame(shown);
    const auto [at, made] =
        node_index_.try_emplace({node, index}, static_cast<uint32_t>(node_index_.size() + 1));
    if (made) {
      stacks_.push_back(node);
      stacks_.push_back(index);
    }
    node = at->second;
  }
  stack_index_[stack] = node;
  return node;
}

int64_t SiteTable::of(uint32_t event, uint32_t stack, uint32_t name, const std::string& kind) {
  const record::Record& record = tables_.timeline().record();
  uint32_t op = abi::kNoId, module = abi::kNoId;
  if (event < record.events.size()) {
    op = record.events[event].op;
    module = record.events[event].module;
  }
  // Steps repeat themselves: texts are made once for each combination.
  Key key{};
  const uint64_t combination = uint64_t{op} << 32 | module;
  auto& by_stack = known_[combination];
  const auto found = by_stack.find({stack, name});
  if (found != by_stack.end() && kind.empty()) {
    key = found->second;
  } else {
    const Site site = tables_.timeline().stacks().site(stack, op, module);
    key = {tables_.text(site_text(site)), tables_.stack_node(stack), tables_.text(site.module),
           tables_.text(site.op), tables_.text(kind.empty() ? record.string(name) : kind)};
    if (kind.empty()) by_stack[{stack, name}] = key;
  }
  if (key == Key{}) return -1;
  const auto [at, made] = index_.try_emplace(key, static_cast<int64_t>(rows_.size()));
  if (made) rows_.push_back(key);
  return at->second;
}

Json SiteTable::to_json() const {
  static constexpr const char* kColumns[] = {"text", "stack", "module", "op", "name"};
  Json out = Json::object();
  for (size_t column = 0; column < std::size(kColumns); ++column) {
    Json values = Json::array();
    for (const Key& row : rows_) values.push_back(row[column]);
    out[kColumns[column]] = std::move(values);
  }
  return out;
}

}  // namespace tonnage::report
