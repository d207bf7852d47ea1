// The table behind cuGetProcAddress, generated from CUDA's own headers by tools/gen_driver.py.
#pragma once

namespace tonnage::driver {

struct ProcEntry {
  const char* symbol;      // without version suffix
  int since;               // CUDA version in which this variant appeared, e.g. 11030
  bool per_thread_stream;  // the variant whose null stream is the thread's own
  void* function;
};
extern const ProcEntry kProcTable[];  // by symbol, then mode, then version
extern const unsigned long kProcTableSize;

}  // namespace tonnage::driver
