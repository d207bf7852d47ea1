// A temporary record file, and events to put into it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "record/record_reader.h"
#include "record/writer.h"

namespace tonnage::record {

class TempRecord {
 public:
  explicit TempRecord(bool with_session = true) {
    std::string pattern = ::testing::TempDir() + "tonnage-record-XXXXXX";
    const int fd = ::mkstemp(pattern.data());
    EXPECT_GE(fd, 0);
    path_ = pattern;
    if (with_session) {
      const std::string json =
          R"({"command":["python","train.py"],"devices":[{"name":"Test GPU","total_bytes":1000,"context_bytes":10}],)"
          R"("settings":{"alloc_conf":"expandable_segments:True"},"tonnage":"0.0"})";
      EXPECT_TRUE(write_json_chunk(dup_append(), ChunkKind::kSession, json.data(), json.size()));
    }
    ::close(fd);
  }
  ~TempRecord() {
    if (fd_ >= 0) ::close(fd_);
    ::unlink(path_.c_str());
  }
  const std::string& path() const { return path_; }
  int dup_append() {
    if (fd_ < 0) fd_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    return fd_;
  }
  std::vector<uint8_t> bytes() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  record::Record read() const {
    auto record = record::read_record(path_);
    EXPECT_TRUE(record) << (record ? "" : record.error().text());
    return record ? *record : record::Record{};
  }

 private:
  std::string path_;
  int fd_ = -1;
};

inline abi::MemoryEvent alloc_event(uint64_t address, uint64_t size_bytes, uint64_t time_ns = 0) {
  abi::MemoryEvent event;
  event.kind = abi::EventKind::kAlloc;
  event.address = address;
  event.size_bytes = size_bytes;
  event.time_ns = time_ns;
  return event;
}

// The record's events without those that the writer adds.
inline std::vector<abi::MemoryEvent> program_events(const record::Record& record) {
  std::vector<abi::MemoryEvent> out;
  for (const abi::MemoryEvent& event : record.events) {
    if (event.kind != abi::EventKind::kProcessStart && event.kind != abi::EventKind::kProcessEnd)
      out.push_back(event);
  }
  return out;
}

}  // namespace tonnage::record
