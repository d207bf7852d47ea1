// Counts the signals that it gets within three seconds.
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t count;
static void on_signal(int signal) {
  (void)signal;
  count++;
}

int main(void) {
  struct sigaction action = {0};
  action.sa_handler = on_signal;
  sigaction(SIGTERM, &action, NULL);
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGUSR1, &action, NULL);
  struct timespec start, now;
  clock_gettime(CLOCK_MONOTONIC, &start);
  dprintf(1, "ready\n");
  do {
    usleep(1000);
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while (now.tv_sec - start.tv_sec < 3);
  dprintf(1, "signals: %d\n", (int)count);
  return 0;
}
