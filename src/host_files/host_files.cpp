// The files that an NVIDIA driver makes, for programs that look at them: /dev/nvidia0,
// /dev/nvidiactl, /proc/driver/nvidia/version and so on. JAX, for example, takes the CPU without a
// word where /dev/nvidia0 is missing.
//
// `tonnage run` writes what there is to see into the session's folder (src/cli/host_files.h) and
// preloads this library. Its functions stand in front of the C library's. They change the path of
// exactly these files, where the machine has none of its own, and hand everything else on. A file
// of /proc/driver/nvidia is read from the session's folder. A device becomes /dev/null: it can be
// opened, and answers no command.
//
// Every process of a run loads this, also shells and compilers. So there is no state but the
// addresses of the functions behind, nothing is allocated, and errno stays what it was. The types
// of stat's buffers differ between C libraries; they are handed on and never looked at.
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>

// Not from unistd.h and the like: those declare the functions below with types that differ from one
// C library to the next. Before glibc 2.34 dlsym is in a library that a process may not have.
extern "C" {
long syscall(long number, ...);
char* getenv(const char* name);
#pragma weak dlsym
#pragma weak dlvsym
}

#define TONNAGE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kCurrentFolder = -100;  // AT_FDCWD of fcntl.h
constexpr size_t kMaxPath = 1024;
#ifdef __x86_64__
constexpr const char* kFirstVersion = "GLIBC_2.2.5";
#else
constexpr const char* kFirstVersion = "GLIBC_2.17";
#endif

size_t length_of(const char* text) {
  size_t n = 0;
  while (text[n]) n++;
  return n;
}

bool begins_with(const char* text, const char* start) {
  while (*start)
    if (*text++ != *start++) return false;
  return true;
}

bool exists(const char* path) {
  const int before = errno;
  const bool found = syscall(SYS_faccessat, kCurrentFolder, path, 0) == 0;
  errno = before;
  return found;
}

// The path in the session's folder that stands for `path`; false if it does not fit or there is no
// session.
bool session_path(const char* path, char (&out)[kMaxPath]) {
  const char* session = getenv("TONNAGE_SESSION");
  if (!session) return false;
  size_t folder = length_of(session);
  while (folder > 0 && session[folder - 1] != '/') folder--;
  constexpr char kFiles[] = "host";  // session's folder / host / path
  if (folder == 0 || folder + sizeof kFiles + length_of(path) >= kMaxPath) return false;
  size_t n = 0;
  for (; n < folder; n++) out[n] = session[n];
  for (const char* at = kFiles; *at; at++) out[n++] = *at;
  for (const char* at = path; *at; at++) out[n++] = *at;
  out[n] = 0;
  return true;
}

// What to open or look at instead of a path; the path itself where there is nothing to change.
class Seen {
 public:
  explicit Seen(const char* path) : path_(path) {
    if (!path || path[0] != '/') return;
    const bool device = begins_with(path, "/dev/nvidia");
    if (!device && !begins_with(path, "/proc/driver/nvidia")) return;
    if (!session_path(path, ours_) || !exists(ours_) || exists(path)) return;
    path_ = device ? "/dev/null" : ours_;
  }
  const char* path() const { return path_; }

 private:
  const char* path_;
  char ours_[kMaxPath];
};

// A function of the C library, or of whoever else was preloaded behind this one.
template <class F>
class Next {
 public:
  constexpr explicit Next(const char* name) : name_(name) {}
  F* get() {
    F* found = __atomic_load_n(&function_, __ATOMIC_ACQUIRE);
    if (!found && dlsym) {
      void* at = dlsym(RTLD_NEXT, name_);
      // Old programs ask for names that glibc keeps for them alone (__xstat).
      if (!at && dlvsym) at = dlvsym(RTLD_NEXT, name_, kFirstVersion);
      found = reinterpret_cast<F*>(at);
      __atomic_store_n(&function_, found, __ATOMIC_RELEASE);
    }
    return found;
  }

 private:
  const char* name_;
  F* function_ = nullptr;
};

int not_there() {
  errno = ENOSYS;
  return -1;
}

// Whether open() has a third argument.
bool has_mode(int flags) { return (flags & 0100) != 0 || (flags & 020200000) == 020200000; }

}  // namespace

// TONNAGE_NEXT(type, name, parameters): a variable that finds the function behind.
#define TONNAGE_NEXT(type, name, ...) static constinit Next<type(__VA_ARGS__)> next_##name(#name);

// A function whose path is its first argument; `rest` are the other parameters, `names` their names.
#define TONNAGE_PATH_FIRST(name, rest, names)                   \
  TONNAGE_NEXT(int, name, const char* TONNAGE_LIST rest)        \
  TONNAGE_EXPORT int name(const char* path TONNAGE_LIST rest) { \
    auto* next = next_##name.get();                             \
    if (!next) return not_there();                              \
    const Seen seen(path);                                      \
    return next(seen.path() TONNAGE_LIST names);                \
  }
// A function with one argument before the path: a folder, or the version of a structure.
#define TONNAGE_PATH_SECOND(name, rest, names)                             \
  TONNAGE_NEXT(int, name, int, const char* TONNAGE_LIST rest)              \
  TONNAGE_EXPORT int name(int first, const char* path TONNAGE_LIST rest) { \
    auto* next = next_##name.get();                                        \
    if (!next) return not_there();                                         \
    const Seen seen(path);                                                 \
    return next(first, seen.path() TONNAGE_LIST names);                    \
  }
#define TONNAGE_LIST(...) , ##__VA_ARGS__

TONNAGE_PATH_FIRST(stat, (void* out), (out))
TONNAGE_PATH_FIRST(stat64, (void* out), (out))
TONNAGE_PATH_FIRST(lstat, (void* out), (out))
TONNAGE_PATH_FIRST(lstat64, (void* out), (out))
TONNAGE_PATH_FIRST(access, (int mode), (mode))
TONNAGE_PATH_FIRST(eaccess, (int mode), (mode))
TONNAGE_PATH_FIRST(euidaccess, (int mode), (mode))
TONNAGE_PATH_FIRST(__open_2, (int flags), (flags))
TONNAGE_PATH_FIRST(__open64_2, (int flags), (flags))

TONNAGE_PATH_SECOND(fstatat, (void* out, int flags), (out, flags))
TONNAGE_PATH_SECOND(fstatat64, (void* out, int flags), (out, flags))
TONNAGE_PATH_SECOND(statx, (int flags, unsigned mask, void* out), (flags, mask, out))
TONNAGE_PATH_SECOND(faccessat, (int mode, int flags), (mode, flags))
TONNAGE_PATH_SECOND(__openat_2, (int flags), (flags))
TONNAGE_PATH_SECOND(__openat64_2, (int flags), (flags))
// Before glibc 2.33 these are what stat and its kin are compiled to.
TONNAGE_PATH_SECOND(__xstat, (void* out), (out))
TONNAGE_PATH_SECOND(__xstat64, (void* out), (out))
TONNAGE_PATH_SECOND(__lxstat, (void* out), (out))
TONNAGE_PATH_SECOND(__lxstat64, (void* out), (out))

#define TONNAGE_VERSION_AND_FOLDER(name)                                                     \
  TONNAGE_NEXT(int, name, int, int, const char*, void*, int)                                 \
  TONNAGE_EXPORT int name(int version, int folder, const char* path, void* out, int flags) { \
    auto* next = next_##name.get();                                                          \
    if (!next) return not_there();                                                           \
    const Seen seen(path);                                                                   \
    return next(version, folder, seen.path(), out, flags);                                   \
  }
TONNAGE_VERSION_AND_FOLDER(__fxstatat)
TONNAGE_VERSION_AND_FOLDER(__fxstatat64)

#define TONNAGE_OPEN(name)                                    \
  TONNAGE_NEXT(int, name, const char*, int, ...)              \
  TONNAGE_EXPORT int name(const char* path, int flags, ...) { \
    unsigned mode = 0;                                        \
    if (has_mode(flags)) {                                    \
      va_list rest;                                           \
      va_start(rest, flags);                                  \
      mode = va_arg(rest, unsigned);                          \
      va_end(rest);                                           \
    }                                                         \
    auto* next = next_##name.get();                           \
    if (!next) return not_there();                            \
    const Seen seen(path);                                    \
    return next(seen.path(), flags, mode);                    \
  }
TONNAGE_OPEN(open)
TONNAGE_OPEN(open64)

#define TONNAGE_OPENAT(name)                                              \
  TONNAGE_NEXT(int, name, int, const char*, int, ...)                     \
  TONNAGE_EXPORT int name(int folder, const char* path, int flags, ...) { \
    unsigned mode = 0;                                                    \
    if (has_mode(flags)) {                                                \
      va_list rest;                                                       \
      va_start(rest, flags);                                              \
      mode = va_arg(rest, unsigned);                                      \
      va_end(rest);                                                       \
    }                                                                     \
    auto* next = next_##name.get();                                       \
    if (!next) return not_there();                                        \
    const Seen seen(path);                                                \
    return next(folder, seen.path(), flags, mode);                        \
  }
TONNAGE_OPENAT(openat)
TONNAGE_OPENAT(openat64)

#define TONNAGE_STREAM(name)                                      \
  TONNAGE_NEXT(void*, name, const char*, const char*)             \
  TONNAGE_EXPORT void* name(const char* path, const char* mode) { \
    auto* next = next_##name.get();                               \
    if (!next) return not_there(), nullptr;                       \
    const Seen seen(path);                                        \
    return next(seen.path(), mode);                               \
  }
TONNAGE_STREAM(fopen)
TONNAGE_STREAM(fopen64)

// `ls -l` asks for a file's access list in this way.
#define TONNAGE_ATTRIBUTE(name)                                                            \
  TONNAGE_NEXT(long, name, const char*, const char*, void*, size_t)                        \
  TONNAGE_EXPORT long name(const char* path, const char* attribute, void* out, size_t n) { \
    auto* next = next_##name.get();                                                        \
    if (!next) return not_there();                                                         \
    const Seen seen(path);                                                                 \
    return next(seen.path(), attribute, out, n);                                           \
  }
TONNAGE_ATTRIBUTE(getxattr)
TONNAGE_ATTRIBUTE(lgetxattr)

TONNAGE_NEXT(void*, opendir, const char*)
TONNAGE_EXPORT void* opendir(const char* path) {
  auto* next = next_opendir.get();
  if (!next) return not_there(), nullptr;
  const Seen seen(path);
  return next(seen.path());
}
