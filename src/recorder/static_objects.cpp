// No static object of the recorder is ever destroyed: threads of the host process, and what PyTorch
// does when it exits, still call in then. Tonnage's own static objects are made with `new` and
// stay. Those that PyTorch's headers bring (they differ between its versions) would be registered
// for destruction by the compiler, with this function; here it registers nothing.
extern "C" __attribute__((visibility("hidden"))) int __cxa_atexit(void (*)(void*), void*,
                                                                  void*) noexcept {
  return 0;
}
