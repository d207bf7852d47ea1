#include "report/html_tree.h"

#include <algorithm>
#include <map>
#include <memory>

#include "analysis/timeline/breakdown.h"
#include "report/html_sites.h"

namespace tonnage::report {
namespace {

using Json = nlohmann::ordered_json;
using namespace analysis;

constexpr size_t kMaxDepth = 100;     // of a module's path
constexpr uint64_t kSmallest = 2000;  // a child needs this part of the root

struct Node {
  uint64_t bytes = 0, count = 0;
  uint64_t by_category[kCategoryCount] = {};
  std::map<std::string, std::unique_ptr<Node>> children;
  void add(const Allocation& allocation) {
    bytes += allocation.block_bytes;
    ++count;
    by_category[static_cast<size_t>(allocation.category)] += allocation.block_bytes;
  }
  Node& child(const std::string& name) {
    auto& at = children[name];
    if (!at) at = std::make_unique<Node>();
    return *at;
  }
};

Json to_value(const std::string& name, const Node& node, uint64_t total) {
  std::vector<const std::pair<const std::string, std::unique_ptr<Node>>*> order;
  for (const auto& entry : node.children) order.push_back(&entry);
  std::ranges::stable_sort(
      order, [](const auto* a, const auto* b) { return a->second->bytes > b->second->bytes; });
  Json children = Json::array();
  uint64_t small_bytes = 0, small_count = 0;
  for (const auto* entry : order) {
    if (entry->second->bytes < total / kSmallest) {
      small_bytes += entry->second->bytes;
      small_count += entry->second->count;
    } else {
      children.push_back(to_value(entry->first, *entry->second, total));
    }
  }
  if (small_count > 0)
    children.push_back(
        {{"n", "(smaller ones)"}, {"b", small_bytes}, {"c", small_count}, {"g", "unknown"}});
  const auto most = std::max_element(std::begin(node.by_category), std::end(node.by_category)) -
                    std::begin(node.by_category);
  Json out = {{"n", name},
              {"b", node.bytes},
              {"c", node.count},
              {"g", category_name(static_cast<Category>(most))}};
  if (!children.empty()) out["k"] = std::move(children);
  return out;
}

std::string frame_text(const record::Record& record, const abi::Frame& frame) {
  std::string file = record.string(frame.file);
  if (const size_t slash = file.rfind('/'); slash != std::string::npos)
    file = file.substr(slash + 1);
  std::string text = record.string(frame.function);
  if (!file.empty()) {
    if (!text.empty()) text += "  ";
    text += file;
    if (frame.line > 0) text.append(1, ':').append(std::to_string(frame.line));
  }
  return text.empty() ? "(no name)" : text;
}

const abi::MemoryEvent* event_of(const record::Record& record, const Allocation& allocation) {
  return allocation.before_history || allocation.alloc_event >= record.events.size()
             ? nullptr
             : &record.events[allocation.alloc_event];
}

}  // namespace

Json tree_by_stack(const Timeline& timeline, int device, uint64_t event) {
  const record::Record& record = timeline.record();
  std::map<uint32_t, std::vector<std::string>> frames;
  Node root;
  timeline.for_each_live(device, event, [&](const Allocation& allocation) {
    auto [at, made] = frames.try_emplace(allocation.stack);
    if (made) {
      for (const abi::Frame& frame : shown_frames(record, allocation.stack))
        at->second.push_back(frame_text(record, frame));
    }
    Node* node = &root;
    node->add(allocation);
    for (const std::string& name : at->second) (node = &node->child(name))->add(allocation);
    if (at->second.empty())
      (node = &node->child(allocation.before_history ? "(older than the history)" : "(no stack)"))
          ->add(allocation);
    const abi::MemoryEvent* made_by = event_of(record, allocation);
    if (made_by && made_by->op != abi::kNoId)
      node->child(record.string(made_by->op)).add(allocation);
  });
  return to_value("allocated", root, root.bytes);
}

Json tree_by_module(const Timeline& timeline, int device, uint64_t event) {
  const record::Record& record = timeline.record();
  Node root;
  bool any = false;
  timeline.for_each_live(device, event, [&](const Allocation& allocation) {
    Node* node = &root;
    node->add(allocation);
    const abi::MemoryEvent* made_by = event_of(record, allocation);
    // A parameter's name tells its module better than where it was made.
    std::string path = record.string(allocation.name);
    if (path.empty() && made_by) path = record.string(made_by->module);
    if (path.empty()) {
      node->child("(no module)").add(allocation);
      return;
    }
    any = true;
    size_t depth = 0;
    for (size_t at = 0; at <= path.size() && depth < kMaxDepth; ++depth) {
      const size_t dot = std::min(path.find('.', at), path.size());
      (node = &node->child(path.substr(at, dot - at)))->add(allocation);
      at = dot + 1;
    }
  });
  return any ? to_value("allocated", root, root.bytes) : Json(nullptr);
}

}  // namespace tonnage::report
