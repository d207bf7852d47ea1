// Perfetto's own trace format, streamed: no limit, and the file never lies in memory as a whole.
//
// A group is a track with tracks in it: a counter for each figure and category; for blocks and
// segments a track for each line, in as many rows as there are of that line at once; the steps,
// phases and annotations of threads.
#pragma once

#include <map>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "report/sink.h"
#include "report/trace/format.h"
#include "report/trace/proto.h"

namespace tonnage::report::trace {

class PerfettoFormat : public Format {
 public:
  explicit PerfettoFormat(const Sink& sink) : out_(sink) {}

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
  using Track = uint64_t;  // its uuid; 0: none
  struct Counter {
    Track track = 0;
    uint64_t value = 0;
  };
  struct Counters {
    Counter allocated, reserved, device, category[analysis::kCategoryCount];
    Track categories = 0;  // around the last
  };
  // The rows of a track whose slices may cross: when the last slice of each ends.
  using Row = std::pair<uint64_t, Track>;
  using Rows = std::priority_queue<Row, std::vector<Row>, std::greater<>>;

  // Strings that repeat are written once and then named by a number.
  struct Interned {
    uint32_t field;  // of InternedData
    std::unordered_map<std::string, uint64_t> numbers;
  };
  uint64_t intern(Interned& interned, const std::string& text);
  uint64_t intern_stack(const StackText& stack);

  Track make_track(Track parent, const std::string& name, uint64_t rank, bool counter = false,
                   bool by_name = false);
  void count(Counter& counter, Track parent, const std::string& name, uint64_t rank, uint64_t ns,
             uint64_t value);
  void write_event(Track track, uint32_t type, uint64_t ns, const char* category,
                   const std::string* name, Arguments arguments);
  void add_argument(const Argument& argument);
  void write_packet(Message& packet);

  SinkBuffer out_;
  Message packet_, event_, inner_, interned_data_, written_;
  Interned categories_{1, {}}, names_{2, {}}, argument_names_{3, {}}, strings_{29, {}};
  std::unordered_map<uint32_t, uint64_t> stacks_;
  std::map<int, Track> groups_;
  std::map<int, Counters> counters_;
  std::map<std::pair<int, int>, Track> tracks_;
  std::map<std::pair<int, std::string>, Track> folders_, instants_;
  std::map<std::tuple<int, std::string, std::string>, Rows> rows_;
  std::vector<std::pair<std::string, std::string>> facts_;
  Track next_track_ = 1;
  bool begun_ = false;
};

}  // namespace tonnage::report::trace
