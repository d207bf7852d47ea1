#include <stdio.h>
#include <stdlib.h>

#include <map>
#include <string_view>

#include "cli/host_files.h"
#include "cli/session_setup.h"

namespace tonnage::cli {

namespace fs = std::filesystem;

namespace {

// An empty element of a path list means the current folder, so no colon is left over when the list
// was empty.
std::string first_on_list(const std::string& first, const std::string& list) {
  return list.empty() ? first : first + ":" + list;
}

std::vector<fs::path> split_list(std::string_view list) {
  std::vector<fs::path> out;
  while (!list.empty()) {
    const size_t colon = list.find(':');
    if (colon != 0) out.emplace_back(list.substr(0, colon));
    if (colon == std::string_view::npos) break;
    list.remove_prefix(colon + 1);
  }
  return out;
}

bool same_folder(const fs::path& file, const fs::path& folder) {
  std::error_code error;
  return fs::weakly_canonical(folder, error) == file.parent_path();
}

// What `ldconfig -p` says of the driver, 64 bit first as it prints them.
std::vector<fs::path> loader_cache() {
  std::vector<fs::path> out;
  FILE* pipe = ::popen("PATH=\"$PATH:/sbin:/usr/sbin\" ldconfig -p 2>/dev/null", "r");
  if (pipe == nullptr) return out;
  char line[4096];
  while (::fgets(line, sizeof line, pipe) != nullptr) {
    const std::string_view text(line);
    const size_t arrow = text.find(" => ");
    if (text.find("libcuda.so.1 ") == std::string_view::npos || arrow == std::string_view::npos)
      continue;
    std::string_view path = text.substr(arrow + 4);
    while (!path.empty() && (path.back() == '\n' || path.back() == ' ')) path.remove_suffix(1);
    out.emplace_back(path);
  }
  ::pclose(pipe);
  return out;
}

}  // namespace

std::vector<std::string> child_environment(char** ours, const InstallPaths& paths,
                                           const fs::path& session_path,
                                           const fs::path& real_cuda) {
  std::map<std::string, std::string> values;
  std::vector<std::string> out;
  for (char** at = ours; at != nullptr && *at != nullptr; ++at) {
    const std::string_view entry(*at);
    const size_t equals = entry.find('=');
    if (equals == std::string_view::npos) {
      out.emplace_back(entry);
    } else {
      values.emplace(entry.substr(0, equals), entry.substr(equals + 1));
    }
  }
  values["TONNAGE_SESSION"] = session_path.string();
  // On a real GPU the pass-through driver takes the virtual one's place, and NVML is the real one.
  const fs::path drivers = real_cuda.empty() ? paths.vgpu_dir : paths.passthrough_dir;
  values["LD_LIBRARY_PATH"] = first_on_list(drivers.string(), values["LD_LIBRARY_PATH"]);
  values["PYTHONPATH"] = first_on_list(paths.python_dir.string(), values["PYTHONPATH"]);
  values["TRITON_LIBCUDA_PATH"] = drivers.string();
  if (real_cuda.empty())
    preload_host_files(values, paths.files_library);
  else
    values["TONNAGE_REAL_CUDA"] = real_cuda.string();
  for (const auto& [name, value] : values) out.push_back(name + "=" + value);
  return out;
}

Result<fs::path> find_real_driver(const InstallPaths& paths) {
  std::vector<fs::path> candidates;
  if (const char* named = ::getenv("TONNAGE_REAL_CUDA"); named != nullptr && *named != '\0') {
    candidates.emplace_back(named);
  } else {
    if (const char* list = ::getenv("LD_LIBRARY_PATH"); list != nullptr) {
      for (const auto& folder : split_list(list)) candidates.push_back(folder / "libcuda.so.1");
    }
    for (const auto& path : loader_cache()) candidates.push_back(path);
    for (const char* folder :
         {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
          "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/run/opengl-driver/lib"}) {
      candidates.push_back(fs::path(folder) / "libcuda.so.1");
    }
  }
  std::error_code error;
  for (const auto& candidate : candidates) {
    const fs::path real = fs::weakly_canonical(candidate, error);
    const bool ours = same_folder(real, paths.vgpu_dir) || same_folder(real, paths.passthrough_dir);
    if (!ours && fs::is_regular_file(real, error)) return real;
  }
  return Error{
      ErrorCode::kNotFound, "there is no NVIDIA driver on this machine (libcuda.so.1)", "--real",
      "run without --real for a virtual GPU, or name the driver's file in TONNAGE_REAL_CUDA"};
}

}  // namespace tonnage::cli
