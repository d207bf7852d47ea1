// A program runs with glibc 2.31 and later, though it is built with a newer one: older_glibc.c does
// it for functions, this file for the start. Since glibc 2.34 it is the C library that calls a
// program's own constructors; before, the program handed a function over that does.
#define _GNU_SOURCE
#include <features.h>

#if defined(__x86_64__) && defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)

#define HIDDEN __attribute__((visibility("hidden")))

typedef void Constructor(int, char**, char**);
typedef int Main(int, char**, char**);

extern HIDDEN Constructor* __preinit_array_start[];
extern HIDDEN Constructor* __preinit_array_end[];
extern HIDDEN Constructor* __init_array_start[];
extern HIDDEN Constructor* __init_array_end[];
extern HIDDEN void _init(void);

static void run_constructors(int count, char** words, char** environment) {
  for (Constructor** at = __preinit_array_start; at < __preinit_array_end; at++)
    (*at)(count, words, environment);
  _init();
  for (Constructor** at = __init_array_start; at < __init_array_end; at++)
    (*at)(count, words, environment);
}

extern int old_start(Main* main, int count, char** words, Constructor* init, void (*fini)(void),
                     void (*finish_loader)(void), void* stack_end);
__asm__(".symver old_start, __libc_start_main@GLIBC_2.2.5");

HIDDEN int __libc_start_main(Main* main, int count, char** words, Constructor* init,
                             void (*fini)(void), void (*finish_loader)(void), void* stack_end);
int __libc_start_main(Main* main, int count, char** words, Constructor* init, void (*fini)(void),
                      void (*finish_loader)(void), void* stack_end) {
  return old_start(main, count, words, init ? init : run_constructors, fini, finish_loader,
                   stack_end);
}

#endif
