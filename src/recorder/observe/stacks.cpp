#include "recorder/observe/stacks.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "recorder/observe/python_api.h"
#include "recorder/observe/stack_slot.h"

namespace tonnage::recorder {
namespace {

constexpr size_t kMaxFrames = 128;

// Where CPython keeps a thread's frames. From the headers Include/cpython/pystate.h and
// Include/internal/pycore_frame.h (3.14: pycore_interpframe_structs.h) of each version; bytes from
// the start of the struct.
struct FrameLayout {
  int minor;
  int thread_frame;  // PyThreadState: current frame, or the _PyCFrame that points at it
  int cframe_frame;  // in _PyCFrame; -1: the thread state points at the frame itself
  int code, previous, instruction, owner;
  int first_foreign_owner;  // owners from this number on are not Python frames
};
constexpr FrameLayout kLayouts[] = {
    {11, 56, 8, 32, 48, 56, 69, 3},
    {12, 56, 0, 0, 8, 56, 70, 3},
    {13, 72, -1, 0, 8, 56, 70, 3},
    {14, 72, -1, 0, 8, 56, 74, 3},
};
constexpr int kFrameObjectFrame = 24;  // PyFrameObject::f_frame, 3.11 to 3.14

template <class T>
T read_at(const void* base, int offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + offset, sizeof value);
  return value;
}

struct RawFrame {
  const void* code;
  const char* instruction;
};

// Where a code object keeps its file and its function, and a string its characters: bytes from the
// start of the object. Found with the interpreter's own functions while the GIL is held; 0: not
// found.
struct CodeLayout {
  int file = 0, function = 0, characters = 0;
  bool known() const { return file && function && characters; }
};
constexpr int kStringLength = 16;       // PyASCIIObject::length, in all versions
constexpr size_t kMaxNameBytes = 4096;  // of a file or function
constexpr int kCodeObjectBytes = 184;   // of its fixed part, at least

class Stacks {
 public:
  void start(const abi::Bridge* bridge) { bridge_ = bridge; }

  uint32_t python(bool may_wait, size_t& depth) {
    const PythonApi& api = python_api();
    if (!api.present) return 0;
    void* thread = api.this_thread_state();
    if (!thread) return 0;
    Mode mode = mode_.load(std::memory_order_acquire);
    if (mode == Mode::kUnchecked) mode = check_layout(may_wait);
    if (mode == Mode::kDirect) return direct(thread, may_wait, depth);
    if (mode == Mode::kPublic) return with_public_functions(may_wait, depth);
    return 0;
  }

  uint32_t native() {
    void* addresses[64];
    int n = backtrace(addresses, 64);
    uint64_t hash = 0x9e3779b97f4a7c15ull;
    for (int i = 0; i < n; i++) hash = mix(hash, reinterpret_cast<uint64_t>(addresses[i]));
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = stacks_.find(hash);
    if (found != stacks_.end()) return found->second;
    std::vector<abi::Frame> frames;
    for (int i = 0; i < n; i++) {
      auto known = native_frames_.find(addresses[i]);
      if (known == native_frames_.end())
        known = native_frames_.emplace(addresses[i], describe(addresses[i])).first;
      if (known->second.file != abi::kNoId) frames.push_back(known->second);
    }
    uint32_t id = frames.empty() ? 0 : bridge_->intern_stack(frames.data(), frames.size());
    stacks_.emplace(hash, id);
    return id;
  }

 private:
  enum class Mode { kUnchecked, kDirect, kPublic };

  static uint64_t mix(uint64_t hash, uint64_t value) {
    hash ^= value;
    hash *= 0xff51afd7ed558ccdull;
    return hash ^ (hash >> 32);
  }

  const void* current_frame(const void* thread) const {
    const void* at = read_at<const void*>(thread, layout_->thread_frame);
    if (at && layout_->cframe_frame >= 0) at = read_at<const void*>(at, layout_->cframe_frame);
    return at;
  }

  // Frames of the thread, innermost first.
  size_t walk(const void* thread, RawFrame* out) const {
    size_t n = 0;
    for (const void* frame = current_frame(thread); frame && n < kMaxFrames;
         frame = read_at<const void*>(frame, layout_->previous)) {
      if (read_at<uint8_t>(frame, layout_->owner) >= layout_->first_foreign_owner) continue;
      uintptr_t code = read_at<uintptr_t>(frame, layout_->code) &
                       ~uintptr_t{3};  // 3.14 keeps tags in the low bits
      const char* instruction = read_at<const char*>(frame, layout_->instruction);
      if (!code || !instruction) continue;
      out[n++] = {reinterpret_cast<const void*>(code), instruction};
    }
    return n;
  }

  uint32_t direct(const void* thread, bool may_wait, size_t& depth) {
    RawFrame raw[kMaxFrames];
    size_t n = depth = walk(thread, raw);
    if (n == 0) return 0;
    uint64_t hash = 0;
    for (size_t i = 0; i < n; i++) hash = mix(hash, reinterpret_cast<uint64_t>(raw[i].instruction));
    StackSlot* slot = stack_slot(hash);
    if (!slot) return 0;
    StackSlot& recent = *slot;
    if (recent.hash == hash && recent.id) return recent.id;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto found = stacks_.find(hash);
      if (found != stacks_.end()) {
        recent = {hash, found->second};
        return found->second;
      }
    }
    abi::Frame frames[kMaxFrames];
    bool all = true;
    for (size_t i = 0; i < n; i++) all &= frame_of(raw[i], may_wait, frames[i]);
    uint32_t id = bridge_->intern_stack(frames, n);
    if (all) {
      std::lock_guard<std::mutex> lock(mutex_);
      stacks_.emplace(hash, id);
      recent = {hash, id};
    }
    return id;
  }

  // The frame's file, function and line. False if the frame is new and the GIL is not available.
  // Then it is read in place, as far as possible, and nothing is kept, because the code object may
  // be freed later.
  bool frame_of(const RawFrame& raw, bool may_wait, abi::Frame& out) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto found = frames_.find(raw.instruction);
      if (found != frames_.end()) {
        out = found->second;
        return true;
      }
    }
    const int offset = static_cast<int>(raw.instruction - static_cast<const char*>(raw.code)) -
                       code_start_.load(std::memory_order_relaxed);
    if (!may_wait && !holds_gil()) {
      out = read_code(raw.code, offset);
      return false;
    }
    PythonScope scope;
    if (!scope.entered()) return false;
    out = describe_code(const_cast<void*>(raw.code), offset);
    // The reference keeps the code object, so its instructions' addresses stay unique keys.
    python_api().incref(const_cast<void*>(raw.code));
    std::lock_guard<std::mutex> lock(mutex_);
    frames_.emplace(raw.instruction, out);
    return true;
  }

  uint32_t intern_attribute(void* object, const char* name) {
    const PythonApi& api = python_api();
    void* value = api.get_attribute(object, name);
    if (!value) {
      api.error_clear();
      return 0;
    }
    std::ptrdiff_t size = 0;
    const char* text = api.utf8(value, &size);
    uint32_t id = 0;
    if (text)
      id = bridge_->intern_string(text, static_cast<size_t>(size));
    else
      api.error_clear();
    api.decref(value);
    return id;
  }

  // Without the GIL: the frame runs on this thread, so its code object lives, and what is read of
  // it never changes.
  abi::Frame read_code(const void* code, int offset) {
    abi::Frame frame;
    const CodeLayout& layout = code_layout_;
    if (!layout.known()) return frame;
    frame.file = intern_ascii(read_at<const void*>(code, layout.file));
    frame.function = intern_ascii(read_at<const void*>(code, layout.function));
    // Reads the table of lines in the code object, and makes nothing.
    const int line = python_api().code_line(const_cast<void*>(code), offset < 0 ? 0 : offset);
    frame.line = line > 0 ? static_cast<uint32_t>(line) : 0;
    return frame;
  }

  // A string of ASCII characters lies behind its header with a zero at its end; another one has
  // something else there, and is left out.
  uint32_t intern_ascii(const void* string) {
    if (!string) return 0;
    const auto length = read_at<std::ptrdiff_t>(string, kStringLength);
    if (length <= 0 || static_cast<size_t>(length) > kMaxNameBytes) return 0;
    const char* text = static_cast<const char*>(string) + code_layout_.characters;
    for (std::ptrdiff_t i = 0; i < length; i++)
      if (text[i] < ' ' || text[i] > '~') return 0;
    return text[length] ? 0 : bridge_->intern_string(text, static_cast<size_t>(length));
  }

  // With the GIL held: which field of a code object is the attribute of that name.
  static int find_field(void* code, const char* name, CodeLayout& layout) {
    const PythonApi& api = python_api();
    void* value = api.get_attribute(code, name);
    if (!value) {
      api.error_clear();
      return 0;
    }
    int found = 0;
    for (int offset = 16; offset < kCodeObjectBytes && !found; offset += sizeof(void*))
      if (read_at<void*>(code, offset) == value) found = offset;
    std::ptrdiff_t size = 0;
    if (const char* text = api.utf8(value, &size)) {
      const std::ptrdiff_t characters = text - static_cast<const char*>(value);
      // The characters of another kind of string are elsewhere.
      if (characters > 0 && characters < 128) layout.characters = static_cast<int>(characters);
    } else {
      api.error_clear();
    }
    api.decref(value);
    return found;
  }

  abi::Frame describe_code(void* code, int offset) {
    const PythonApi& api = python_api();
    abi::Frame frame;
    frame.file = intern_attribute(code, "co_filename");
    frame.function = intern_attribute(code, api.minor >= 11 ? "co_qualname" : "co_name");
    int line = api.code_line(code, offset < 0 ? 0 : offset);
    frame.line = line > 0 ? static_cast<uint32_t>(line) : 0;
    return frame;
  }

  // Compares what is read in place with what the interpreter's own functions say, once, on the
  // first thread with Python frames.
  Mode check_layout(bool may_wait) {
    const PythonApi& api = python_api();
    const FrameLayout* layout = nullptr;
    for (const FrameLayout& l : kLayouts)
      if (l.minor == api.minor) layout = &l;
    if (!may_wait && !holds_gil()) return Mode::kUnchecked;
    PythonScope scope;
    if (!scope.entered()) return Mode::kUnchecked;
    void* thread = api.this_thread_state();
    void* frame = api.frame_of_thread(thread);
    if (!frame) return Mode::kUnchecked;  // nothing to compare with yet
    Mode result = Mode::kPublic;
    if (layout && api.frame_lasti) {
      layout_ = layout;
      // Before anything is followed: the thread's current frame must be the one that its frame
      // object names.
      if (current_frame(thread) == read_at<const void*>(frame, kFrameObjectFrame)) {
        result = compare(thread, frame);
        void* code = api.frame_code(frame);
        CodeLayout found;
        found.file = find_field(code, "co_filename", found);
        found.function = find_field(code, "co_qualname", found);
        code_layout_ = found;
        api.decref(code);
      }
    }
    api.decref(frame);
    mode_.store(result, std::memory_order_release);
    return result;
  }

  Mode compare(void* thread, void* frame) {
    const PythonApi& api = python_api();
    RawFrame raw[kMaxFrames];
    size_t n = walk(thread, raw);
    api.incref(frame);
    bool same = n > 0;
    size_t i = 0;
    for (void* at = frame; at;) {
      void* code = api.frame_code(at);
      int lasti = api.frame_lasti(at);
      if (i < n && same) {
        int start = static_cast<int>(raw[i].instruction - static_cast<const char*>(code)) - lasti;
        if (i == 0) code_start_.store(start, std::memory_order_relaxed);
        same = code == raw[i].code && start == code_start_.load(std::memory_order_relaxed);
      }
      api.decref(code);
      void* back = api.frame_back(at);
      api.decref(at);
      at = back;
      i++;
    }
    return same && (i == n || n == kMaxFrames) ? Mode::kDirect : Mode::kPublic;
  }

  uint32_t with_public_functions(bool may_wait, size_t& depth) {
    if (!may_wait && !holds_gil()) return 0;
    PythonScope scope;
    if (!scope.entered()) return 0;
    const PythonApi& api = python_api();
    abi::Frame frames[kMaxFrames];
    size_t n = 0;
    void* frame = api.frame_of_thread(api.this_thread_state());
    while (frame && n < kMaxFrames) {
      void* code = api.frame_code(frame);
      int line = api.frame_line(frame);
      uint64_t key = mix(reinterpret_cast<uint64_t>(code), static_cast<uint64_t>(line));
      std::unique_lock<std::mutex> lock(mutex_);
      auto found = public_frames_.find(key);
      if (found == public_frames_.end()) {
        lock.unlock();
        abi::Frame made = describe_code(code, 0);
        made.line = line > 0 ? static_cast<uint32_t>(line) : 0;
        api.incref(code);
        lock.lock();
        found = public_frames_.emplace(key, made).first;
      }
      frames[n++] = found->second;
      lock.unlock();
      api.decref(code);
      void* back = api.frame_back(frame);
      api.decref(frame);
      frame = back;
    }
    if (frame) api.decref(frame);
    depth = n;
    return n ? bridge_->intern_stack(frames, n) : 0;
  }

  abi::Frame describe(void* address) {
    abi::Frame frame;
    Dl_info info{};
    // A return address is one past the call; one byte back is inside the calling instruction.
    const char* inside = static_cast<const char*>(address) - 1;
    if (!dladdr(inside, &info) || !info.dli_fname) return frame;
    // The recorder's own frames, and the driver's, say nothing about the program.
    if (std::strstr(info.dli_fname, "libtonnage_torch") ||
        std::strstr(info.dli_fname, "libcuda.so"))
      return frame;
    frame.file = bridge_->intern_string(info.dli_fname, std::strlen(info.dli_fname));
    if (info.dli_sname) {
      int status = 0;
      char* plain = __cxxabiv1::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
      const char* name = status == 0 && plain ? plain : info.dli_sname;
      frame.function = bridge_->intern_string(name, std::strlen(name));
      std::free(plain);
    } else {
      char text[32];
      int n = std::snprintf(
          text, sizeof text, "+0x%llx",
          static_cast<unsigned long long>(inside - static_cast<const char*>(info.dli_fbase)));
      frame.function = bridge_->intern_string(text, static_cast<size_t>(n));
    }
    return frame;
  }

  const abi::Bridge* bridge_ = nullptr;
  const FrameLayout* layout_ = nullptr;
  CodeLayout code_layout_;
  std::atomic<Mode> mode_{Mode::kUnchecked};  // the two above are set before it
  std::atomic<int> code_start_{0};  // from a code object's address to its first instruction
  std::mutex mutex_;                // the tables below; never held while the GIL is waited for
  std::unordered_map<uint64_t, uint32_t> stacks_;
  std::unordered_map<const void*, abi::Frame> frames_;
  std::unordered_map<uint64_t, abi::Frame> public_frames_;
  std::unordered_map<void*, abi::Frame> native_frames_;
};

Stacks& stacks() {
  static Stacks* instance = new Stacks();
  return *instance;
}

}  // namespace

void stacks_start(const abi::Bridge* bridge) {
  stacks().start(bridge);
  void* warm[2];
  backtrace(warm, 2);  // the first call loads the unwinder; not under a lock of someone else's
}

uint32_t python_stack(bool may_wait, size_t* depth) {
  size_t ignored = 0;
  return stacks().python(may_wait, depth ? *depth : ignored);
}
uint32_t native_stack() { return stacks().native(); }

}  // namespace tonnage::recorder
