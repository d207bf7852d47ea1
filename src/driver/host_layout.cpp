#include "driver/host_layout.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

#include "driver/host_regions.h"

namespace tonnage::driver {
namespace {

constexpr size_t kUnifiedBytes = 8256ull << 20;
constexpr size_t kTableBytes = 19009536;

void occupy(size_t bytes) {
  mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

std::atomic<int> g_threads_ready{0};

void* wait_for_ever(void*) {
  // The C library gives a thread that allocates an arena of its own, 64 MiB of addresses.
  free(malloc(64));
  g_threads_ready.fetch_add(1);
  for (;;) pause();
}

// A thread as the driver's event handlers are: it sleeps, takes no signals, and keeps its arena
// until the process ends.
void start_sleeping_thread() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int ready = g_threads_ready.load();
  pthread_t thread;
  const bool started = pthread_create(&thread, nullptr, wait_for_ever, nullptr) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!started) return;
  pthread_detach(thread);
  // The arena must exist before the next step. One second is enough even on an overloaded machine.
  for (int i = 0; i < 10000 && g_threads_ready.load() == ready; i++) usleep(100);
}

}  // namespace

void lay_out_host_at_init() {
  start_sleeping_thread();
  occupy(kUnifiedBytes);
  occupy(kTableBytes);
}

void lay_out_host_at_context(HostRegions* regions) {
  start_sleeping_thread();
  occupy(kTableBytes);
  if (regions) regions->take(gpu::kRegion);
}

}  // namespace tonnage::driver
