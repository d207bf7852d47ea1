// Peak memory and step time of the toolkit's techniques on one GPU, case by case.
//
//   bench_techniques [--filter TEXT] [--case "MODEL | TECHNIQUE | VARIANT"] [--steps N]
//                    [--json FILE] [--list]
//
// A case: 3 steps to warm up, then N steps whose peaks are the allocator's and whose time is the
// median of single steps, each waited for. Kept: allocated bytes between steps. Before: what
// earlier cases of this process left. run_techniques.py runs this, a process a case, and the same
// steps in Python.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "techniques.h"
#include "tonnage/torch/housekeeping.h"
#include "tonnage/torch/memory.h"

namespace {

struct Result {
  const bench::Case* c;
  int64_t peak_allocated_bytes = 0, peak_reserved_bytes = 0, kept_bytes = 0, before_bytes = 0;
  double median_ms = 0, fastest_ms = 0, slowest_ms = 0;
  std::string error{};
};

Result measure(const bench::Case& c, int steps) {
  Result result{&c};
  try {
    result.before_bytes = tonnage::memory_stats().allocated_bytes.all.current;
    bench::Step step = c.make();
    for (int i = 0; i < 3; i++) step.run();
    torch::cuda::synchronize();
    tonnage::PeakScope peak;
    std::vector<double> times_ms;
    for (int i = 0; i < steps; i++) {
      const auto begin = std::chrono::steady_clock::now();
      step.run();
      torch::cuda::synchronize();
      times_ms.push_back(
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
              .count());
    }
    std::sort(times_ms.begin(), times_ms.end());
    result.peak_allocated_bytes = peak.peak_allocated_bytes();
    result.peak_reserved_bytes = peak.peak_reserved_bytes();
    result.kept_bytes = tonnage::memory_stats().allocated_bytes.all.current;
    result.median_ms = times_ms[times_ms.size() / 2];
    result.fastest_ms = times_ms.front();
    result.slowest_ms = times_ms.back();
  } catch (const c10::Error& error) {
    result.error = error.what_without_backtrace();
  } catch (const std::exception& error) {
    result.error = error.what();
  }
  return result;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

std::string json_of(const std::vector<Result>& results, int steps) {
  std::string out = "{\"schema\": 1, \"steps\": " + std::to_string(steps) + ", \"cases\": [";
  for (size_t i = 0; i < results.size(); i++) {
    const Result& r = results[i];
    char numbers[400];
    std::snprintf(
        numbers, sizeof numbers,
        "\"peak_allocated_bytes\": %lld, \"peak_reserved_bytes\": %lld, \"kept_bytes\": %lld, "
        "\"allocated_before_bytes\": %lld, \"median_ms\": %.3f, \"fastest_ms\": %.3f, "
        "\"slowest_ms\": %.3f",
        static_cast<long long>(r.peak_allocated_bytes),
        static_cast<long long>(r.peak_reserved_bytes), static_cast<long long>(r.kept_bytes),
        static_cast<long long>(r.before_bytes), r.median_ms, r.fastest_ms, r.slowest_ms);
    out += std::string(i ? ",\n" : "\n") + "{\"model\": " + quoted(r.c->model) +
           ", \"technique\": " + quoted(r.c->technique) + ", \"variant\": " + quoted(r.c->variant) +
           ", " + (r.error.empty() ? numbers : "\"error\": " + quoted(r.error)) + "}";
  }
  return out + "\n]}\n";
}

}  // namespace

int main(int argc, char** argv) {
  std::string filter, json, only;
  int steps = 7;
  bool list = false;
  for (int i = 1; i < argc; i++) {
    const std::string option = argv[i];
    if (option == "--list")
      list = true;
    else if (option == "--filter" && i + 1 < argc)
      filter = argv[++i];
    else if (option == "--case" && i + 1 < argc)
      only = argv[++i];
    else if (option == "--json" && i + 1 < argc)
      json = argv[++i];
    else if (option == "--steps" && i + 1 < argc && std::atoi(argv[i + 1]) > 0)
      steps = std::atoi(argv[++i]);
    else {
      std::fprintf(stderr,
                   "usage: bench_techniques [--filter TEXT] [--case \"MODEL | TECHNIQUE | "
                   "VARIANT\"] [--steps N] [--json FILE] [--list]\n");
      return 2;
    }
  }
  std::vector<bench::Case> cases;
  bench::add_memory_cases(cases);
  bench::add_model_cases(cases);
  std::vector<Result> results;
  if (!list && !torch::cuda::is_available()) {
    std::fprintf(stderr, "bench_techniques: no CUDA device\n");
    return 1;
  }
  at::globalContext().setFloat32MatmulPrecision("high");  // TF32, as run_techniques.py sets it
  for (const bench::Case& c : cases) {
    if ((c.model + " " + c.technique + " " + c.variant).find(filter) == std::string::npos) continue;
    const std::string name = c.model + " | " + c.technique + " | " + c.variant;
    if (!only.empty() && name != only) continue;
    if (list) {
      std::printf("%s\n", name.c_str());
      continue;
    }
    results.push_back(measure(c, steps));
    const Result& r = results.back();
    std::printf("%-9s %-22s %-24s ", c.model.c_str(), c.technique.c_str(), c.variant.c_str());
    if (r.error.empty())
      std::printf("peak %9.1f MiB  kept %8.1f MiB  %8.2f ms (%.2f to %.2f)\n",
                  double(r.peak_allocated_bytes) / (1 << 20), double(r.kept_bytes) / (1 << 20),
                  r.median_ms, r.fastest_ms, r.slowest_ms);
    else
      std::printf("%s\n", r.error.c_str());
    std::fflush(stdout);
    tonnage::empty_cache();
  }
  if (!only.empty() && !list && results.empty()) {
    std::fprintf(stderr, "bench_techniques: there is no case \"%s\" (see --list)\n", only.c_str());
    return 2;
  }
  if (!json.empty() && !list) {
    std::ofstream file(json);
    file << json_of(results, steps);
    if (!file.flush()) {
      std::fprintf(stderr, "bench_techniques: %s could not be written\n", json.c_str());
      return 1;
    }
  }
  return 0;
}
