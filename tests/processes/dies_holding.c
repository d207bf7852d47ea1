// A child that holds 8 GiB ends: killed (0), by _exit (1), by exit (2). Its parent has not waited
// for it yet, and takes 8 GiB of a card that has less than 16.
#include <cuda.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static CUdeviceptr take(size_t bytes) {
  CUdeviceptr address = 0;
  const CUresult result = cuMemAlloc(&address, bytes);
  if (result) printf("refused %d\n", result);
  return address;
}
static void start(void) {
  CUdevice device;
  CUcontext context;
  if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
      cuCtxSetCurrent(context))
    _exit(9);
}

int main(int argc, char** argv) {
  const int way = argc > 1 ? atoi(argv[1]) : 0;
  int ready[2];
  if (pipe(ready)) return 8;
  const pid_t child = fork();
  if (child == 0) {
    start();
    take(8ull << 30);
    if (write(ready[1], "x", 1) != 1) _exit(8);
    if (way == 0) pause();
    if (way == 1) _exit(0);
    exit(0);
  }
  char byte;
  if (read(ready[0], &byte, 1) != 1) return 8;
  start();
  if (way == 0) kill(child, SIGKILL);
  siginfo_t info;
  waitid(P_PID, child, &info, WEXITED | WNOWAIT);  // a zombie from here on
  size_t free_bytes = 0, total = 0;
  cuMemGetInfo(&free_bytes, &total);
  printf("in use beside a zombie: %zu MiB\n", (total - free_bytes) >> 20);
  printf("parent: %s\n", take(8ull << 30) ? "served" : "refused");
  waitpid(child, NULL, 0);
  return 0;
}
