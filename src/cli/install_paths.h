// Where the parts of Tonnage lie, relative to the running binary: in a build tree or in an
// installed prefix.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace tonnage::cli {

struct InstallPaths {
  std::filesystem::path executable;  // this binary, links resolved
  std::filesystem::path vgpu_dir;  // libcuda.so.1, libnvidia-ml.so.1: goes first on the library path
  std::filesystem::path
      passthrough_dir;  // the same for --real: a libcuda.so.1 that forwards to the real one
  std::filesystem::path files_library;  // libtonnage_files.so, which is preloaded
  std::filesystem::path recorder_dir;   // compiled recorders, one per PyTorch build
  std::filesystem::path
      python_dir;  // what goes first on PYTHONPATH; Python imports sitecustomize from it
  std::filesystem::path
      recorder_source_dir;  // sources of the recorder, to build one for another PyTorch
  std::filesystem::path cuda_names_dir;  // stands in for CUDA's headers where PyTorch has none
  bool installed = false;                // false: a build tree
};

// build tree: <build>/bin/tonnage, <build>/lib/{vgpu,passthrough,host_files,recorder},
// <source>/python/tonnage/inject installed:  <prefix>/bin/tonnage,
// <prefix>/lib/tonnage/{vgpu,passthrough,host_files,recorder},
//             <prefix>/share/tonnage/{python/tonnage/inject,recorder_src,toolkit_src}
// Error: the binary's own path cannot be read.
Result<InstallPaths> find_install_paths();

}  // namespace tonnage::cli
