// Reads a snapshot and says how long it took and how much memory: one line of JSON.
// bench_snapshot.py compares with pickle.load.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>

#include "sources/snapshot/snapshot_reader.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: bench_snapshot FILE.pickle\n");
    return 2;
  }
  const auto start = std::chrono::steady_clock::now();
  const auto record = tonnage::sources::read_snapshot(std::string(argv[1]));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!record) {
    std::fprintf(stderr, "%s\n", record.error().text().c_str());
    return 1;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto cpu = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  std::printf(
      "{\"seconds\": %.4f, \"cpu_seconds\": %.4f, \"events\": %zu, \"peak_rss_bytes\": %lld}\n",
      seconds, cpu(usage.ru_utime) + cpu(usage.ru_stime), record->events.size(),
      static_cast<long long>(usage.ru_maxrss) * 1024);
  return 0;
}
