#include "record/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

#include <new>

#include "record/intern.h"
#include "record/secrets.h"

namespace tonnage::record {

namespace detail {

bool Buffer::reserve(size_t more) {
  if (size + more <= capacity) return true;
  size_t larger = capacity == 0 ? 4096 : capacity * 2;
  while (larger < size + more) larger *= 2;
  void* moved = ::realloc(data, larger);
  if (moved == nullptr) return false;
  data = static_cast<uint8_t*>(moved);
  capacity = larger;
  return true;
}

bool Buffer::append(const void* bytes, size_t n) {
  if (!reserve(n)) return false;
  ::memcpy(data + size, bytes, n);
  size += n;
  return true;
}

bool Buffer::append_varint(uint64_t value) {
  if (!reserve(10)) return false;
  size = static_cast<size_t>(put_varint(data + size, value) - data);
  return true;
}

}  // namespace detail

namespace {

constexpr size_t kDictionaryBytes =
    4 << 20;  // strings and stacks per chunk; far below kMaxUncompressedBytes
constexpr size_t kCommandBytes = 4096;
constexpr int kLeastDescriptor = 200;  // out of the way of programs that count on small numbers

// All open writers, so that fork() finds none of them in the middle of something.
pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER;
Writer* first_writer = nullptr;
std::atomic<Writer*> the_process_writer{nullptr};
std::atomic<bool> exiting{false};
std::atomic<uint32_t> generations{0};

uint64_t clock_ns(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

uint64_t scramble(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class Lock {
 public:
  explicit Lock(pthread_mutex_t& mutex) : mutex_(mutex) { pthread_mutex_lock(&mutex_); }
  ~Lock() { pthread_mutex_unlock(&mutex_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  pthread_mutex_t& mutex_;
};

// Why only a part was written: the file has reached its size limit, or the disk is full.
int reason_for_part(int fd) {
  struct stat is {};
  rlimit limit{};
  const bool at_limit = ::fstat(fd, &is) == 0 && ::getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
                        limit.rlim_cur != RLIM_INFINITY &&
                        static_cast<rlim_t>(is.st_size) >= limit.rlim_cur;
  return at_limit ? EFBIG : ENOSPC;
}

// One write() of everything. A file size limit must not kill the process: its signal is held back
// and taken away.
bool write_once(int fd, const uint8_t* bytes, size_t n) {
  sigset_t size_limit, before, pending;
  sigemptyset(&size_limit);
  sigaddset(&size_limit, SIGXFSZ);
  sigpending(&pending);
  const bool was_pending = sigismember(&pending, SIGXFSZ) == 1;
  pthread_sigmask(SIG_BLOCK, &size_limit, &before);
  ssize_t written;
  do {
    written = ::write(fd, bytes, n);
  } while (written < 0 && errno == EINTR);
  const int error = errno;
  if (!was_pending && written != static_cast<ssize_t>(n)) {
    const timespec at_once{};
    sigtimedwait(&size_limit, nullptr, &at_once);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = written >= 0 && written != static_cast<ssize_t>(n) ? reason_for_part(fd) : error;
  return written == static_cast<ssize_t>(n);
}

void seal(ChunkHeader& header, const uint8_t* payload) {
  header.payload_crc = crc32(0, payload, header.payload_bytes);
  header.header_crc = crc32(0, &header, offsetof(ChunkHeader, header_crc));
}

// The process's command line, arguments joined by spaces.
size_t read_command(char* out, size_t capacity) {
  const int fd = ::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t n = ::read(fd, out, capacity);
  ::close(fd);
  if (n <= 0) return 0;
  size_t length = static_cast<size_t>(n);
  length = hide_secrets(out, length);
  while (length > 0 && out[length - 1] == '\0') --length;
  for (size_t i = 0; i < length; ++i) {
    if (out[i] == '\0') out[i] = ' ';
  }
  return length;
}

}  // namespace

void fork_prepare() {
  pthread_mutex_lock(&list_mutex);
  for (Writer* w = first_writer; w != nullptr; w = w->next_) pthread_mutex_lock(&w->mutex_);
}

void fork_parent() {
  for (Writer* w = first_writer; w != nullptr; w = w->next_) pthread_mutex_unlock(&w->mutex_);
  pthread_mutex_unlock(&list_mutex);
}

void fork_child() {
  for (Writer* w = first_writer; w != nullptr; w = w->next_) {
    pthread_mutex_init(&w->mutex_, nullptr);
    w->stream_ = 0;
    w->request_.at = SIZE_MAX;
  }
  pthread_mutex_init(&list_mutex, nullptr);
}

Writer::~Writer() {
  pthread_mutex_lock(&list_mutex);
  for (Writer** at = &first_writer; *at != nullptr; at = &(*at)->next_) {
    if (*at == this) {
      *at = next_;
      break;
    }
  }
  pthread_mutex_unlock(&list_mutex);
  finish();
  if (fd_ >= 0) ::close(fd_);
  ::free(events_.data);
  ::free(chunk_.data);
  ::free(packed_.data);
  delete strings_;
  delete stacks_;
  ZSTD_freeCCtx(static_cast<ZSTD_CCtx*>(zstd_));
}

bool Writer::open_file() {
  if (fd_ >= 0) {
    struct stat now {};
    if (::fstat(fd_, &now) == 0 && now.st_dev == file_device_ && now.st_ino == file_inode_)
      return true;
    fd_ = -1;  // not ours any more: the program closed it
  }
  const int fd = ::open(path_, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  struct stat is {};
  if (::fstat(fd, &is) != 0 || !S_ISREG(is.st_mode) ||
      (file_inode_ != 0 && (is.st_dev != file_device_ || is.st_ino != file_inode_))) {
    ::close(fd);
    return false;
  }
  file_device_ = is.st_dev;
  file_inode_ = is.st_ino;
  const int higher = ::fcntl(fd, F_DUPFD_CLOEXEC, kLeastDescriptor);
  if (higher >= 0) ::close(fd);
  fd_ = higher >= 0 ? higher : fd;
  return true;
}

bool Writer::open(const char* path, uint64_t start_ns) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, [] { pthread_atfork(fork_prepare, fork_parent, fork_child); });
  bool opened = false;
  {
    const Lock lock(mutex_);
    const size_t n = path == nullptr ? 0 : ::strlen(path);
    if (recording() || failed() || n == 0 || n >= sizeof path_) return recording();
    ::memcpy(path_, path, n + 1);
    start_ns_ = start_ns;
    strings_ = new (std::nothrow) detail::StringTable;
    stacks_ = new (std::nothrow) detail::StackTable;
    zstd_ = ZSTD_createCCtx();
    opened = strings_ != nullptr && stacks_ != nullptr && zstd_ != nullptr && open_file();
    if (!opened) {
      fail();
      return false;
    }
    recording_.store(true, std::memory_order_release);
  }
  pthread_mutex_lock(&list_mutex);
  next_ = first_writer;
  first_writer = this;
  pthread_mutex_unlock(&list_mutex);
  return true;
}

uint64_t Writer::now_ns() const {
  const uint64_t now = clock_ns(CLOCK_MONOTONIC);
  return now > start_ns_ ? now - start_ns_ : 0;
}

uint32_t Writer::intern_string(const char* text) {
  return text == nullptr ? abi::kNoId : intern_string(text, ::strlen(text));
}

uint32_t Writer::intern_string(const char* text, size_t n) {
  if (!recording() || text == nullptr || n == 0) return abi::kNoId;
  if (n > kMaxStringBytes) n = kMaxStringBytes;
  const Lock lock(mutex_);
  return strings_->intern(text, n);
}

uint32_t Writer::intern_stack(const abi::Frame* frames, size_t n) {
  if (!recording() || frames == nullptr || n == 0) return abi::kNoId;
  const Lock lock(mutex_);
  return stacks_->intern(frames, n);
}

uint32_t Writer::thread_number() {
  // The one thread of a forked child is its main thread, whatever number it had in the parent.
  static thread_local uint32_t generation = 0;
  static thread_local uint32_t number = 0;
  const uint32_t now = generation_.load(std::memory_order_relaxed);
  if (generation != now) {
    generation = now;
    number = ::syscall(SYS_gettid) == ::getpid()
                 ? 0
                 : next_thread_.fetch_add(1, std::memory_order_relaxed);
  }
  return number;
}

void Writer::begin_stream() {
  pid_ = static_cast<uint32_t>(::getpid());
  stream_ = scramble(clock_ns(CLOCK_REALTIME) ^ (uint64_t{pid_} << 40)) | 1;
  sequence_ = 0;
  drop_events();
  pack_ = PackState{};
  strings_sent_ = stacks_sent_ = 0;
  generation_.store(generations.fetch_add(1, std::memory_order_relaxed) + 1,
                    std::memory_order_relaxed);
  next_thread_.store(1, std::memory_order_relaxed);
  char command[kCommandBytes];
  const size_t n = read_command(command, sizeof command);
  abi::MemoryEvent start;
  start.kind = abi::EventKind::kProcessStart;
  start.value = pid_;
  start.time_ns = now_ns();
  start.name = n == 0 ? abi::kNoId : strings_->intern(command, n);
  append(start);
}

// Most frees are completed within the call that requests them: then the two are one event. Its
// first byte is its kind.
bool Writer::completes_request(const abi::MemoryEvent& event) {
  if (event.kind != abi::EventKind::kFreeCompleted || request_.at == SIZE_MAX) return false;
  const abi::MemoryEvent& request = request_.event;
  if (event.address != request.address || event.size_bytes != request.size_bytes ||
      event.device != request.device || event.stream != request.stream || event.op != request.op ||
      event.stack != request.stack || event.module != request.module ||
      event.phase != request.phase || event.step != request.step || event.value != request.value ||
      event.name != request.name || event.flags != request.flags ||
      (event.time_ns != 0 && event.time_ns != request.time_ns) || request.thread != thread_number())
    return false;
  events_.data[request_.at] = static_cast<uint8_t>(abi::EventKind::kFreed);
  request_.at = SIZE_MAX;
  return true;
}

void Writer::append(const abi::MemoryEvent& event) {
  if (!events_.reserve(kMaxPackedEventBytes)) return fail();
  if (event_count_ == 0) oldest_ns_ = event.time_ns;
  request_.at = event.kind == abi::EventKind::kFreeRequested ? events_.size : SIZE_MAX;
  if (event.kind == abi::EventKind::kFreeRequested) request_.event = event;
  events_.size =
      static_cast<size_t>(pack_event(events_.data + events_.size, event, pack_) - events_.data);
  ++event_count_;
}

void Writer::emit(const abi::MemoryEvent& event) {
  // The writer says itself when a stream begins and ends: it alone knows about fork().
  if (!recording() || event.kind == abi::EventKind::kProcessStart ||
      event.kind == abi::EventKind::kProcessEnd)
    return;
  abi::MemoryEvent e = event;
  const Lock lock(mutex_);
  if (!recording()) return;
  if (completes_request(e)) return;
  if (stream_ == 0) begin_stream();
  if (e.time_ns == 0) e.time_ns = now_ns();
  e.thread = thread_number();
  append(e);
  // An event's own time may lie in the past or be handed in by the caller: only a difference
  // forwards says "old".
  const bool old = e.time_ns > oldest_ns_ && e.time_ns - oldest_ns_ >= kFlushAgeNs;
  if (events_.size >= kFlushBytes || old || exiting.load(std::memory_order_relaxed))
    write_chunk(ChunkKind::kData);
}

void Writer::begin() {
  if (!recording()) return;
  const Lock lock(mutex_);
  if (!recording() || stream_ != 0) return;
  begin_stream();
  write_chunk(ChunkKind::kData);
}

void Writer::flush() {
  if (!recording()) return;
  const Lock lock(mutex_);
  if (recording() && stream_ != 0 && event_count_ > 0) write_chunk(ChunkKind::kData);
}

void Writer::finish() {
  if (!recording()) return;
  // exit() may be called from a signal handler that interrupted the writer, or beside a stopped
  // thread: do not hang.
  timespec until{};
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 1;
  if (pthread_mutex_timedlock(&mutex_, &until) != 0) return;
  finish_locked();
  pthread_mutex_unlock(&mutex_);
}

void Writer::finish_locked() {
  if (!recording() || stream_ == 0) return;
  abi::MemoryEvent end;
  end.kind = abi::EventKind::kProcessEnd;
  end.value = pid_;
  end.time_ns = now_ns();
  append(end);
  if (recording()) write_chunk(ChunkKind::kStreamEnd);
}

void Writer::write_chunk(ChunkKind kind) {
  // A fork that passed fork_child() by (a plain clone()): what is buffered is the parent's.
  if (pid_ != static_cast<uint32_t>(::getpid())) {
    stream_ = 0;
    drop_events();
    return;
  }
  for (bool last = false; !last;) {
    chunk_.size = 0;
    uint32_t strings_end = strings_sent_, stacks_end = stacks_sent_;
    size_t bytes = 0;
    while (strings_end < strings_->count && bytes < kDictionaryBytes)
      bytes += strings_->entries[strings_end++].length + 3;
    while (stacks_end < stacks_->count && bytes < kDictionaryBytes) ++stacks_end, bytes += 20;
    last = strings_end == strings_->count && stacks_end == stacks_->count;
    if (!chunk_.reserve(bytes + (last ? events_.size : 0) + 64)) return fail();
    chunk_.append_varint(strings_sent_ + 1);
    chunk_.append_varint(strings_end - strings_sent_);
    for (uint32_t i = strings_sent_; i < strings_end; ++i) {
      const auto& entry = strings_->entries[i];
      chunk_.append_varint(entry.length);
      chunk_.append(entry.text, entry.length);
    }
    chunk_.append_varint(stacks_sent_ + 1);
    chunk_.append_varint(stacks_end - stacks_sent_);
    for (uint32_t i = stacks_sent_; i < stacks_end; ++i) {
      const auto& node = stacks_->nodes[i];
      chunk_.append_varint(i + 1 - node.parent);
      chunk_.append_varint(node.function);
      chunk_.append_varint(node.file);
      chunk_.append_varint(node.line);
    }
    chunk_.append_varint(last ? event_count_ : 0);
    if (last) chunk_.append(events_.data, events_.size);

    const size_t bound = ZSTD_compressBound(chunk_.size);
    packed_.size = 0;
    if (!packed_.reserve(sizeof(ChunkHeader) + bound)) return fail();
    uint8_t* const payload = packed_.data + sizeof(ChunkHeader);
    size_t packed = ZSTD_compressCCtx(static_cast<ZSTD_CCtx*>(zstd_), payload, bound, chunk_.data,
                                      chunk_.size, 1);
    ChunkHeader header;
    header.kind = last ? kind : ChunkKind::kData;
    header.compression = Compression::kZstd;
    if (ZSTD_isError(packed) || packed >= chunk_.size) {
      header.compression = Compression::kNone;
      ::memcpy(payload, chunk_.data, chunk_.size);
      packed = chunk_.size;
    }
    header.pid = pid_;
    header.sequence = sequence_++;
    header.stream = stream_;
    header.payload_bytes = static_cast<uint32_t>(packed);
    header.uncompressed_bytes = static_cast<uint32_t>(chunk_.size);
    header.event_count = last ? event_count_ : 0;
    seal(header, payload);
    ::memcpy(packed_.data, &header, sizeof header);
    if (!write_whole(packed_.data, sizeof header + packed)) return fail();
    strings_sent_ = strings_end;
    stacks_sent_ = stacks_end;
  }
  drop_events();
  pack_ = PackState{};
}

bool Writer::write_whole(const uint8_t* bytes, size_t n) {
  return open_file() && write_once(fd_, bytes, n);
}

void Writer::fail() {
  const int error = errno == 0 ? EIO : errno;
  if (failure_ != nullptr) {
    int32_t none = 0;
    if (failure_->error_number.compare_exchange_strong(none, error))
      failure_->pid.store(static_cast<int32_t>(::getpid()));
  }
  recording_.store(false, std::memory_order_relaxed);
  failed_.store(true, std::memory_order_relaxed);
  drop_events();
}

void Writer::drop_events() {
  events_.size = 0;
  event_count_ = 0;
  request_.at = SIZE_MAX;
}

Writer& process_writer() {
  Writer* writer = the_process_writer.load(std::memory_order_acquire);
  if (writer == nullptr) {
    // Static storage, never destroyed: threads may still record while the process leaves.
    alignas(Writer) static unsigned char storage[sizeof(Writer)];
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once,
                 [] { the_process_writer.store(new (storage) Writer, std::memory_order_release); });
    writer = the_process_writer.load(std::memory_order_acquire);
  }
  return *writer;
}

bool write_json_chunk(int fd, ChunkKind kind, const char* json, size_t n) {
  if (n > kMaxUncompressedBytes) {
    errno = EFBIG;
    return false;
  }
  detail::Buffer chunk;
  if (!chunk.reserve(sizeof(ChunkHeader) + n)) {
    errno = ENOMEM;
    return false;
  }
  ChunkHeader header;
  header.kind = kind;
  header.pid = static_cast<uint32_t>(::getpid());
  header.payload_bytes = header.uncompressed_bytes = static_cast<uint32_t>(n);
  seal(header, reinterpret_cast<const uint8_t*>(json));
  chunk.append(&header, sizeof header);
  chunk.append(json, n);
  const bool written = write_once(fd, chunk.data, chunk.size);
  ::free(chunk.data);
  return written;
}

namespace {

// Runs when the process exits or the driver is unloaded.
__attribute__((destructor)) void finish_at_exit() {
  Writer* writer = the_process_writer.load(std::memory_order_acquire);
  if (writer == nullptr) return;
  writer->finish();
  exiting.store(true, std::memory_order_relaxed);
}

}  // namespace

}  // namespace tonnage::record
