#include "record/record_decoder.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "record/alloc_conf.h"

namespace tonnage::record {

using abi::EventKind;
using nlohmann::json;

namespace {

constexpr uint32_t kMaxSessionJsonBytes = 1u << 20;
constexpr int kMaxJsonDepth = 16;
constexpr size_t kMaxFactKeyBytes = 64;
constexpr size_t kMaxFacts = 1000;
constexpr size_t kMaxErrors = 64;
constexpr size_t kMaxRemedies = 32;
constexpr size_t kMaxDevices = 256;  // Event::device is one byte

std::optional<json> parse_object(std::span<const uint8_t> text) {
  if (text.size() > kMaxSessionJsonBytes) return std::nullopt;
  bool too_deep = false;
  const auto check = [&](int depth, json::parse_event_t, json&) {
    too_deep |= depth > kMaxJsonDepth;
    return !too_deep;
  };
  json parsed = json::parse(text.begin(), text.end(), check, /*allow_exceptions=*/false);
  if (too_deep || !parsed.is_object()) return std::nullopt;
  return parsed;
}

std::string text_of(const json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

uint64_t number_of(const json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number_unsigned() ? at->get<uint64_t>() : 0;
}

bool flag_of(const json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_boolean() && at->get<bool>();
}

int int_of(const json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number_integer() ? static_cast<int>(at->get<int64_t>()) : 0;
}

const json& array_of(const json& object, const char* key) {
  static const json none = json::array();
  const auto at = object.find(key);
  return at != object.end() && at->is_array() ? *at : none;
}

CommandError error_of(const json& entry) {
  CommandError error;
  error.pid = static_cast<int64_t>(number_of(entry, "pid"));
  error.unix_ns = number_of(entry, "unix_ns");
  error.type = text_of(entry, "type");
  error.text = text_of(entry, "text");
  error.file = text_of(entry, "file");
  error.function = text_of(entry, "function");
  error.line = static_cast<uint32_t>(number_of(entry, "line"));
  error.memory = flag_of(entry, "memory");
  error.interrupted = flag_of(entry, "interrupted");
  return error;
}

std::optional<Remedy::Kind> remedy_kind(const json& name) {
  if (name == "smaller_batch") return Remedy::Kind::kSmallerBatch;
  if (name == "checkpointing") return Remedy::Kind::kCheckpointing;
  if (name == "logits_in_pieces") return Remedy::Kind::kLogitsInPieces;
  return std::nullopt;  // of a later version
}

Remedy remedy_of(const json& entry) {
  Remedy remedy;
  for (const json& name : array_of(entry, "kinds")) {
    if (const auto kind = remedy_kind(name); kind && remedy.kinds.size() < 8)
      remedy.kinds.push_back(*kind);
  }
  remedy.enough = flag_of(entry, "enough");
  remedy.needs_bytes = number_of(entry, "needs_bytes");
  remedy.was_run = flag_of(entry, "was_run");
  remedy.batch = number_of(entry, "batch");
  remedy.too_large = number_of(entry, "too_large");
  remedy.blocks = static_cast<uint32_t>(number_of(entry, "blocks"));
  if (const auto at = entry.find("batch_share"); at != entry.end() && at->is_number())
    remedy.batch_share = at->get<double>();
  return remedy;
}

void read_need(const json& need, TrueNeed& out) {
  out.known = true;
  out.repeats = flag_of(need, "repeats");
  out.takes_share = flag_of(need, "takes_share");
  out.steps = static_cast<uint32_t>(number_of(need, "steps"));
  out.wall_ns = number_of(need, "wall_ns");
  for (const json& entry : array_of(need, "devices")) {
    if (!entry.is_object() || out.devices.size() >= kMaxDevices) continue;
    out.devices.push_back({int_of(entry, "device"), number_of(entry, "device_bytes"),
                           number_of(entry, "allocated_bytes"),
                           number_of(entry, "reserved_bytes")});
  }
  for (const json& entry : array_of(need, "remedies")) {
    if (!entry.is_object() || out.remedies.size() >= kMaxRemedies) continue;
    if (Remedy remedy = remedy_of(entry); !remedy.kinds.empty())
      out.remedies.push_back(std::move(remedy));
  }
}

void read_end(const json& end, CommandEnd& out) {
  out.known = true;
  out.exit_code = int_of(end, "exit_code");
  out.signal = int_of(end, "signal");
  out.wall_ns = number_of(end, "wall_ns");
  if (const auto limit = end.find("host_limit"); limit != end.end() && limit->is_object())
    out.host_limit = {text_of(*limit, "name"), number_of(*limit, "bytes")};
  for (const json& entry : array_of(end, "errors")) {
    if (entry.is_object() && out.errors.size() < kMaxErrors) out.errors.push_back(error_of(entry));
  }
}

// What the session's ledger saw, in a chunk of its own.
void read_account(const json& account, CommandEnd& out) {
  if (const auto at = account.find("drivers_loaded");
      at != account.end() && at->is_number_unsigned())
    out.drivers_loaded = at->get<uint64_t>();
  for (const json& bytes : array_of(account, "device_peaks")) {
    if (bytes.is_number_unsigned() && out.device_peak_bytes.size() < kMaxDevices)
      out.device_peak_bytes.push_back(bytes.get<uint64_t>());
  }
}

std::string plain_text(const json& value) {
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

// Reads varints; once something was wrong everything is 0 and ok() false.
class RecordDecoder::Cursor {
 public:
  explicit Cursor(std::span<const uint8_t> bytes)
      : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}
  bool ok() const { return ok_; }
  bool at_end() const { return at_ == end_; }
  size_t left() const { return static_cast<size_t>(end_ - at_); }

  uint8_t byte() { return at_ < end_ ? *at_++ : (ok_ = false, uint8_t{0}); }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == end_) break;
      const uint8_t b = *at_++;
      if (shift == 63 && b > 1) break;
      value |= uint64_t{b & 0x7fu} << shift;
      if (b < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }
  // At most `most`.
  uint32_t number(uint64_t most = UINT32_MAX) {
    const uint64_t value = varint();
    if (value > most) ok_ = false;
    return ok_ ? static_cast<uint32_t>(value) : 0;
  }
  std::string_view text(size_t n) {
    if (n > left()) return ok_ = false, std::string_view();
    const auto* begin = reinterpret_cast<const char*>(at_);
    at_ += n;
    return {begin, n};
  }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
  bool ok_ = true;
};

RecordDecoder::RecordDecoder(MemoryBudget& budget)
    : budget_(budget), string_ids_(16, TextHash{&record_.strings}, TextEqual{&record_.strings}) {}

uint32_t RecordDecoder::intern(std::string_view text) {
  if (text.empty()) return abi::kNoId;
  if (const auto found = string_ids_.find(text); found != string_ids_.end()) return *found;
  if (record_.strings.size() >= UINT32_MAX || !budget_.take(sizeof(std::string) + text.size() + 32))
    return abi::kNoId;
  record_.strings.emplace_back(text);
  const auto id = static_cast<uint32_t>(record_.strings.size() - 1);
  string_ids_.insert(id);
  return id;
}

bool RecordDecoder::add_chunk(const record::ChunkHeader& header, std::span<const uint8_t> payload) {
  switch (header.kind) {
    case record::ChunkKind::kSession: return add_session(payload);
    case record::ChunkKind::kSessionEnd: return add_session_end(payload);
    case record::ChunkKind::kData:
    case record::ChunkKind::kStreamEnd: return add_data(header, payload);
  }
  return true;  // a kind of a later minor version
}

bool RecordDecoder::add_session(std::span<const uint8_t> text) {
  const auto session = parse_object(text);
  if (!session) return false;
  if (session_seen_) return true;  // the first one counts
  session_seen_ = record_.has_session = true;
  // Written over the session's beginning when there was no room for more.
  record_.end.write_failed = session->contains("record_failure");
  if (const auto devices = session->find("devices");
      devices != session->end() && devices->is_array()) {
    for (const auto& entry : *devices) {
      if (!entry.is_object() || record_.devices.size() >= kMaxDevices) break;
      Device device;
      device.index = static_cast<int>(record_.devices.size());
      device.name = text_of(entry, "name");
      device.total_bytes = number_of(entry, "total_bytes");
      device.context_bytes = number_of(entry, "context_bytes");
      record_.devices.push_back(device);
    }
  }
  if (const auto command = session->find("command");
      command != session->end() && command->is_array()) {
    std::string& joined = record_.info["command"];
    for (const auto& word : *command)
      joined.append(joined.empty() ? "" : " ").append(plain_text(word));
  }
  if (const auto failure = session->find("record_failure");
      failure != session->end() && failure->is_object()) {
    record_.write_failure.error_number = static_cast<int>(number_of(*failure, "errno"));
    record_.write_failure.pid = static_cast<int64_t>(number_of(*failure, "pid"));
    record_.notes.push_back("a write of the record failed: what happened afterwards is not in it");
  }
  if (const auto settings = session->find("settings");
      settings != session->end() && settings->is_object()) {
    for (const auto& [key, value] : settings->items()) {
      if (!value.is_null()) record_.info[key] = plain_text(value);
    }
    record_.settings = parse_alloc_conf(text_of(*settings, "alloc_conf"));
  }
  for (const char* key : {"tonnage", "start_unix_ns"}) {
    if (const auto at = session->find(key); at != session->end())
      record_.info[key] = plain_text(*at);
  }
  return budget_.take(8 * text.size());
}

bool RecordDecoder::add_session_end(std::span<const uint8_t> text) {
  const auto end = parse_object(text);
  if (!end) return false;
  if (end->contains("exit_code")) read_end(*end, record_.end);
  if (const auto account = end->find("account"); account != end->end() && account->is_object())
    read_account(*account, record_.end);
  if (const auto need = end->find("need"); need != end->end() && need->is_object())
    read_need(*need, record_.need);
  for (const auto& [key, value] : end->items()) {
    if (value.is_primitive() && !value.is_null()) record_.info[key] = plain_text(value);
  }
  return budget_.take(8 * text.size());
}

bool RecordDecoder::add_data(const record::ChunkHeader& header, std::span<const uint8_t> payload) {
  auto found = stream_index_.find(header.stream);
  if (found == stream_index_.end()) {
    if (!budget_.take(sizeof(Stream) + sizeof(Process) + 64)) return false;
    found = stream_index_.emplace(header.stream, streams_.size()).first;
    streams_.emplace_back().process = static_cast<uint32_t>(record_.processes.size());
    record_.processes.emplace_back().pid = header.pid;
  }
  Stream& stream = streams_[found->second];
  if (header.sequence < stream.next_sequence) return false;  // each number is written once
  if (header.sequence > stream.next_sequence) stream.missing = true;
  stream.next_sequence = header.sequence == UINT32_MAX ? header.sequence : header.sequence + 1;

  const size_t strings = stream.strings.size(), nodes = stream.nodes.size(),
               events = stream.events.size();
  Cursor in(payload);
  if (!read_strings(in, stream) || !read_nodes(in, stream) ||
      !read_events(in, stream, header.event_count) || !in.at_end()) {
    stream.strings.resize(strings);
    stream.nodes.resize(nodes);
    stream.events.resize(events);
    stream.missing = true;
    return false;
  }
  if (header.kind == record::ChunkKind::kStreamEnd) stream.end_seen = true;
  return true;
}

bool RecordDecoder::read_strings(Cursor& in, Stream& stream) {
  const uint32_t first = in.number(record::kMaxIds);
  const uint32_t count = in.number(in.left());  // each takes a byte at least
  if (!in.ok() || first < stream.strings.size() || first + count > record::kMaxIds) return false;
  // Ids in a gap were in a chunk that is missing: they stay "".
  if (!budget_.take((first + count - stream.strings.size()) * 2 * sizeof(uint32_t))) return false;
  stream.strings.resize(first, abi::kNoId);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t length = in.number(record::kMaxStringBytes);
    const std::string_view text = in.text(length);
    if (!in.ok()) return false;
    stream.strings.push_back(intern(text));
  }
  return !budget_.exceeded();
}

bool RecordDecoder::read_nodes(Cursor& in, Stream& stream) {
  const uint32_t first = in.number(record::kMaxIds);
  const uint32_t count = in.number(in.left() / 4);  // each takes 4 bytes at least
  if (!in.ok() || first < stream.nodes.size() || first + count > record::kMaxIds) return false;
  if (!budget_.take((first + count - stream.nodes.size()) * 2 * sizeof(Node))) return false;
  stream.nodes.resize(first);
  const auto string = [&](uint32_t local) {
    return local < stream.strings.size() ? stream.strings[local] : abi::kNoId;
  };
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t back = in.number(first + i);
    Node node;
    node.frame.function = string(in.number());
    node.frame.file = string(in.number());
    node.frame.line = in.number();
    if (!in.ok() || back == 0) return false;
    node.parent = first + i - back;
    node.depth = stream.nodes[node.parent].depth + 1;
    if (node.depth > record::kMaxStackDepth) return false;
    stream.nodes.push_back(node);
  }
  return true;
}

uint32_t RecordDecoder::stack_of(Stream& stream, uint32_t local) {
  if (local == 0 || local >= stream.nodes.size()) return abi::kNoId;
  Node& node = stream.nodes[local];
  if (node.stack != abi::kNoId || node.depth == 0) return node.stack;
  std::vector<abi::Frame> frames;
  frames.reserve(node.depth);
  uint64_t hash = node.depth;
  for (uint32_t at = local; at != 0; at = stream.nodes[at].parent) {
    const abi::Frame& frame = stream.nodes[at].frame;
    frames.push_back(frame);
    hash = (hash ^ (uint64_t{frame.function} << 32 | frame.file)) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ (hash >> 29) ^ frame.line) * 0xbf58476d1ce4e5b9u;
  }
  const auto same = [](const abi::Frame& a, const abi::Frame& b) {
    return a.function == b.function && a.file == b.file && a.line == b.line;
  };
  const auto [from, to] = stack_ids_.equal_range(hash);
  for (auto at = from; at != to; ++at) {
    if (std::ranges::equal(record_.stacks[at->second], frames, same))
      return node.stack = at->second;
  }
  if (record_.stacks.size() >= UINT32_MAX ||
      !budget_.take(sizeof(frames) + frames.size() * sizeof(abi::Frame) + 48)) {
    return abi::kNoId;
  }
  node.stack = static_cast<uint32_t>(record_.stacks.size());
  stack_ids_.emplace(hash, node.stack);
  record_.stacks.push_back(std::move(frames));
  return node.stack;
}

bool RecordDecoder::read_events(Cursor& in, Stream& stream, uint32_t said) {
  const uint32_t count = in.number(in.left() / 2);  // kind and mask at least
  // Twice: merging processes needs room for both orders.
  if (!in.ok() || count != said || !budget_.take(uint64_t{2} * count * sizeof(abi::MemoryEvent)))
    return false;
  const auto string = [&](uint32_t local) {
    return local < stream.strings.size() ? stream.strings[local] : abi::kNoId;
  };
  abi::MemoryEvent packed;  // as in the file: ids are the stream's
  packed.process = stream.process;
  uint64_t last_address = 0;
  for (uint32_t i = 0; i < count; ++i) {
    using namespace record;
    packed.kind = static_cast<abi::EventKind>(in.byte());
    const uint32_t mask = in.number(kAllFields);
    if (mask & kFieldTime) packed.time_ns += unzigzag(in.varint());
    if (mask & kFieldDevice) packed.device = static_cast<uint8_t>(in.number(UINT8_MAX));
    if (mask & kFieldPhase) packed.phase = static_cast<abi::Phase>(in.number(UINT8_MAX));
    if (mask & kFieldThread) packed.thread = in.number();
    if (mask & kFieldStep) packed.step = in.number();
    packed.address = mask& kFieldAddress ? last_address += unzigzag(in.varint()) : 0;
    packed.size_bytes = mask & kFieldSize ? in.varint() : 0;
    packed.value = mask & kFieldValue ? in.varint() : 0;
    if (mask & kFieldStream) packed.stream = in.varint();
    if (mask & kFieldModule) packed.module = in.number();
    if (mask & kFieldStack) packed.stack = in.number();
    if (mask & kFieldOp) packed.op = in.number();
    packed.name = mask & kFieldName ? in.number() : abi::kNoId;
    packed.flags = mask & kFieldFlags ? static_cast<uint8_t>(in.number(UINT8_MAX)) : 0;
    if (!in.ok()) return false;

    abi::MemoryEvent event = packed;
    if (event.phase > abi::Phase::kEval) event.phase = abi::Phase::kOther;
    event.module = string(packed.module);
    event.op = string(packed.op);
    event.name = string(packed.name);
    event.stack = stack_of(stream, packed.stack);
    if (budget_.exceeded()) return false;
    if (event.kind == abi::EventKind::kFreed) {
      if (!budget_.take(2 * sizeof(abi::MemoryEvent))) return false;
      event.kind = abi::EventKind::kFreeRequested;
      stream.events.push_back(event);
      event.kind = abi::EventKind::kFreeCompleted;
    }
    stream.events.push_back(event);
    if (event.kind == abi::EventKind::kFact) add_fact(record_.string(event.name));
    if (event.kind == abi::EventKind::kSlot && budget_.take(64))
      slots_.try_emplace(event.value, stream.process);
    if (event.kind == abi::EventKind::kProcessStart)
      record_.processes[stream.process].command = record_.string(event.name);
  }
  return true;
}

void RecordDecoder::add_fact(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos || equals > kMaxFactKeyBytes ||
      record_.info.size() >= kMaxFacts)
    return;
  const std::string key = text.substr(0, equals), value = text.substr(equals + 1);
  if (key == "torch_version") record_.torch_version = value;
  // The program may have set it after the session began: what the process says counts.
  if (key == "alloc_conf") record_.settings = parse_alloc_conf(value);
  record_.info[key] = value;
}

// A process's own order is kept even where its times go back (an event may carry a time in the
// past): it waits its turn by the latest time so far.
bool RecordDecoder::merge() {
  size_t total = 0;
  std::vector<Stream*> live;
  for (auto& stream : streams_) {
    total += stream.events.size();
    if (!stream.events.empty()) live.push_back(&stream);
  }
  if (live.size() == 1) {
    record_.events = std::move(live.front()->events);
    return true;
  }
  struct Head {
    uint64_t time;
    uint32_t process;
    Stream* stream;
    size_t next;
    bool operator<(const Head& other) const {  // the heap's top is the earliest
      return time != other.time ? time > other.time : process > other.process;
    }
  };
  std::vector<Head> heap;
  for (Stream* stream : live)
    heap.push_back(Head{stream->events.front().time_ns, stream->process, stream, 0});
  std::make_heap(heap.begin(), heap.end());
  record_.events.reserve(total);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    Head& head = heap.back();
    record_.events.push_back(head.stream->events[head.next++]);
    if (head.next == head.stream->events.size()) {
      std::vector<abi::MemoryEvent>().swap(head.stream->events);
      heap.pop_back();
      continue;
    }
    head.time = std::max(head.time, head.stream->events[head.next].time_ns);
    std::push_heap(heap.begin(), heap.end());
  }
  return true;
}

// A process that was killed cannot say that it ended; the one that took its memory back does.
void RecordDecoder::end_the_dead() {
  for (abi::MemoryEvent& event : record_.events) {
    if (event.kind != abi::EventKind::kSlotGone) continue;
    const auto dead = slots_.find(event.value);
    if (dead == slots_.end() || dead->second == event.process) continue;
    event.kind = abi::EventKind::kProcessEnd;
    event.process = dead->second;
    event.thread = 0;
    event.value = static_cast<uint64_t>(record_.processes[dead->second].pid);
  }
}

bool RecordDecoder::finish(Record& record) {
  if (budget_.exceeded() || !merge()) return false;
  end_the_dead();
  if (!session_seen_)
    record_.notes.push_back("the record's first chunk, which describes the devices, is missing");
  for (const Stream& stream : streams_) {
    Process& process = record_.processes[stream.process];
    process.ended = stream.end_seen && !stream.missing;
    if (stream.missing) {
      ++record_.missing_parts;
      record_.notes.push_back("a part of what process " + std::to_string(process.pid) +
                              " recorded is missing: its figures are partial");
    }
  }
  size_t devices = record_.devices.size();
  for (const abi::MemoryEvent& event : record_.events)
    devices = std::max<size_t>(devices, event.device + 1u);
  if (!session_seen_ || !record_.devices.empty()) {
    // Every event's device has an entry, also if the session does not know it.
    for (size_t i = record_.devices.size(); i < devices; ++i)
      record_.devices.emplace_back().index = static_cast<int>(i);
  }
  record_.kind = Record::Kind::kTonnage;
  record = std::move(record_);
  return true;
}

}  // namespace tonnage::record
