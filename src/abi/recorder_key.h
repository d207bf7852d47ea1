// Which recorder belongs to which PyTorch build. Used by the virtual driver (to load one), the
// tonnage binary (to build one) and the Makefile's prebuilding; standard library only, no PyTorch
// headers.
//
// A PyTorch build is named by its root folder: the one with lib/libc10_cuda.so and include/
// (site-packages/torch, or an unpacked libtorch). The recorder is compiled against one build: its
// C++ interface is not stable between releases.
#pragma once

#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace tonnage::abi {

// Part of the file name: raise it when the recorder or the bridge changes, so that recorders built
// before are not loaded.
inline constexpr int kRecorderInterface = 7;

// "<root>/lib/libc10_cuda.so" -> "<root>"; "" if the path has another form.
inline std::string torch_root_of(const std::string& libc10_cuda_path) {
  const std::string tail = "/lib/libc10_cuda.so";
  if (libc10_cuda_path.size() <= tail.size()) return "";
  size_t at = libc10_cuda_path.size() - tail.size();
  return libc10_cuda_path.compare(at, tail.size(), tail) == 0 ? libc10_cuda_path.substr(0, at) : "";
}

namespace detail {
// The value of `name = 'value'` in a Python file like torch/version.py; "" if there is none.
inline std::string assigned(const std::string& text, const std::string& name) {
  size_t at = text.find("\n" + name);
  if (at == std::string::npos) return "";
  size_t end_of_line = text.find('\n', at + 1);
  std::string line =
      text.substr(at + 1, end_of_line == std::string::npos ? end_of_line : end_of_line - at - 1);
  size_t quote = line.find_first_of("'\"");
  if (quote == std::string::npos) return "";
  size_t end = line.find(line[quote], quote + 1);
  return end == std::string::npos ? "" : line.substr(quote + 1, end - quote - 1);
}

inline std::string read_small_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text(64 << 10, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount() > 0 ? in.gcount() : 0));
  return text;
}

inline std::string first_word(const std::string& text) {
  size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_first_of(" \t\r\n", begin) - begin);
}
}  // namespace detail

struct TorchBuild {
  std::string version;  // e.g. "2.11.0+cu130"; "" if the folder is no PyTorch build
  std::string commit;   // git commit that it was built from; "" if unknown
};

inline TorchBuild read_torch_build(const std::string& torch_root) {
  TorchBuild out;
  std::string python("\n");
  python.append(detail::read_small_file(torch_root + "/version.py"));
  out.version = detail::assigned(python, "__version__");
  out.commit = detail::assigned(python, "git_version");
  if (out.version.empty()) {
    out.version = detail::first_word(detail::read_small_file(torch_root + "/build-version"));
    out.commit = detail::first_word(detail::read_small_file(torch_root + "/build-hash"));
  }
  return out;
}

// e.g. "2.11.0+cu130-70d99e998b-1a2b3c-i1"; "" if the folder is no PyTorch build. The size of
// libc10.so tells apart builds of one commit with different C++ ABIs.
inline std::string recorder_key(const std::string& torch_root) {
  TorchBuild build = read_torch_build(torch_root);
  if (build.version.empty()) return "";
  struct stat info {};
  if (stat((torch_root + "/lib/libc10.so").c_str(), &info) != 0) return "";
  char tail[64];
  std::snprintf(tail, sizeof tail, "-%llx-i%d", static_cast<unsigned long long>(info.st_size),
                kRecorderInterface);
  std::string key = build.version + "-" + build.commit.substr(0, 10) + tail;
  for (char& c : key)
    if (c == '/' || c == ' ') c = '_';
  return key;
}

// The recorder's file name for this build; "" if the folder is no PyTorch build.
inline std::string recorder_file_name(const std::string& torch_root) {
  std::string key = recorder_key(torch_root);
  return key.empty() ? "" : "libtonnage_torch-" + key + ".so";
}

// Where `tonnage recorder --build` puts recorders: $XDG_CACHE_HOME/tonnage/recorder or
// ~/.cache/tonnage/recorder; "" without a home.
inline std::string recorder_cache_dir() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && cache[0] == '/')
    return std::string(cache) + "/tonnage/recorder";
  if (const char* home = std::getenv("HOME"); home && home[0])
    return std::string(home) + "/.cache/tonnage/recorder";
  return "";
}

// Name of the one function that a recorder exports for the driver: int (const
// tonnage::abi::Bridge*); 0: it runs.
inline constexpr const char* kRecorderStartFunction = "tonnage_torch_start";

}  // namespace tonnage::abi
