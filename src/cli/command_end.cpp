#include "cli/command_end.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

namespace tonnage::cli {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr size_t kMostErrors = 32;
constexpr uintmax_t kMostErrorBytes = 64 << 10;

bool is_error_file(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  std::error_code ignored;
  return name.starts_with("error-") && name.ends_with(".json") && entry.is_regular_file(ignored) &&
         entry.file_size(ignored) <= kMostErrorBytes;
}

uint64_t time_of(const json& error) {
  const auto at = error.find("unix_ns");
  return at != error.end() && at->is_number_unsigned() ? at->get<uint64_t>() : UINT64_MAX;
}

// In time order: what failed first is most often the reason of the others.
json read_errors(const fs::path& folder) {
  std::vector<json> errors;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (!is_error_file(entry)) continue;
    std::ifstream file(entry.path());
    json error = json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (error.is_object()) errors.push_back(std::move(error));
  }
  std::ranges::stable_sort(errors, {}, time_of);
  json out = json::array();
  for (json& error : errors) {
    if (out.size() < kMostErrors) out.push_back(std::move(error));
  }
  return out;
}

}  // namespace

std::string command_end_json(const ChildExit& exit, const fs::path& session_folder,
                             const record::HostLimit& limit) {
  json end = {{"exit_code", exit.code}, {"wall_ns", exit.wall_ns}};
  if (exit.signal != 0) end["signal"] = exit.signal;
  if (!limit.name.empty()) end["host_limit"] = {{"name", limit.name}, {"bytes", limit.bytes}};
  if (json errors = read_errors(session_folder); !errors.empty()) end["errors"] = std::move(errors);
  return end.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace tonnage::cli
