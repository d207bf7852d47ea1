#include "report/trace/json_format.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tonnage::report::trace {

using namespace analysis;

namespace {

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

template <class... Cases>
struct Match : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Match(Cases...) -> Match<Cases...>;

}  // namespace

JsonFormat::JsonFormat(const Sink& sink, const JsonLimits& limits) : out_(sink), limits_(limits) {
  out_.put("{\"traceEvents\":[");
}

bool JsonFormat::finish() {
  out_.put("\n],\"displayTimeUnit\":\"ms\",\"otherData\":{\"made_by\":\"tonnage\"");
  for (const auto& [key, value] : facts_) out_.print(",{}:{}", json_text(key), json_text(value));
  out_.put("}}\n");
  return out_.flush();
}

void JsonFormat::begin(char phase, int group, int track, uint64_t ns) {
  out_.print("{}\n{{\"ph\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{}.{:03}", first_ ? "" : ",", phase,
             group, track, ns / 1000, ns % 1000);
  first_ = false;
}

void JsonFormat::name_track(const char* what, int group, int track, const std::string& name,
                            int order) {
  begin('M', group, track, 0);
  out_.print(",\"name\":\"{}_name\",\"args\":{{\"name\":{}}}}}", what, json_text(name));
  begin('M', group, track, 0);
  out_.print(",\"name\":\"{}_sort_index\",\"args\":{{\"sort_index\":{}}}}}", what, order);
}

void JsonFormat::group(int group, const std::string& name) {
  name_track("process", group, 0, name, group);
}

void JsonFormat::track(int group, int track, const std::string& name, int order) {
  name_track("thread", group, track, name, order);
}

void JsonFormat::fact(std::string name, std::string value) {
  facts_.emplace_back(std::move(name), std::move(value));
}

void JsonFormat::counters(int group, uint64_t ns, const CategoryPoint& point,
                          const CounterKinds& kinds) {
  if (kinds.allocator) {
    begin('C', group, 0, ns);
    out_.print(",\"name\":\"allocated\",\"args\":{{\"bytes\":{}}}}}", point.allocated_bytes);
    begin('C', group, 0, ns);
    out_.put(",\"name\":\"allocated by category\",\"args\":{");
    bool comma = false;
    for (const Category category : kRowOrder) {
      if (!kinds.category[static_cast<size_t>(category)]) continue;
      out_.print("{}\"{}\":{}", comma ? "," : "", category_name(category),
                 point.by_category[static_cast<size_t>(category)]);
      comma = true;
    }
    out_.put("}}");
    begin('C', group, 0, ns);
    out_.print(",\"name\":\"reserved\",\"args\":{{\"bytes\":{}}}}}", point.reserved_bytes);
  }
  if (!kinds.device) return;
  begin('C', group, 0, ns);
  out_.print(",\"name\":\"device\",\"args\":{{\"bytes\":{}}}}}", point.device_bytes);
}

const std::string& JsonFormat::quoted_stack(const StackText& stack) {
  auto [at, made] = stacks_.try_emplace(stack.number);
  if (made) at->second = json_text(stack.text);
  return at->second;
}

void JsonFormat::put_arguments(Arguments arguments) {
  bool comma = false;
  for (const Argument& argument : arguments) {
    out_.print("{}\"{}\":", comma ? "," : "", argument.name);
    comma = true;
    std::visit(Match{[&](uint64_t value) { out_.print("{}", value); },
                     [&](bool value) { out_.print("{}", value); },
                     [&](Address address) { out_.print("\"0x{:x}\"", address.value); },
                     [&](const StackText& stack) { out_.put(quoted_stack(stack)); },
                     [&](std::string_view text) { out_.put(json_text(text)); }},
               argument.value);
  }
}

// An asynchronous slice: slices of one name share a lane in the viewers.
void JsonFormat::crossing_slice(int group, const char* category, const std::string& name,
                                uint64_t from_ns, uint64_t to_ns, Arguments arguments) {
  const uint64_t id = ++next_id_;
  const std::string title = json_text(name);
  begin('b', group, 0, from_ns);
  out_.print(",\"cat\":\"{}\",\"id\":\"0x{:x}\",\"name\":{},\"args\":{{", category, id, title);
  put_arguments(arguments);
  out_.put("}}");
  begin('e', group, 0, std::max(from_ns, to_ns));
  out_.print(",\"cat\":\"{}\",\"id\":\"0x{:x}\",\"name\":{}}}", category, id, title);
}

void JsonFormat::slice(int group, int track, const char* category, const std::string& name,
                       uint64_t from_ns, uint64_t to_ns) {
  begin('X', group, track, from_ns);
  const uint64_t ns = to_ns - from_ns;
  out_.print(",\"dur\":{}.{:03},\"cat\":\"{}\",\"name\":{}}}", ns / 1000, ns % 1000, category,
             json_text(name));
}

void JsonFormat::instant(int group, const char* category, const std::string& name, uint64_t ns,
                         Arguments arguments) {
  begin('i', group, 0, ns);
  // A failure is drawn through all tracks.
  out_.print(",\"s\":\"{}\",\"cat\":\"{}\",\"name\":{},\"args\":{{",
             std::string_view(category) == "out_of_memory" ? "g" : "t", category, json_text(name));
  put_arguments(arguments);
  out_.put("}}");
}

}  // namespace tonnage::report::trace
