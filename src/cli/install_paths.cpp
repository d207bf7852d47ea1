#include "cli/install_paths.h"

#include <system_error>

namespace tonnage::cli {

namespace fs = std::filesystem;

Result<InstallPaths> find_install_paths() {
  std::error_code error;
  InstallPaths paths;
  paths.executable = fs::read_symlink("/proc/self/exe", error);
  if (error) {
    return Error{ErrorCode::kSystem, "cannot find the path of this program: " + error.message(),
                 "/proc/self/exe", "mount /proc, or run on Linux"};
  }
  const fs::path prefix = paths.executable.parent_path().parent_path();
  const fs::path library = prefix / TONNAGE_INSTALL_LIBDIR / "tonnage";
  const fs::path share = prefix / TONNAGE_INSTALL_DATADIR / "tonnage";
  paths.installed = fs::exists(library / "vgpu", error);
  if (paths.installed) {
    paths.vgpu_dir = library / "vgpu";
    paths.passthrough_dir = library / "passthrough";
    paths.files_library = library / "host_files" / "libtonnage_files.so";
    paths.recorder_dir = library / "recorder";
    paths.python_dir = share / "python" / "tonnage" / "inject";
    paths.recorder_source_dir = share / "recorder_src";
    paths.cuda_names_dir = share / "toolkit_src" / "cuda_names";
  } else {
    paths.vgpu_dir = prefix / "lib" / "vgpu";
    paths.passthrough_dir = prefix / "lib" / "passthrough";
    paths.files_library = prefix / "lib" / "host_files" / "libtonnage_files.so";
    paths.recorder_dir = prefix / "lib" / "recorder";
    paths.python_dir = fs::path(TONNAGE_SOURCE_DIR) / "python" / "tonnage" / "inject";
    paths.recorder_source_dir = fs::path(TONNAGE_SOURCE_DIR) / "src";
    paths.cuda_names_dir = fs::path(TONNAGE_SOURCE_DIR) / "toolkit" / "cuda_names";
  }
  return paths;
}

}  // namespace tonnage::cli
