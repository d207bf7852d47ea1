// A module image as programs hand it to the driver. This finds out its kind, chooses the right
// build for the device, and reads it when it is first needed.
//
// Opening an image reads headers only (libtorch_cuda.so has 444 fat binaries, cuBLASLt 2782). The
// first question about a kernel unpacks the chosen entry, keeps what was read, and frees the bytes.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>

#include "image/cubin.h"
#include "image/fatbin.h"

namespace tonnage::image {

// How long the caller's bytes stay.
enum class Keep {
  kForever,   // at least as long as the Module: read at the first question
  kThisCall,  // the caller may free them: read now
  kGuess,  // as long as the Module if they lie in a loaded library or program, else only this call
};

class Module {
 public:
  // `data` as passed to cuModuleLoadData, cuModuleLoadFatBinary or cuLibraryLoadData: a wrapper, a
  // fat binary, a cubin or PTX text that ends in NUL. Lengths come from the headers. nullptr:
  // *status is a CUresult (200 not an image that we know, 209 no code in it for this device, 218
  // PTX for a newer device or without .target, 222 PTX of a newer version, 2 out of memory). Never
  // throws. That is what cuModuleLoadData answers; cuLibraryLoadData of a driver 580 answers 200 to
  // a damaged ELF file and otherwise success, and gives the error when a kernel, module or variable
  // is asked for.
  static std::unique_ptr<Module> open(const void* data, int cc_major, int cc_minor, int* status,
                                      Keep keep = Keep::kGuess);

  // The same for bytes of known length, which are never left; wrappers, which hold a pointer, are
  // refused (200).
  static std::unique_ptr<Module> open(Bytes image, int cc_major, int cc_minor, int* status,
                                      Keep keep = Keep::kThisCall);

  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // The build that was chosen. Its payload is only valid while the caller's bytes are.
  const Entry& entry() const { return entry_; }

  // Everything about the code; reads it on the first call. nullptr: *status (may be null) says why.
  // Thread-safe.
  const CodeInfo* code(int* status = nullptr) const;

  // nullptr: no such kernel or variable, or the code cannot be read. Views stay valid as long as
  // the Module.
  const KernelInfo* kernel(std::string_view name) const;
  const GlobalInfo* global(std::string_view name) const;
  std::span<const KernelInfo> kernels() const;
  std::span<const GlobalInfo> globals() const;

  // Bytes that the module takes on a device when all of it is loaded: exact once the code was read,
  // before that the size of the unpacked image, which also counts symbols and debugging sections.
  uint64_t loaded_bytes() const;

 private:
  Module(const Entry& entry, int device_sm) : entry_(entry), device_sm_(device_sm) {}

  Entry entry_;
  int device_sm_;
  mutable std::mutex reading_;
  mutable std::atomic<const CodeInfo*> ready_{nullptr};
  mutable std::unique_ptr<CodeInfo> code_;
  mutable int failure_ = kSuccess;
};

}  // namespace tonnage::image
