// freelog: a libcuda.so.1 in front of a real one that writes down which calls take memory of the
// device, and how much.
//
// Every function of cuda.h goes through here (freelog.S): free memory is read before and after the
// call, and a line is written where it changed; a change between two calls is a "gap" (private
// tables, other processes). Loads of machine code, the kernels taken from them, and each function's
// first launch are written in any case, with the sizes that are known.
//   FREELOG_REAL  the real driver (default: libcuda.so.1 where the driver's container puts it)
//   FREELOG_OUT   the log; the process number is appended
#include <dlfcn.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

extern "C" {
extern void* freelog_real[];
extern const char* const freelog_names[];
void freelog_leave();
}

namespace {

using Size = unsigned long long;

enum class Special : uint8_t {
  kNone,
  kQuiet,
  kProcAddress,
  kLoad,
  kGetKernel,
  kKernelFunction,
  kLaunch,
  kLaunchEx,
  kSize,
  kLimit
};

struct Frame {
  void* caller;
  int function;
  Special special;
  uint64_t args[4];
  bool measured;
  size_t before;
  bool first;
};

struct State {
  std::mutex mutex;
  FILE* out = nullptr;
  std::unordered_map<void*, void*> ours;  // real function -> the entry here
  std::unordered_map<void*, std::string> kernel_names;
  std::unordered_map<void*, void*> kernel_of;
  std::unordered_set<void*> launched;
  std::unordered_map<const void*, int> library_of;
  Special special[4096] = {};
  int loads = 0;
  bool known = false;  // free_seen holds a figure
  size_t free_seen = 0;
  int (*mem_get_info)(size_t*, size_t*) = nullptr;
  int (*func_get_attribute)(int*, int, void*) = nullptr;
  int (*kernel_get_function)(void**, void*) = nullptr;
};

State& state() {
  static State& s =
      *new State;  // never destroyed: the host's threads may outlive static destruction
  return s;
}

thread_local Frame frames[64];
thread_local int depth = 0;

void write_line(const char* format, ...) __attribute__((format(printf, 1, 2)));
void write_line(const char* format, ...) {
  State& s = state();
  if (!s.out) return;
  va_list args;
  va_start(args, format);
  vfprintf(s.out, format, args);
  va_end(args);
  fputc('\n', s.out);
  fflush(s.out);
}

// With FREELOG_MAPS set: how the process's address space has changed since the last look, one line
// a range ("m+", "m-").
void log_map_changes(const char* when) {
  static const bool wanted = getenv("FREELOG_MAPS") != nullptr;
  if (!wanted) return;
  static std::unordered_set<std::string>& last = *new std::unordered_set<std::string>;
  std::unordered_set<std::string> now;
  FILE* file = fopen("/proc/self/maps", "re");
  if (!file) return;
  char line[512];
  while (fgets(line, sizeof line, file)) {
    unsigned long long begin = 0, end = 0, inode = 0;
    char permissions[8] = {};
    if (sscanf(line, "%llx-%llx %7s %*s %*s %llu", &begin, &end, permissions, &inode) < 3 ||
        end - begin < (1ull << 20))
      continue;
    const char* name = strchr(line, '/');
    std::string text = std::string(line, strcspn(line, " ")) + " " + permissions;
    if (name && strstr(name, "nvidia"))
      text += " nvidia";
    else if (inode)
      text += " file";
    now.insert(text);
  }
  fclose(file);
  bool any = false;
  for (const std::string& range : now)
    if (!last.count(range)) write_line("%s m+ %s", any ? "" : when, range.c_str()), any = true;
  for (const std::string& range : last)
    if (!now.count(range)) write_line("%s m- %s", any ? "" : when, range.c_str()), any = true;
  last = std::move(now);
}

// Free memory of the current context's device; false without one.
bool free_now(size_t* free_bytes) {
  size_t total = 0;
  return state().mem_get_info && state().mem_get_info(free_bytes, &total) == 0;
}

// The size of a fat binary, an ELF file or PTX text, in bytes.
Size image_bytes(const void* image) {
  if (!image) return 0;
  uint32_t magic;
  memcpy(&magic, image, 4);
  if (magic ==
      0x466243b1) {  // the wrapper that nvcc emits: magic, version, pointer to the fat binary
    const void* data;
    memcpy(&data, static_cast<const char*>(image) + 8, 8);
    return image_bytes(data);
  }
  if (magic == 0xba55ed50) {  // fat binary: magic, version u16, header size u16, size u64
    uint16_t header;
    uint64_t size;
    memcpy(&header, static_cast<const char*>(image) + 6, 2);
    memcpy(&size, static_cast<const char*>(image) + 8, 8);
    return header + size;
  }
  if (magic == 0x464c457f) {  // ELF: the section headers come last
    uint64_t offset;
    uint16_t entry, count;
    memcpy(&offset, static_cast<const char*>(image) + 40, 8);
    memcpy(&entry, static_cast<const char*>(image) + 58, 2);
    memcpy(&count, static_cast<const char*>(image) + 60, 2);
    return offset + Size{entry} * count;
  }
  return strlen(static_cast<const char*>(image));
}

// FNV-1a over the first 64 KiB: tells which image it is, in the same libraries elsewhere.
uint64_t image_hash(const void* image) {
  uint32_t magic;
  memcpy(&magic, image, 4);
  if (magic == 0x466243b1) memcpy(&image, static_cast<const char*>(image) + 8, 8);
  Size n = image_bytes(image);
  if (n > 65536) n = 65536;
  uint64_t h = 1469598103934665603ull;
  for (Size i = 0; i < n; i++)
    h = (h ^ static_cast<const unsigned char*>(image)[i]) * 1099511628211ull;
  return h;
}

std::string library_path(const void* address) {
  Dl_info info;
  if (!dladdr(address, &info) || !info.dli_fname) return "heap";
  const char* slash = strrchr(info.dli_fname, '/');
  return slash ? slash + 1 : info.dli_fname;
}

std::string name_of(void* function) {
  State& s = state();
  if (auto i = s.kernel_names.find(function); i != s.kernel_names.end()) return i->second;
  if (auto i = s.kernel_of.find(function); i != s.kernel_of.end()) return name_of(i->second);
  return "?";
}

std::string attributes_of(void* handle) {
  State& s = state();
  void* function = handle;
  if (s.kernel_names.count(handle) && !s.kernel_of.count(handle) && s.kernel_get_function) {
    void* f = nullptr;
    if (s.kernel_get_function(&f, handle) == 0 && f) function = f;
  }
  int shared = -1, constant = -1, local = -1, registers = -1;
  s.func_get_attribute(&shared, 1, function);
  s.func_get_attribute(&constant, 2, function);
  s.func_get_attribute(&local, 3, function);
  s.func_get_attribute(&registers, 4, function);
  char text[128];
  snprintf(text, sizeof text, "shared %d const %d local %d regs %d", shared, constant, local,
           registers);
  return text;
}

Special special_of(const std::string& n) {
  auto is = [&](const char* base) {
    size_t k = strlen(base);
    return n.compare(0, k, base) == 0 && (n.size() == k || n[k] == '_');
  };
  if (is("cuGetProcAddress")) return Special::kProcAddress;
  if (is("cuLibraryLoadData") || is("cuModuleLoadData") || is("cuModuleLoadDataEx") ||
      is("cuModuleLoadFatBinary"))
    return Special::kLoad;
  if (is("cuLibraryGetKernel") || is("cuModuleGetFunction")) return Special::kGetKernel;
  if (is("cuKernelGetFunction")) return Special::kKernelFunction;
  if (is("cuLaunchKernel") || is("cuLaunchCooperativeKernel")) return Special::kLaunch;
  if (is("cuLaunchKernelEx")) return Special::kLaunchEx;
  if (is("cuMemAlloc")) return Special::kSize;
  if (is("cuCtxSetLimit")) return Special::kLimit;
  for (const char* q : {"cuCtxGetCurrent",
                        "cuCtxGetDevice",
                        "cuCtxSetCurrent",
                        "cuDeviceGetAttribute",
                        "cuStreamIsCapturing",
                        "cuStreamGetCaptureInfo",
                        "cuEventQuery",
                        "cuPointerGetAttribute",
                        "cuPointerGetAttributes",
                        "cuGetErrorName",
                        "cuGetErrorString",
                        "cuFuncGetAttribute",
                        "cuKernelGetAttribute",
                        "cuMemGetInfo",
                        "cuThreadExchangeStreamCaptureMode",
                        "cuDevicePrimaryCtxGetState",
                        "cuDeviceGet",
                        "cuDeviceGetCount",
                        "cuDriverGetVersion",
                        "cuGetExportTable",
                        "cuStreamGetPriority",
                        "cuStreamGetFlags",
                        "cuFuncGetModule",
                        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                        "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags"})
    if (is(q)) return Special::kQuiet;
  return Special::kNone;
}

void set_up() {
  State& s = state();
  const char* path = getenv("FREELOG_REAL");
  void* real = dlopen(path ? path : "/usr/local/nvidia/lib64/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!real) {
    fprintf(stderr, "freelog: %s; name the real driver with FREELOG_REAL\n", dlerror());
    return;
  }
  if (const char* out = getenv("FREELOG_OUT"))
    s.out = fopen((std::string(out) + "." + std::to_string(getpid())).c_str(), "w");
  Dl_info info;
  dladdr(reinterpret_cast<void*>(&set_up), &info);
  void* self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  for (int i = 0; freelog_names[i]; i++) {
    freelog_real[i] = dlsym(real, freelog_names[i]);
    if (i < 4096) s.special[i] = special_of(freelog_names[i]);
    if (freelog_real[i])
      if (void* ours = dlsym(self, freelog_names[i])) s.ours.emplace(freelog_real[i], ours);
  }
  s.mem_get_info = reinterpret_cast<int (*)(size_t*, size_t*)>(dlsym(real, "cuMemGetInfo_v2"));
  s.func_get_attribute =
      reinterpret_cast<int (*)(int*, int, void*)>(dlsym(real, "cuFuncGetAttribute"));
  s.kernel_get_function =
      reinterpret_cast<int (*)(void**, void*)>(dlsym(real, "cuKernelGetFunction"));
}

int not_supported() { return 801; }

// What there is to say about a finished call besides the change of free memory; empty: nothing.
std::string details(const Frame& f, int rc) {
  State& s = state();
  char text[512] = "";
  auto out_pointer = [&] {
    void* p = nullptr;
    if (rc == 0 && f.args[0]) memcpy(&p, reinterpret_cast<void*>(f.args[0]), 8);
    return p;
  };
  switch (f.special) {
    case Special::kLoad: {
      const void* image = reinterpret_cast<const void*>(f.args[1]);
      const void* data = image;
      if (image && *static_cast<const uint32_t*>(image) == 0x466243b1)
        memcpy(&data, static_cast<const char*>(image) + 8, 8);
      int number = s.loads++;
      s.library_of[out_pointer()] = number;
      snprintf(text, sizeof text, "library %d image %llu hash %016llx from %s", number,
               image_bytes(image), static_cast<Size>(image_hash(image)),
               library_path(data).c_str());
      break;
    }
    case Special::kGetKernel: {
      const char* name = reinterpret_cast<const char*>(f.args[2]);
      if (void* kernel = out_pointer()) s.kernel_names[kernel] = name;
      auto lib = s.library_of.find(reinterpret_cast<const void*>(f.args[1]));
      snprintf(text, sizeof text, "library %d %.400s", lib == s.library_of.end() ? -1 : lib->second,
               name);
      break;
    }
    case Special::kKernelFunction:
      if (void* function = out_pointer())
        s.kernel_of[function] = reinterpret_cast<void*>(f.args[1]);
      snprintf(text, sizeof text, "%.400s", name_of(reinterpret_cast<void*>(f.args[1])).c_str());
      break;
    case Special::kLaunch:
    case Special::kLaunchEx: {
      void* handle = reinterpret_cast<void*>(f.args[f.special == Special::kLaunch ? 0 : 1]);
      snprintf(text, sizeof text, "first %s %.400s", attributes_of(handle).c_str(),
               name_of(handle).c_str());
      break;
    }
    case Special::kSize:
      snprintf(text, sizeof text, "size %llu address %llx", static_cast<Size>(f.args[1]),
               reinterpret_cast<Size>(out_pointer()));
      break;
    case Special::kLimit:
      snprintf(text, sizeof text, "limit %llu = %llu", static_cast<Size>(f.args[0]),
               static_cast<Size>(f.args[1]));
      break;
    default:
      snprintf(text, sizeof text, "args %llx %llx %llx", static_cast<Size>(f.args[0]),
               static_cast<Size>(f.args[1]), static_cast<Size>(f.args[2]));
      break;
  }
  return text;
}

struct SetUp {
  SetUp() { set_up(); }
} set_up_now;

}  // namespace

extern "C" {

// args: as pushed by freelog.S, so the first argument is the last: rax r9 r8 rcx rdx rsi rdi.
__attribute__((visibility("hidden"))) void* freelog_before(int function, void** caller,
                                                           const uint64_t* args) {
  State& s = state();
  void* real =
      freelog_real[function] ? freelog_real[function] : reinterpret_cast<void*>(&not_supported);
  if (depth >= 60) return real;
  Frame& f = frames[depth++];
  f = Frame{*caller, function, s.special[function], {args[6], args[5], args[4], args[3]}, false,
            0,       false};
  *caller = reinterpret_cast<void*>(&freelog_leave);
  bool measure = depth == 1 && f.special != Special::kQuiet && f.special != Special::kProcAddress;
  if (f.special == Special::kLaunch || f.special == Special::kLaunchEx) {
    std::lock_guard lock(s.mutex);
    f.first =
        s.launched.insert(reinterpret_cast<void*>(f.args[f.special == Special::kLaunch ? 0 : 1]))
            .second;
    measure &= f.first;
  }
  if (!measure) return real;
  f.measured = free_now(&f.before);
  if (f.measured) {
    std::lock_guard lock(s.mutex);
    log_map_changes("host");
    if (s.known && s.free_seen != f.before)
      write_line("%+lld gap before %s",
                 static_cast<long long>(f.before) - static_cast<long long>(s.free_seen),
                 freelog_names[function]);
    s.free_seen = f.before;
    s.known = true;
  }
  return real;
}

__attribute__((visibility("hidden"))) void* freelog_after(uint64_t result) {
  State& s = state();
  Frame f = frames[--depth];
  int rc = static_cast<int>(result);
  if (f.special == Special::kQuiet) return f.caller;
  std::lock_guard lock(s.mutex);
  if (f.special == Special::kProcAddress) {
    void** out = reinterpret_cast<void**>(f.args[1]);
    if (rc == 0 && out && *out)
      if (auto i = s.ours.find(*out); i != s.ours.end()) *out = i->second;
    return f.caller;
  }
  bool is_launch = f.special == Special::kLaunch || f.special == Special::kLaunchEx;
  if (is_launch && !f.first) return f.caller;
  size_t after = 0;
  long long change = 0;
  bool have = depth == 0 && free_now(&after);
  if (have) {
    // The first figure of all: what this call left free.
    if (!f.measured)
      write_line("= free %zu after %s", after, freelog_names[f.function]);
    else
      change = static_cast<long long>(after) - static_cast<long long>(f.before);
    s.free_seen = after;
    s.known = true;
  }
  bool always = is_launch || f.special == Special::kLoad || f.special == Special::kGetKernel ||
                f.special == Special::kKernelFunction || f.special == Special::kSize;
  if (have) log_map_changes(freelog_names[f.function]);
  if (change || always)
    write_line("%+lld %s rc %d %s", change, freelog_names[f.function], rc, details(f, rc).c_str());
  else if (f.special == Special::kLimit)
    write_line("%+lld %s rc %d %s", change, freelog_names[f.function], rc, details(f, rc).c_str());
  return f.caller;
}

}  // extern "C"
