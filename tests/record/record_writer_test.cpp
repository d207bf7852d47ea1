#include "record/writer.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "record/record_helpers.h"

namespace tonnage::record {
namespace {

// Runs `body` in a child made by fork(); its exit code, or 128 + signal.
template <class Body>
int in_child(Body body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(RecordWriter, EveryFieldComesBack) {
  TempRecord file;
  std::vector<abi::MemoryEvent> written;
  {
    Writer writer;
    ASSERT_TRUE(writer.open(file.path().c_str(), 0));
    std::mt19937_64 random(7);
    const uint32_t names[] = {abi::kNoId, writer.intern_string("aten::convolution"),
                              writer.intern_string("layer1.0"),
                              writer.intern_string(std::string(300, 'x').c_str())};
    uint64_t time = 1'000'000;
    for (int i = 0; i < 20'000; ++i) {
      abi::MemoryEvent e;
      e.kind = static_cast<abi::EventKind>(1 + random() % 48);
      if (e.kind == abi::EventKind::kProcessStart || e.kind == abi::EventKind::kProcessEnd ||
          e.kind == abi::EventKind::kFreed)
        e.kind = abi::EventKind::kAlloc;
      e.device = static_cast<uint8_t>(random() % 3);
      e.phase = static_cast<abi::Phase>(random() % 7);
      e.flags = static_cast<uint8_t>(random() % 2);
      e.step = static_cast<uint32_t>(i / 100);
      e.time_ns = time += random() % 5000;
      e.address = random() % 4 == 0 ? 0 : random();
      e.size_bytes = random() >> (random() % 64);
      e.value = random() >> (random() % 64);
      e.stream = random() % 3;
      const abi::Frame frames[] = {
          {names[random() % 4], names[1], static_cast<uint32_t>(random() % 5)},
          {names[2], names[3], 9}};
      e.stack = writer.intern_stack(frames, random() % 3);
      e.op = names[random() % 4];
      e.module = names[random() % 4];
      e.name = names[random() % 4];
      writer.emit(e);
      written.push_back(e);
    }
  }
  const record::Record record = file.read();
  EXPECT_TRUE(record.notes.empty()) << record.notes.front();
  ASSERT_EQ(record.processes.size(), 1u);
  EXPECT_TRUE(record.processes[0].ended);
  EXPECT_EQ(record.processes[0].pid, ::getpid());
  EXPECT_FALSE(record.processes[0].command.empty());
  const auto read = program_events(record);
  ASSERT_EQ(read.size(), written.size());
  // Each id of the process stands for one id of the record.
  std::map<uint32_t, uint32_t> strings, stacks;
  const auto same_id = [](std::map<uint32_t, uint32_t>& ids, uint32_t a, uint32_t b) {
    return (a == 0) == (b == 0) && ids.emplace(a, b).first->second == b;
  };
  for (size_t i = 0; i < read.size(); ++i) {
    const abi::MemoryEvent &r = read[i], &w = written[i];
    ASSERT_EQ(r.kind, w.kind) << i;
    ASSERT_EQ(r.device, w.device);
    ASSERT_EQ(r.phase, w.phase);
    ASSERT_EQ(r.flags, w.flags);
    ASSERT_EQ(r.step, w.step);
    ASSERT_EQ(r.time_ns, w.time_ns);
    ASSERT_EQ(r.address, w.address) << i;
    ASSERT_EQ(r.size_bytes, w.size_bytes);
    ASSERT_EQ(r.value, w.value);
    ASSERT_EQ(r.stream, w.stream);
    ASSERT_TRUE(same_id(strings, w.op, r.op) && same_id(strings, w.module, r.module) &&
                same_id(strings, w.name, r.name));
    ASSERT_TRUE(same_id(stacks, w.stack, r.stack)) << i;
  }
  EXPECT_EQ(record.string(strings.at(1)), "aten::convolution");
  EXPECT_EQ(record.string(strings.at(3)), std::string(300, 'x'));
}

TEST(RecordWriter, StacksShareTheirCallersAndComeBackInnermostFirst) {
  TempRecord file;
  {
    Writer writer;
    ASSERT_TRUE(writer.open(file.path().c_str(), 0));
    const uint32_t f = writer.intern_string("f"), g = writer.intern_string("g"),
                   py = writer.intern_string("a.py");
    const abi::Frame inner[] = {{f, py, 1}, {g, py, 2}}, other[] = {{f, py, 3}, {g, py, 2}};
    const uint32_t a = writer.intern_stack(inner, 2), b = writer.intern_stack(other, 2);
    EXPECT_NE(a, b);
    EXPECT_EQ(a, writer.intern_stack(inner, 2));
    EXPECT_EQ(0u, writer.intern_stack(inner, 0));
    for (const uint32_t stack : {a, b, a}) {
      abi::MemoryEvent e = alloc_event(512, 1);
      e.stack = stack;
      writer.emit(e);
    }
  }
  const record::Record record = file.read();
  const auto events = program_events(record);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].stack, events[2].stack);
  const auto& stack = record.stacks.at(events[1].stack);
  ASSERT_EQ(stack.size(), 2u);
  EXPECT_EQ(record.string(stack[0].function), "f");
  EXPECT_EQ(stack[0].line, 3u);
  EXPECT_EQ(record.string(stack[1].function), "g");
}

TEST(RecordWriter, ADeepStackKeepsItsInnermostFrames) {
  TempRecord file;
  {
    Writer writer;
    ASSERT_TRUE(writer.open(file.path().c_str(), 0));
    std::vector<abi::Frame> frames(2000);
    for (uint32_t i = 0; i < frames.size(); ++i) frames[i] = abi::Frame{0, 0, i + 1};
    abi::MemoryEvent e = alloc_event(512, 1);
    e.stack = writer.intern_stack(frames.data(), frames.size());
    writer.emit(e);
  }
  const record::Record record = file.read();
  const auto& stack = record.stacks.at(program_events(record).at(0).stack);
  ASSERT_EQ(stack.size(), kMaxStackDepth);
  EXPECT_EQ(stack.front().line, 1u);
  EXPECT_EQ(stack.back().line, kMaxStackDepth);
}

TEST(RecordWriter, TimesAndThreadsAreFilledIn) {
  TempRecord file;
  Writer writer;
  ASSERT_TRUE(writer.open(file.path().c_str(), 0));
  writer.emit(alloc_event(1, 1));
  std::thread([&] { writer.emit(alloc_event(2, 1)); }).join();
  writer.emit(alloc_event(3, 1, 5));
  writer.flush();
  const auto events = program_events(file.read());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].thread, 0u);
  EXPECT_EQ(events[1].thread, 1u);
  EXPECT_GT(events[0].time_ns, 0u);
  EXPECT_GE(events[1].time_ns, events[0].time_ns);
  EXPECT_EQ(events[2].time_ns, 5u);
  EXPECT_EQ(events[2].address, 3u);  // a process's own order is kept
}

// A free that is completed at once takes one event in the file, and is two for every reader.
TEST(RecordWriter, AFreeThatIsCompletedAtOnceIsOneEventInTheFile) {
  const auto free_event = [](abi::EventKind kind, uint64_t address, uint64_t time_ns = 0) {
    abi::MemoryEvent event = alloc_event(address, 512, time_ns);
    event.kind = kind;
    return event;
  };
  const auto events_in_file = [](const TempRecord& file) {
    uint32_t n = 0;
    const auto bytes = file.bytes();
    for (size_t at = 0; at < bytes.size();) {
      ChunkHeader header;
      std::memcpy(&header, bytes.data() + at, sizeof header);
      n += header.event_count;
      at += sizeof header + header.payload_bytes;
    }
    return n;
  };
  TempRecord file;
  Writer writer;
  ASSERT_TRUE(writer.open(file.path().c_str(), 0));
  std::vector<std::pair<abi::EventKind, uint64_t>> expected;
  const auto emit = [&](const abi::MemoryEvent& event) {
    writer.emit(event);
    expected.emplace_back(event.kind, event.address);
  };
  emit(free_event(abi::EventKind::kFreeRequested, 0x1000));  // one
  emit(free_event(abi::EventKind::kFreeCompleted, 0x1000));
  emit(free_event(abi::EventKind::kFreeCompleted, 0x1000));  // a second one is an event of its own
  emit(free_event(abi::EventKind::kFreeRequested, 0x2000));
  emit(free_event(abi::EventKind::kFreeCompleted, 0x3000));  // another block's
  emit(free_event(abi::EventKind::kFreeRequested, 0x4000));
  emit(alloc_event(0x9000, 1));  // something in between
  emit(free_event(abi::EventKind::kFreeCompleted, 0x4000));
  emit(free_event(abi::EventKind::kFreeRequested, 0x5000, 100));
  emit(free_event(abi::EventKind::kFreeCompleted, 0x5000, 200));  // later
  emit(free_event(abi::EventKind::kFreeRequested, 0x6000));
  std::thread([&] {
    emit(free_event(abi::EventKind::kFreeCompleted, 0x6000));
  }).join();  // on another thread
  emit(free_event(abi::EventKind::kFreeRequested, 0x7000));
  abi::MemoryEvent elsewhere = free_event(abi::EventKind::kFreeCompleted, 0x7000);
  elsewhere.op = writer.intern_string("aten::mm");
  emit(elsewhere);
  emit(free_event(abi::EventKind::kFreeRequested, 0x8000));
  writer.flush();
  emit(free_event(abi::EventKind::kFreeCompleted, 0x8000));  // in the next chunk
  writer.flush();
  const auto events = program_events(file.read());
  ASSERT_EQ(events.size(), expected.size());
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].kind, expected[i].first) << i;
    EXPECT_EQ(events[i].address, expected[i].second) << i;
  }
  EXPECT_EQ(events[0].time_ns, events[1].time_ns);
  EXPECT_EQ(events_in_file(file),
            expected.size());  // one less for the pair, one more for the process's start
}

TEST(RecordWriter, AnOldBufferIsWrittenWithTheNextEvent) {
  TempRecord file;
  Writer writer;
  ASSERT_TRUE(writer.open(file.path().c_str(), 0));
  const uint64_t start = writer.now_ns();
  writer.emit(alloc_event(1, 1, start));
  EXPECT_TRUE(program_events(file.read()).empty());
  writer.emit(alloc_event(2, 1, start + 1'000'000));
  EXPECT_TRUE(program_events(file.read()).empty());
  writer.emit(alloc_event(3, 1, start + Writer::kFlushAgeNs + 10'000'000));
  EXPECT_EQ(program_events(file.read()).size(), 3u);
}

TEST(RecordWriter, ManyThreadsLoseNothing) {
  TempRecord file;
  {
    Writer writer;
    ASSERT_TRUE(writer.open(file.path().c_str(), 0));
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 8; ++t) {
      threads.emplace_back([&writer, t] {
        for (uint64_t i = 1; i <= 20'000; ++i) {
          abi::MemoryEvent e = alloc_event(t + 1, i);
          e.op = writer.intern_string(("op" + std::to_string(i % 50)).c_str());
          writer.emit(e);
          if (i % 5000 == 0) writer.flush();
        }
      });
    }
    for (auto& thread : threads) thread.join();
  }
  const record::Record record = file.read();
  EXPECT_TRUE(record.notes.empty());
  std::map<uint64_t, uint64_t> last;
  std::map<uint64_t, uint32_t> number;
  for (const abi::MemoryEvent& e : program_events(record)) {
    ASSERT_EQ(e.size_bytes, ++last[e.address]);
    ASSERT_EQ(number.emplace(e.address, e.thread).first->second, e.thread);
    ASSERT_EQ(record.string(e.op), "op" + std::to_string(e.size_bytes % 50));
  }
  ASSERT_EQ(last.size(), 8u);
  for (const auto& [thread, count] : last) EXPECT_EQ(count, 20'000u) << thread;
}

TEST(RecordWriter, SeveralProcessesShareAFileAndTheirStringsMeet) {
  TempRecord file;
  std::vector<pid_t> children;
  constexpr int kProcesses = 4, kEvents = 30'000;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      Writer writer;
      if (!writer.open(file.path().c_str(), 0)) ::_exit(1);
      for (int i = 0; i < p * 10; ++i)
        writer.intern_string(("only" + std::to_string(p) + "." + std::to_string(i)).c_str());
      const uint32_t shared = writer.intern_string("shared");
      for (int i = 1; i <= kEvents; ++i) {
        abi::MemoryEvent e =
            alloc_event(static_cast<uint64_t>(i) * 512, static_cast<uint64_t>(p + 1));
        e.op = shared;
        writer.emit(e);
      }
      writer.finish();
      ::_exit(0);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  const record::Record record = file.read();
  EXPECT_TRUE(record.notes.empty()) << record.notes.front();
  ASSERT_EQ(record.processes.size(), static_cast<size_t>(kProcesses));
  std::map<uint32_t, uint64_t> last;
  uint64_t time = 0;
  uint32_t shared = 0;
  for (const abi::MemoryEvent& e : record.events) {
    EXPECT_GE(e.time_ns, time);
    time = e.time_ns;
    if (e.kind != abi::EventKind::kAlloc) continue;
    ASSERT_EQ(e.address, last[e.process] += 512);
    if (shared == 0) shared = e.op;
    ASSERT_EQ(e.op, shared);
  }
  EXPECT_EQ(record.string(shared), "shared");
  for (const auto& process : record.processes) EXPECT_TRUE(process.ended);
  for (const auto& [process, address] : last)
    EXPECT_EQ(address, uint64_t{kEvents} * 512) << process;
}

TEST(RecordWriter, AForkedChildWritesItsOwnStreamAndKeepsItsIds) {
  TempRecord file;
  {
    Writer writer;
    ASSERT_TRUE(writer.open(file.path().c_str(), 0));
    const uint32_t op = writer.intern_string("before");
    const abi::Frame frame{op, op, 3};
    const uint32_t stack = writer.intern_stack(&frame, 1);
    writer.emit(alloc_event(1, 1));  // in the buffer when the child is made
    ASSERT_EQ(0, in_child([&] {
                abi::MemoryEvent e = alloc_event(2, 1);
                e.op = op;
                e.stack = stack;
                writer.emit(e);
                writer.finish();
              }));
    // A child that records nothing leaves no trace, one that is killed leaves what it had flushed.
    ASSERT_EQ(0, in_child([] {}));
    ASSERT_EQ(128 + SIGKILL, in_child([&] {
                writer.emit(alloc_event(3, 1));
                writer.flush();
                writer.emit(alloc_event(4, 1));
                ::kill(::getpid(), SIGKILL);
              }));
  }
  const record::Record record = file.read();
  EXPECT_TRUE(record.notes.empty()) << record.notes.front();
  ASSERT_EQ(record.processes.size(), 3u);
  std::map<uint64_t, const abi::MemoryEvent*> by_address;
  const auto events = program_events(record);
  for (const abi::MemoryEvent& e : events) by_address[e.address] = &e;
  ASSERT_EQ(events.size(), 3u);
  ASSERT_TRUE(by_address.count(1) && by_address.count(2) && by_address.count(3));
  EXPECT_EQ(record.processes[by_address[1]->process].pid, ::getpid());
  EXPECT_NE(record.processes[by_address[2]->process].pid, ::getpid());
  EXPECT_TRUE(record.processes[by_address[2]->process].ended);
  EXPECT_FALSE(record.processes[by_address[3]->process].ended);
  EXPECT_EQ(by_address[2]->thread, 0u);
  EXPECT_EQ(record.string(by_address[2]->op), "before");
  ASSERT_EQ(record.stacks.at(by_address[2]->stack).size(), 1u);
  EXPECT_EQ(record.stacks[by_address[2]->stack][0].line, 3u);
}

TEST(RecordWriter, AForkBesideBusyThreadsDoesNotHang) {
  TempRecord file;
  Writer writer;
  ASSERT_TRUE(writer.open(file.path().c_str(), 0));
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!stop) writer.emit(alloc_event(1, 1));
    });
  }
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(0, in_child([&] {
                ::alarm(20);
                writer.emit(alloc_event(2, 1));
                writer.finish();
              }));
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  writer.finish();
  const record::Record record = file.read();
  size_t from_children = 0;
  for (const abi::MemoryEvent& e : program_events(record)) from_children += e.address == 2;
  EXPECT_EQ(from_children, 50u);
  EXPECT_EQ(record.processes.size(), 51u);
}

TEST(RecordWriter, AFileSizeLimitStopsRecordingAndNothingElse) {
  TempRecord file;
  EXPECT_EQ(
      0, in_child([&] {
        const rlimit limit{20'000, 20'000};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        Writer writer;
        if (!writer.open(file.path().c_str(), 0)) ::_exit(2);
        std::mt19937_64 random(3);
        for (int i = 0; i < 50'000 && writer.recording(); ++i)
          writer.emit(alloc_event(random(), random()));
        ::_exit(writer.failed() && !writer.recording() && writer.intern_string("x") == 0 ? 0 : 3);
      }));
  auto record = record::read_record(file.path());
  ASSERT_TRUE(record) << record.error().text();
}

TEST(RecordWriter, AProgramThatClosesEveryDescriptorIsNotWrittenInto) {
  TempRecord file, victim(false);
  Writer writer;
  ASSERT_TRUE(writer.open(file.path().c_str(), 0));
  writer.emit(alloc_event(1, 1));
  writer.flush();
  ASSERT_EQ(0, in_child([&] {
              const int other = ::open(victim.path().c_str(), O_WRONLY | O_CREAT, 0600);
              for (int fd = 3; fd < 1024; ++fd) {
                if (fd != other) ::dup2(other, fd);
              }
              writer.emit(alloc_event(2, 1));
              writer.finish();
            }));
  EXPECT_TRUE(victim.bytes().empty());
  EXPECT_EQ(program_events(file.read()).size(), 2u);
}

TEST(RecordWriter, WithoutAFileNothingIsRecorded) {
  Writer writer;
  EXPECT_FALSE(writer.open("/nonexistent/record", 0));
  EXPECT_TRUE(writer.failed());
  writer.emit(alloc_event(1, 1));
  writer.flush();
  writer.finish();
  EXPECT_EQ(writer.intern_string("x"), 0u);
  Writer directory;
  EXPECT_FALSE(directory.open("/", 0));
}

TEST(RecordWriter, ALargeDictionaryTakesSeveralChunks) {
  TempRecord file;
  constexpr int kStrings = 400;
  {
    Writer writer;
    ASSERT_TRUE(writer.open(file.path().c_str(), 0));
    abi::MemoryEvent e = alloc_event(1, 1);
    for (int i = 0; i < kStrings; ++i)
      e.name =
          writer.intern_string((std::to_string(i) + std::string(60'000, 'a' + i % 26)).c_str());
    writer.emit(e);
  }
  const record::Record record = file.read();
  EXPECT_TRUE(record.notes.empty());
  const auto events = program_events(record);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(record.string(events[0].name).substr(0, 4), "399" + std::string(1, 'a' + 399 % 26));
  EXPECT_GE(record.strings.size(), size_t{kStrings});
}

}  // namespace
}  // namespace tonnage::record
