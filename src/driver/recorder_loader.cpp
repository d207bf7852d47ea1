#include "driver/recorder_loader.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "abi/recorder_key.h"
#include "driver/bridge.h"
#include "driver/recording.h"

extern char** environ;

namespace tonnage::driver {
namespace {

int remember_torch(struct dl_phdr_info* info, size_t, void* out) {
  const char* path = info->dlpi_name;
  const size_t n = path ? strlen(path) : 0;
  static const char tail[] = "/libc10_cuda.so";
  if (n < sizeof tail - 1 || strcmp(path + n - (sizeof tail - 1), tail) != 0) return 0;
  *static_cast<std::string*>(out) = path;
  return 1;
}

// The root folder of the PyTorch that is loaded in this process; "" if there is none.
std::string loaded_torch_root() {
  std::string library;
  dl_iterate_phdr(remember_torch, &library);
  if (library.empty()) return "";
  if (char* real = realpath(library.c_str(), nullptr)) {
    library = real;
    free(real);
  }
  return abi::torch_root_of(library);
}

// What a process wrote, as one line: `tonnage` gives an error's message and hint a line each.
std::string read_line_of_words(int fd) {
  std::string text;
  char block[512];
  for (ssize_t n = 0; (n = read(fd, block, sizeof block)) != 0;) {
    if (n < 0 && errno != EINTR) break;
    if (n > 0 && text.size() < 2048) text.append(block, static_cast<size_t>(n));
  }
  const std::string name = "tonnage: ";
  if (text.compare(0, name.size(), name) == 0) text.erase(0, name.size());
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (char& c : text)
    if (c == '\n') c = ';';
  return text;
}

// Compiles a recorder for this PyTorch, in a process of its own; silent. What that process said is
// why there is none.
std::string build_recorder(const abi::Session& session, const std::string& root) {
  if (!session.tonnage_path[0]) return "";
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return "";
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  for (int fd = 0; fd < 2; fd++)
    posix_spawn_file_actions_addopen(&files, fd, "/dev/null", fd ? O_WRONLY : O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, ends[1], 2);
  std::string program = session.tonnage_path, command = "recorder", option = "--build",
              folder = root;
  char* arguments[] = {program.data(), command.data(), option.data(), folder.data(), nullptr};
  pid_t child = 0;
  const int failed = posix_spawn(&child, program.c_str(), &files, nullptr, arguments, environ);
  close(ends[1]);
  std::string said;
  if (failed == 0) {
    said = read_line_of_words(ends[0]);
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
  }
  close(ends[0]);
  posix_spawn_file_actions_destroy(&files);
  return said;
}

void* open_recorder(const abi::Session& session, const std::string& file) {
  for (const std::string& folder : {std::string(session.recorder_dir), abi::recorder_cache_dir()}) {
    const std::string path = folder + "/" + file;
    if (folder.empty() || access(path.c_str(), R_OK) != 0) continue;
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    const char* why = dlerror();
    record_message(
        std::string("the recorder for PyTorch could not be loaded: ") + (why ? why : path), true);
    return nullptr;
  }
  return nullptr;
}

std::atomic<bool> g_settled{
    false};  // PyTorch was there: a recorder runs, or the record says why not
std::atomic<unsigned long long> g_libraries{0};

// How many libraries were ever loaded into this process.
unsigned long long libraries_loaded() {
  unsigned long long count = 0;
  dl_iterate_phdr(
      [](struct dl_phdr_info* info, size_t, void* out) {
        *static_cast<unsigned long long*>(out) = info->dlpi_adds;
        return 1;
      },
      &count);
  return count;
}

// What the process itself was started with: it may have set it after the session began.
void record_facts(const std::string& root) {
  if (const std::string version = abi::read_torch_build(root).version; !version.empty())
    record_fact("torch_version", version);
  const char* settings = getenv("PYTORCH_ALLOC_CONF");
  if (!settings) settings = getenv("PYTORCH_CUDA_ALLOC_CONF");
  if (settings) record_fact("alloc_conf", settings);
}

}  // namespace

void load_recorder() {
  if (g_settled.load(std::memory_order_acquire)) return;
  const abi::Session* session = bridge()->session;
  if (!session || !session->record_path[0]) return;
  // Looked for anew only when something was loaded since the last time.
  const unsigned long long libraries = libraries_loaded();
  if (g_libraries.exchange(libraries) == libraries) return;
  const std::string root = loaded_torch_root();
  if (root.empty() || g_settled.exchange(true)) return;  // not a PyTorch program, so far
  record_facts(root);
  const std::string file = abi::recorder_file_name(root);
  void* library = file.empty() ? nullptr : open_recorder(*session, file);
  std::string why;
  if (!library && !file.empty()) {
    why = build_recorder(*session, root);
    library = open_recorder(*session, file);
  }
  using Start = int (*)(const abi::Bridge*);
  auto start =
      library ? reinterpret_cast<Start>(dlsym(library, abi::kRecorderStartFunction)) : nullptr;
  if (!start) {
    record_message("no recorder for the PyTorch in " + root +
                       ": operators, lines and categories are missing; " +
                       (why.empty() ? "`tonnage recorder --build " + root + "` says why" : why),
                   true);
    return;
  }
  if (const int code = start(bridge()); code != 0)
    record_message("the recorder for PyTorch did not start (code " + std::to_string(code) + ")",
                   true);
}

}  // namespace tonnage::driver
