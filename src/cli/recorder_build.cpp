#include "cli/recorder_build.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <system_error>
#include <vector>

#include "abi/recorder_key.h"
#include "cli/exit_codes.h"
#include "cli/output.h"

extern char** environ;

namespace tonnage::cli {

namespace fs = std::filesystem;

namespace {

// True if the file contains the text. Libraries are a few megabytes; libc10.so is about one.
bool file_contains(const fs::path& path, const std::string& text) {
  std::ifstream in(path, std::ios::binary);
  std::string window;
  std::vector<char> block(1 << 20);
  while (in) {
    in.read(block.data(), static_cast<std::streamsize>(block.size()));
    window.append(block.data(), static_cast<size_t>(in.gcount()));
    if (window.find(text) != std::string::npos) return true;
    if (window.size() > text.size()) window.erase(0, window.size() - text.size());
  }
  return false;
}

// PyTorch's std::string: a function that takes one is named differently under libstdc++'s two ABIs.
bool uses_new_strings(const fs::path& torch_root) {
  return file_contains(torch_root / "lib" / "libc10.so", "torchCheckFailEPKcS2_jRKNSt7__cxx11");
}

// An exclusive lock on a file for as long as the object lives.
class FileLock {
 public:
  explicit FileLock(const fs::path& path)
      : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    if (fd_ >= 0) ::flock(fd_, LOCK_EX);
  }
  ~FileLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_;
};

// The compiler must not see the virtual driver or the injected Python folder of a running session.
std::vector<std::string> clean_environment() {
  std::vector<std::string> out;
  for (char** at = environ; at && *at; ++at) {
    std::string entry(*at);
    if (entry.rfind("LD_LIBRARY_PATH=", 0) == 0 || entry.rfind("LD_PRELOAD=", 0) == 0 ||
        entry.rfind("TONNAGE_", 0) == 0)
      continue;
    out.push_back(std::move(entry));
  }
  return out;
}

// Runs a program with both outputs in a file; its exit code, or an error if it could not be started.
Result<int> run_logged(const std::vector<std::string>& command, const fs::path& log) {
  std::vector<std::string> environment = clean_environment();
  std::vector<char*> argv, envp;
  for (const auto& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  for (const auto& entry : environment) envp.push_back(const_cast<char*>(entry.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t child = 0;
  const int failed = ::posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), envp.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    return Error{
        ErrorCode::kNotFound,
        fmt::format("cannot start the compiler: {}", std::system_category().message(failed)),
        command[0], "install one (Debian: apt-get install g++), or name one in CXX"};
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string first_error_line(const fs::path& log) {
  std::ifstream in(log);
  std::string line;
  while (std::getline(in, line))
    if (line.find("error") != std::string::npos) return line;
  return "";
}

std::vector<std::string> compile_command(const fs::path& torch_root, const InstallPaths& paths,
                                         const std::string& compiler, const fs::path& output) {
  const fs::path& source = paths.recorder_source_dir;
  const std::string include = (torch_root / "include").string();
  return {
      compiler,
      "-std=c++20",
      "-O3",
      "-fno-plt",  // calls into PyTorch are many, and all are bound when the library is loaded
      "-fno-semantic-interposition",
      "-g0",
      "-DNDEBUG",  // PyTorch's own builds have it, and a record function has another layout without
      fmt::format("-D_GLIBCXX_USE_CXX11_ABI={}", uses_new_strings(torch_root) ? 1 : 0),
      "-fPIC",
      "-shared",
      "-fvisibility=hidden",
      "-w",
      "-I" + source.string(),
      "-isystem",
      paths.cuda_names_dir.string(),
      "-isystem",
      include,
      "-isystem",
      include + "/torch/csrc/api/include",
      (source / "recorder" / "unity.cpp").string(),
      "-L" + (torch_root / "lib").string(),
      "-lc10",
      "-lc10_cuda",
      "-ltorch_cpu",
      "-ldl",
      "-o",
      output.string()};
}

// The two objects with which a recorder runs on machines whose C and C++ libraries are older than
// this one's (src/base): home folders are shared between machines, and packages carry recorders.
class OlderLibraries {
 public:
  OlderLibraries(const fs::path& sources, const std::string& compiler, const fs::path& stem,
                 const fs::path& log)
      : objects_{stem.string() + ".libc.o", stem.string() + ".libstdcxx.o"} {
    const std::vector<std::string> c_library = {
        compiler, "-x",       "c",
        "-O2",    "-fPIC",    "-fvisibility=hidden",
        "-w",     "-c",       (sources / "older_glibc.c").string(),
        "-o",     objects_[0]};
    const std::vector<std::string> cxx_library = {
        compiler, "-c", (sources / "older_libstdcxx.S").string(), "-o", objects_[1]};
    for (const auto& command : {c_library, cxx_library}) {
      const auto code = run_logged(command, log);
      made_ = made_ && code && *code == 0;
    }
  }
  ~OlderLibraries() {
    std::error_code ignored;
    for (const std::string& object : objects_) fs::remove(object, ignored);
  }
  OlderLibraries(const OlderLibraries&) = delete;
  OlderLibraries& operator=(const OlderLibraries&) = delete;

  // For the linker; nothing where they do not compile: that recorder is for this machine.
  std::vector<std::string> words() const {
    if (!made_) return {};
    // Before glibc 2.34 threads and dlopen were in libraries of their own.
    return {objects_[0],          objects_[1],     "-Wl,--no-as-needed",
            "-l:libpthread.so.0", "-l:libdl.so.2", "-Wl,--as-needed"};
  }

 private:
  std::array<std::string, 2> objects_;
  bool made_ = true;
};

// What the user named, or the first of the usual names that is on the path; c++ if none is.
std::string choose_compiler(const RecorderBuildOptions& options) {
  if (!options.compiler.empty()) return options.compiler;
  if (const char* named = ::getenv("CXX"); named && *named) return named;
  const char* path = ::getenv("PATH");
  for (const char* name : {"c++", "g++", "clang++"}) {
    std::istringstream folders(path ? path : "/usr/bin:/bin");
    for (std::string folder; std::getline(folders, folder, ':');)
      if (::access((fs::path(folder) / name).c_str(), X_OK) == 0) return name;
  }
  return "c++";
}

Result<fs::path> compile(const fs::path& torch_root, const InstallPaths& paths,
                         const RecorderBuildOptions& options, const fs::path& target) {
  const std::string compiler = choose_compiler(options);
  fs::path log = target;
  log.replace_extension(".log");
  fs::path made = target;
  made += fmt::format(".{}", ::getpid());
  std::error_code ignored;
  fs::remove(log, ignored);
  const OlderLibraries older(paths.recorder_source_dir / "base", compiler, made, log);
  std::vector<std::string> command = compile_command(torch_root, paths, compiler, made);
  for (std::string& word : older.words()) command.push_back(std::move(word));
  const auto code = run_logged(command, log);
  if (!code || *code != 0) fs::remove(made, ignored);
  if (!code) return code.error();
  if (*code != 0) {
    const std::string line = first_error_line(log);
    return Error{ErrorCode::kUnsupported,
                 fmt::format("the recorder for PyTorch {} does not compile{}",
                             abi::read_torch_build(torch_root.string()).version,
                             line.empty() ? "" : ": " + line),
                 torch_root.string(), "the compiler's output is in " + log.string()};
  }
  std::error_code error;
  fs::rename(made, target, error);
  if (error)
    return Error{ErrorCode::kIo, "cannot put the recorder in place: " + error.message(),
                 target.string(), ""};
  fs::remove(log, ignored);
  return target;
}

}  // namespace

Result<fs::path> ensure_recorder(const fs::path& torch_root, const InstallPaths& paths,
                                 const RecorderBuildOptions& options) {
  std::error_code error;
  const std::string name = abi::recorder_file_name(torch_root.string());
  if (name.empty() || !fs::exists(torch_root / "lib" / "libc10_cuda.so", error)) {
    return Error{ErrorCode::kNotFound, "there is no CUDA build of PyTorch here",
                 torch_root.string(),
                 "name the folder that has lib/libc10_cuda.so and include/: python -c 'import "
                 "torch; print(torch.__path__[0])'"};
  }
  const fs::path folder =
      options.output_dir.empty() ? fs::path(abi::recorder_cache_dir()) : options.output_dir;
  if (!options.force) {
    if (options.output_dir.empty() && fs::exists(paths.recorder_dir / name, error))
      return paths.recorder_dir / name;
    if (!folder.empty() && fs::exists(folder / name, error)) return folder / name;
  }
  if (folder.empty())
    return Error{ErrorCode::kUsage, "there is no folder for compiled recorders", "",
                 "set HOME or XDG_CACHE_HOME, or use --output"};
  if (!fs::exists(torch_root / "include" / "ATen" / "record_function.h", error)) {
    return Error{ErrorCode::kUnsupported, "this PyTorch has no headers",
                 (torch_root / "include").string(), "install the ordinary package from PyPI"};
  }
  fs::create_directories(folder, error);
  if (error)
    return Error{ErrorCode::kIo, "cannot make the folder: " + error.message(), folder.string(), ""};
  const FileLock lock(folder / (name + ".lock"));
  if (!options.force && fs::exists(folder / name, error))
    return folder / name;  // another process made it meanwhile
  return compile(torch_root, paths, options, folder / name);
}

void add_recorder_command(CLI::App& app, int& exit_code) {
  struct Arguments {
    std::string root, output, compiler;
    bool force = false, quiet = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "recorder", "Compile Tonnage's recorder for a PyTorch build (`run` does it by itself)");
  command->footer(R"help(
Examples:
  tonnage recorder --build .venv/lib/python3.11/site-packages/torch
  tonnage recorder --build $(python -c "import torch; print(torch.__path__[0])") --force)help");
  command
      ->add_option("--build", arguments->root,
                   "PyTorch's root folder: the one with lib/libc10_cuda.so and include/")
      ->type_name("FOLDER")
      ->required();
  command
      ->add_option("--output", arguments->output,
                   "Folder for the recorder (default: the user's cache folder)")
      ->type_name("FOLDER");
  command->add_option("--compiler", arguments->compiler, "C++20 compiler (default: $CXX, else c++)")
      ->type_name("PROGRAM");
  command->add_flag("--force", arguments->force, "Compile even if there is one");
  command->add_flag("--quiet", arguments->quiet, "Do not print its path");
  command->callback([arguments, &exit_code] {
    exit_code = kExitFailure;
    const auto paths = find_install_paths();
    if (!paths) return say(paths.error());
    RecorderBuildOptions options;
    options.output_dir = arguments->output;
    options.compiler = arguments->compiler;
    options.force = arguments->force;
    const auto made = ensure_recorder(arguments->root, *paths, options);
    if (!made) {
      exit_code = exit_code_of(made.error());
      return say(made.error());
    }
    if (!arguments->quiet) fmt::print("{}\n", made->string());
    exit_code = kExitSuccess;
  });
}

}  // namespace tonnage::cli
