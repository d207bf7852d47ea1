// Chrome's trace format, as JSON: for chrome://tracing, Perfetto and whatever else reads it.
// Viewers load the whole file, so it has limits.
#pragma once

#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "report/sink.h"
#include "report/trace/format.h"

namespace tonnage::report::trace {

struct JsonLimits {
  size_t counter_points = 200'000;
  size_t blocks = 100'000;  // of one device
};

class JsonFormat : public Format {
 public:
  JsonFormat(const Sink& sink, const JsonLimits& limits);

  size_t most_counter_points() const override { return limits_.counter_points; }
  size_t most_blocks() const override { return limits_.blocks; }
  void begin_source() override { stacks_.clear(); }
  void group(int group, const std::string& name) override;
  void counters(int group, uint64_t ns, const analysis::CategoryPoint& point,
                const CounterKinds& kinds) override;
  void crossing_slice(int group, const char* category, const std::string& name, uint64_t from_ns,
                      uint64_t to_ns, Arguments arguments) override;
  void track(int group, int track, const std::string& name, int order) override;
  void slice(int group, int track, const char* category, const std::string& name, uint64_t from_ns,
             uint64_t to_ns) override;
  void instant(int group, const char* category, const std::string& name, uint64_t ns,
               Arguments arguments) override;
  void fact(std::string name, std::string value) override;
  bool ok() const override { return out_.ok(); }
  bool finish() override;

 private:
  void begin(char phase, int group, int track, uint64_t ns);
  void name_track(const char* what, int group, int track, const std::string& name, int order);
  void put_arguments(Arguments arguments);
  const std::string& quoted_stack(const StackText& stack);

  SinkBuffer out_;
  JsonLimits limits_;
  std::unordered_map<uint32_t, std::string> stacks_;  // quoted
  std::vector<std::pair<std::string, std::string>> facts_;
  uint64_t next_id_ = 0;
  bool first_ = true;
};

}  // namespace tonnage::report::trace
