// The libraries that enter other people's processes run with glibc 2.31 and later, though they are
// built with a newer one. Since glibc 2.32 to 2.36 some functions have a newer symbol version (they
// moved into libc.so.6, or were inline before), or are new and used by the static libstdc++ and
// libgcc. This file stands before them inside such a library: hidden definitions that call the old
// versions, which every glibc has. tools/check_guest_libraries.py checks the result, and names the
// functions that are to be added here.
#define _GNU_SOURCE
#include <features.h>

#if defined(__x86_64__) && defined(__GLIBC__) && __GLIBC_PREREQ(2, 32)

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

// Of pthread_setspecific's value, which it keeps and does not read.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#define HIDDEN __attribute__((visibility("hidden")))
// `name` calls the version of it that glibc has had since its beginning on x86-64.
#define USE_OLD(result, name, parameters, arguments) \
  USE_VERSION("GLIBC_2.2.5", result, name, parameters, arguments)
#define USE_VERSION(version, result, name, parameters, arguments) \
  extern result old_##name parameters;                            \
  __asm__(".symver old_" #name ", " #name "@" version);           \
  HIDDEN result name parameters;                                  \
  result name parameters { return old_##name arguments; }

USE_OLD(void*, dlopen, (const char* file, int mode), (file, mode))
USE_OLD(void*, dlsym, (void* restrict handle, const char* restrict name), (handle, name))
USE_OLD(char*, dlerror, (void), ())
USE_OLD(int, dladdr, (const void* address, Dl_info* info), (address, info))

USE_OLD(int, pthread_create,
        (pthread_t* restrict thread, const pthread_attr_t* restrict attributes,
         void* (*start)(void*), void* restrict argument),
        (thread, attributes, start, argument))
USE_OLD(int, pthread_detach, (pthread_t thread), (thread))
USE_OLD(int, pthread_join, (pthread_t thread, void** result), (thread, result))
USE_OLD(int, pthread_key_delete, (pthread_key_t key), (key))
USE_OLD(void*, pthread_getspecific, (pthread_key_t key), (key))
USE_OLD(int, pthread_setspecific, (pthread_key_t key, const void* value), (key, value))
USE_OLD(int, pthread_rwlock_rdlock, (pthread_rwlock_t * lock), (lock))
USE_OLD(int, pthread_rwlock_wrlock, (pthread_rwlock_t * lock), (lock))
USE_OLD(int, pthread_rwlock_unlock, (pthread_rwlock_t * lock), (lock))
USE_VERSION("GLIBC_2.3.3", int, pthread_condattr_setclock,
            (pthread_condattr_t * attributes, clockid_t clock), (attributes, clock))
USE_OLD(int, pthread_once, (pthread_once_t * once, void (*function)(void)), (once, function))
USE_OLD(int, pthread_key_create, (pthread_key_t * key, void (*destroy)(void*)), (key, destroy))
USE_OLD(int, __pthread_key_create, (pthread_key_t * key, void (*destroy)(void*)), (key, destroy))
USE_OLD(int, pthread_mutex_timedlock,
        (pthread_mutex_t* restrict mutex, const struct timespec* restrict until), (mutex, until))
USE_OLD(int, pthread_sigmask, (int how, const sigset_t* restrict set, sigset_t* restrict before),
        (how, set, before))

// Before glibc 2.33 these were inline functions around versioned ones.
enum { kStatVersion = 1 };
extern int __xstat(int version, const char* path, struct stat* out);
extern int __fxstat(int version, int fd, struct stat* out);
extern int __lxstat(int version, const char* path, struct stat* out);
#undef stat64
#undef fstat64
#undef lstat64
HIDDEN int stat(const char* restrict path, struct stat* restrict out);
HIDDEN int fstat(int fd, struct stat* out);
HIDDEN int lstat(const char* restrict path, struct stat* restrict out);
HIDDEN int fstat64(int fd, struct stat64* out);
HIDDEN int stat64(const char* restrict path, struct stat64* restrict out);
int stat(const char* restrict path, struct stat* restrict out) {
  return __xstat(kStatVersion, path, out);
}
int fstat(int fd, struct stat* out) { return __fxstat(kStatVersion, fd, out); }
int lstat(const char* restrict path, struct stat* restrict out) {
  return __lxstat(kStatVersion, path, out);
}
// The two structures are one on x86-64.
int fstat64(int fd, struct stat64* out) { return __fxstat(kStatVersion, fd, (struct stat*)out); }
int stat64(const char* restrict path, struct stat64* restrict out) {
  return __xstat(kStatVersion, path, (struct stat*)out);
}

// Never true: the counters of shared pointers are atomic then, as they were before glibc 2.32.
HIDDEN char __libc_single_threaded;
char __libc_single_threaded = 0;

#if __GLIBC_PREREQ(2, 36)
// For std::random_device.
HIDDEN uint32_t arc4random(void);
uint32_t arc4random(void) {
  uint32_t value = 0;
  if (getentropy(&value, sizeof value) != 0) return 0x9e3779b9u;
  return value;
}
#endif

#if __GLIBC_PREREQ(2, 35)
// Where the unwinder finds a library's tables.
struct Search {
  uintptr_t address;
  struct dl_find_object* out;
};

static int look_into(struct dl_phdr_info* info, size_t size, void* data) {
  (void)size;
  struct Search* search = data;
  uintptr_t start = 0, end = 0;
  void* tables = NULL;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr)* part = &info->dlpi_phdr[i];
    const uintptr_t from = info->dlpi_addr + part->p_vaddr, to = from + part->p_memsz;
    if (part->p_type == PT_GNU_EH_FRAME) tables = (void*)from;
    if (part->p_type == PT_LOAD && search->address >= from && search->address < to) {
      start = from;
      end = to;
    }
  }
  if (!end) return 0;
  if (!tables) return -1;
  search->out->dlfo_map_start = (void*)start;
  search->out->dlfo_map_end = (void*)end;
  search->out->dlfo_eh_frame = tables;
  return 1;
}

HIDDEN int _dl_find_object(void* address, struct dl_find_object* out);
int _dl_find_object(void* address, struct dl_find_object* out) {
  memset(out, 0, sizeof *out);
  struct Search search = {(uintptr_t)address, out};
  return dl_iterate_phdr(look_into, &search) == 1 ? 0 : -1;
}
#endif

#endif
