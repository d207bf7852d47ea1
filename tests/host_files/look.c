// Looks at the files that it is given in every way that libtonnage_files.so stands in front of, and
// prints one line for each: which ways found it, and "errno" where one that worked changed errno.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static int changed = 0;

static void tell(const char* way, int found) {
  if (found) printf(" %s", way);
  if (found && errno != 77) changed = 1;
  errno = 77;
}

static int closed(int fd) {
  if (fd < 0) return 0;
  close(fd);
  return 1;
}

static int stream(FILE* file) {
  if (!file) return 0;
  fclose(file);
  return 1;
}

static int folder(DIR* opened) {
  if (!opened) return 0;
  closedir(opened);
  return 1;
}

// What programs that were made with a glibc before 2.33 call instead of stat.
static int old_stat(const char* name, const char* path, struct stat* out) {
  int (*function)(int, const char*, struct stat*) = dlvsym(RTLD_DEFAULT, name, "GLIBC_2.2.5");
  if (!function) function = dlsym(RTLD_DEFAULT, name);
  return function && function(1, path, out) == 0;
}

int main(int count, char** paths) {
  for (int i = 1; i < count; i++) {
    const char* path = paths[i];
    struct stat out;
    struct statx more;
    char byte;
    printf("%s:", path);
    changed = 0;
    errno = 77;
    tell("stat", stat(path, &out) == 0);
    tell("lstat", lstat(path, &out) == 0);
    tell("fstatat", fstatat(AT_FDCWD, path, &out, 0) == 0);
    tell("statx", statx(AT_FDCWD, path, 0, STATX_TYPE, &more) == 0);
    tell("xstat", old_stat("__xstat", path, &out));
    tell("lxstat", old_stat("__lxstat", path, &out));
    tell("access", access(path, R_OK) == 0);
    tell("eaccess", eaccess(path, R_OK) == 0);
    tell("faccessat", faccessat(AT_FDCWD, path, R_OK, 0) == 0);
    tell("open", closed(open(path, O_RDONLY)));
    tell("open64", closed(open64(path, O_RDONLY)));
    tell("openat", closed(openat(AT_FDCWD, path, O_RDONLY)));
    tell("fopen", stream(fopen(path, "r")));
    tell("fopen64", stream(fopen64(path, "r")));
    getxattr(path, "user.none", &byte, 1);
    const int present = errno != ENOENT;
    errno = 77;  // the attribute is nowhere
    tell("getxattr", present);
    tell("opendir", folder(opendir(path)));
    printf("%s\n", changed ? " errno" : "");
  }
  return 0;
}
