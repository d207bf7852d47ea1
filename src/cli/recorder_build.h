// `tonnage recorder`: compiles the recorder for one PyTorch build. The virtual driver calls it
// where no recorder fits; `make` calls it for the environment that it made.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>

#include "base/result.h"
#include "cli/install_paths.h"

namespace tonnage::cli {

struct RecorderBuildOptions {
  std::filesystem::path output_dir;  // empty: the user's cache folder (abi/recorder_key.h)
  std::string compiler;              // empty: $CXX, else c++
  bool force = false;                // compile even if there is one
};

// The recorder for the PyTorch build whose root folder this is (the one with lib/libc10_cuda.so and
// include/): found in the installed folder or in output_dir, else compiled, which takes about half
// a minute. Several processes may ask at once: one compiles, the others wait. The file is the same
// for every Python version and for C++ programs. Error: no CUDA build of PyTorch there, no
// compiler, it does not compile (a log is kept and named).
Result<std::filesystem::path> ensure_recorder(const std::filesystem::path& torch_root,
                                              const InstallPaths& paths,
                                              const RecorderBuildOptions& options);

void add_recorder_command(CLI::App& app, int& exit_code);

}  // namespace tonnage::cli
