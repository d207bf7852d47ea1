// Writer: appends the events of one process to the session's record file (format.h). It runs inside
// the user's processes, as a part of the virtual driver. So it needs only zstd and the C library,
// never throws, prints or aborts, and has no static destructors.
//
// Every function may be called from any thread. Before open() and after a failed write they all do
// nothing. After fork() the child writes its own stream. It does not have the parent's buffered
// events; ids stay valid.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "abi/event.h"
#include "abi/session.h"
#include "record/format.h"

namespace tonnage::record {

namespace detail {
// A growing array of bytes from malloc. append() is false when there is no memory.
struct Buffer {
  uint8_t* data = nullptr;
  size_t size = 0, capacity = 0;
  bool reserve(size_t more);
  bool append(const void* bytes, size_t n);
  bool append_varint(uint64_t value);
};

struct StringTable;
struct StackTable;
}  // namespace detail

class Writer {
 public:
  Writer() = default;
  ~Writer();  // tests only: the process's own writer is never destroyed
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Appends to the existing file `path` (absolute). start_ns: CLOCK_MONOTONIC at the session's
  // start. False: no recording.
  bool open(const char* path, uint64_t start_ns);

  // Where a write that fails is told, besides failed(); in memory that stays.
  void tell_failure(abi::RecordFailure* failure) { failure_ = failure; }

  // The id of a string of n bytes (cut at kMaxStringBytes), or of a stack of n frames, innermost
  // first. 0 for none, and when not recording. Ids are stable for the life of the process and in
  // children made by fork().
  uint32_t intern_string(const char* text, size_t n);
  uint32_t intern_string(const char* text);
  uint32_t intern_stack(const abi::Frame* frames, size_t n);

  // Appends an event: fills process and thread, and time_ns if it is 0. Writes a chunk when the
  // buffer has reached kFlushBytes or its oldest event is kFlushAgeNs old. kProcessStart and
  // kProcessEnd are written by the writer itself, since it alone knows about fork(); a caller's are
  // ignored.
  void emit(const abi::MemoryEvent& event);
  void begin();   // writes that this process is there, at once: it may end in any way
  void flush();   // writes what is buffered, in one chunk; call at steps and when memory ran out
  void finish();  // writes the last chunk: the process leaves in good order. Later events start
                  // further chunks.

  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  bool failed() const {
    return failed_.load(std::memory_order_relaxed);
  }                         // a write failed; recording has stopped
  uint64_t now_ns() const;  // since the session's start

  static constexpr size_t kFlushBytes = 64 << 10;
  static constexpr uint64_t kFlushAgeNs = 200'000'000;

 private:
  friend void fork_prepare();
  friend void fork_parent();
  friend void fork_child();
  void begin_stream();  // the functions below need mutex_ held
  void finish_locked();
  void append(const abi::MemoryEvent& event);
  bool completes_request(const abi::MemoryEvent& event);
  void drop_events();  // those that are buffered
  void write_chunk(ChunkKind kind);
  bool write_whole(const uint8_t* bytes, size_t n);
  bool open_file();
  void fail();
  uint32_t thread_number();

  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  std::atomic<bool> recording_{false};
  std::atomic<bool> failed_{false};
  char path_[512] = {};
  int fd_ = -1;
  uint64_t file_device_ = 0,
           file_inode_ =
               0;  // a program that closes every descriptor must not make us write elsewhere
  uint64_t start_ns_ = 0;
  uint64_t stream_ = 0;  // 0: the stream begins with the next event
  uint32_t pid_ = 0;
  uint32_t sequence_ = 0;
  std::atomic<uint32_t> next_thread_{1};
  std::atomic<uint32_t> generation_{0};  // of the stream; a thread number is valid within one
  uint64_t oldest_ns_ = 0;               // time of the first buffered event
  uint32_t event_count_ = 0;
  uint32_t strings_sent_ = 0, stacks_sent_ = 0;  // ids up to these are in the file
  PackState pack_;
  // The last event, if it is a free that was requested and nothing came after it.
  struct {
    size_t at = SIZE_MAX;  // in events_; SIZE_MAX: it is not
    abi::MemoryEvent event;
  } request_;
  detail::Buffer events_;
  detail::Buffer chunk_, packed_;
  detail::StringTable* strings_ = nullptr;
  detail::StackTable* stacks_ = nullptr;
  void* zstd_ = nullptr;
  abi::RecordFailure* failure_ = nullptr;
  Writer* next_ = nullptr;  // all open writers, for fork()
};

// The process's one writer; made at the first call and never destroyed. At exit it writes its last
// chunk by itself.
Writer& process_writer();

// For `tonnage run`: appends a session or session-end chunk with JSON text to an open descriptor.
// False: errno says why.
bool write_json_chunk(int fd, ChunkKind kind, const char* json, size_t n);

}  // namespace tonnage::record
