#include "cli/cards.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cards/catalogue.h"

namespace tonnage::cli {

namespace {

constexpr uint64_t kLeastMemoryBytes = 64ull << 20;

// What the asking process hands back through a pipe.
struct Answer {
  int error = 0;  // the driver's, 0: none; -1: not loadable
  int count = 0;
  char name[abi::kMaxDevices][96] = {};
  uint64_t total_bytes[abi::kMaxDevices] = {};
  uint8_t uuid[abi::kMaxDevices][16] = {};
  int cc_major[abi::kMaxDevices] = {}, cc_minor[abi::kMaxDevices] = {};
};

template <class Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(::dlsym(library, name));
}

// CUDA driver API by hand: the binary is built without cuda.h and must run without a driver.
void ask_driver(const char* path, Answer& answer) {
  constexpr int kComputeMajor = 75, kComputeMinor = 76;
  answer.error = -1;
  void* library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return;
  const auto init = symbol<int (*)(unsigned)>(library, "cuInit");
  const auto count = symbol<int (*)(int*)>(library, "cuDeviceGetCount");
  const auto name = symbol<int (*)(char*, int, int)>(library, "cuDeviceGetName");
  const auto total = symbol<int (*)(size_t*, int)>(library, "cuDeviceTotalMem_v2");
  const auto uuid = symbol<int (*)(void*, int)>(library, "cuDeviceGetUuid");
  const auto attribute = symbol<int (*)(int*, int, int)>(library, "cuDeviceGetAttribute");
  if (!init || !count || !name || !total || !uuid || !attribute) return;
  if ((answer.error = init(0)) != 0 || (answer.error = count(&answer.count)) != 0) return;
  if (answer.count > abi::kMaxDevices) answer.count = abi::kMaxDevices;
  for (int i = 0; i < answer.count; ++i) {
    size_t bytes = 0;
    name(answer.name[i], sizeof answer.name[i], i);
    total(&bytes, i);
    answer.total_bytes[i] = bytes;
    uuid(answer.uuid[i], i);
    attribute(&answer.cc_major[i], kComputeMajor, i);
    attribute(&answer.cc_minor[i], kComputeMinor, i);
  }
}

}  // namespace

Result<std::vector<abi::CardDesc>> choose_cards(const std::string& gpu, const std::string& memory) {
  std::optional<uint64_t> bytes;
  if (!memory.empty()) {
    auto parsed = cards::parse_bytes(memory);
    if (!parsed) {
      Error error = parsed.error();
      error.code = ErrorCode::kUsage;
      if (error.where.empty()) error.where = "--memory";
      return error;
    }
    if (*parsed < kLeastMemoryBytes) {
      return Error{ErrorCode::kUsage, "a virtual GPU has at least 64 MiB", "--memory",
                   "for example: --memory 10GiB"};
    }
    bytes = *parsed;
  }
  const char* set = ::getenv("TONNAGE_GPU");
  const bool from_environment = gpu.empty() && set != nullptr && *set != '\0';
  auto cards = cards::parse_gpu_spec(from_environment ? set : gpu.empty() ? kDefaultGpu : gpu);
  if (!cards) {
    Error error = cards.error();
    error.code = ErrorCode::kUsage;
    if (error.where.empty()) error.where = from_environment ? "TONNAGE_GPU" : "--gpu";
    return error;
  }
  std::vector<abi::CardDesc> out;
  for (const auto& card : *cards)
    out.push_back(cards::to_desc(card, static_cast<int>(out.size()), bytes));
  return out;
}

Result<std::vector<abi::CardDesc>> real_cards(const std::filesystem::path& driver) {
  int ends[2];
  if (::pipe2(ends, 0) != 0) return Error{ErrorCode::kSystem, ::strerror(errno), "pipe", ""};
  const pid_t pid = ::fork();
  if (pid < 0) return Error{ErrorCode::kSystem, ::strerror(errno), "fork", ""};
  if (pid == 0) {
    static Answer answer;
    ask_driver(driver.c_str(), answer);
    const ssize_t n = ::write(ends[1], &answer, sizeof answer);
    ::_exit(n == static_cast<ssize_t>(sizeof answer) ? 0 : 1);
  }
  ::close(ends[1]);
  static Answer answer;
  size_t got = 0;
  while (got < sizeof answer) {
    const ssize_t n = ::read(ends[0], reinterpret_cast<char*>(&answer) + got, sizeof answer - got);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    got += static_cast<size_t>(n);
  }
  ::close(ends[0]);
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (got != sizeof answer || answer.error != 0) {
    return Error{ErrorCode::kSystem,
                 got == sizeof answer && answer.error > 0
                     ? "the driver refuses to start (error " + std::to_string(answer.error) + ")"
                     : "the driver cannot be loaded",
                 driver.string(), "does nvidia-smi work?"};
  }
  std::vector<abi::CardDesc> out(static_cast<size_t>(answer.count));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = abi::CardDesc{};
    ::memcpy(out[i].name, answer.name[i], sizeof out[i].name);
    out[i].name[sizeof out[i].name - 1] = '\0';
    ::memcpy(out[i].uuid, answer.uuid[i], sizeof out[i].uuid);
    out[i].total_bytes = out[i].nvml_total_bytes = answer.total_bytes[i];
    out[i].cc_major = answer.cc_major[i];
    out[i].cc_minor = answer.cc_minor[i];
  }
  return out;
}

}  // namespace tonnage::cli
