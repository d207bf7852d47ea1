// Kills processes in the middle of allocations, argv[1] times two, beside one that watches the sum.
// Prints what is in use when only the last process is left, and the most that was ever seen.
#include <cuda.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct Shared {
  volatile int ready[2], watcher_ready, stop;
  volatile size_t most;
  volatile long over;
};
static size_t total;

static size_t used(void) {
  size_t free_bytes = 0;
  cuMemGetInfo(&free_bytes, &total);
  return total - free_bytes;
}
static void start(void) {
  CUdevice device;
  CUcontext context;
  if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
      cuCtxSetCurrent(context))
    _exit(9);
}
static void allocate_for_ever(volatile int* ready) {
  CUdeviceptr blocks[64] = {0};
  start();
  srand((unsigned)getpid());
  *ready = 1;
  for (;;) {
    const int at = rand() % 64;
    const size_t bytes =
        rand() % 50 ? (size_t)(rand() % 300 + 2) << 20 : (size_t)(rand() % 4) << 30;
    if (blocks[at]) {
      cuMemFree(blocks[at]);
      blocks[at] = 0;
    } else if (cuMemAlloc(&blocks[at], bytes ? bytes : 1)) {
      blocks[at] = 0;
    }
  }
}

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? atoi(argv[1]) : 250;
  struct Shared* shared =
      mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  const pid_t watcher = fork();
  if (watcher == 0) {
    start();
    shared->watcher_ready = 1;
    while (!shared->stop) {
      const size_t now = used();
      if (now > shared->most) shared->most = now;
      if (now > total) shared->over++;
      usleep(100);
    }
    _exit(0);
  }
  while (!shared->watcher_ready) usleep(1000);
  srand(5);
  for (int round = 0; round < rounds; round++) {
    pid_t children[2];
    for (int i = 0; i < 2; i++)
      if ((children[i] = fork()) == 0) allocate_for_ever(&shared->ready[i]);
    for (int wait = 0; wait < 2000 && !(shared->ready[0] && shared->ready[1]); wait++) usleep(1000);
    usleep((unsigned)(rand() % 8000));
    for (int i = 0; i < 2; i++) kill(children[i], SIGKILL);
    for (int i = 0; i < 2; i++) waitpid(children[i], NULL, 0);
    shared->ready[0] = shared->ready[1] = 0;
  }
  shared->stop = 1;
  waitpid(watcher, NULL, 0);
  start();
  printf("in use: %zu\n", used());
  printf("over the card: %ld\n", shared->over);
  return 0;
}
