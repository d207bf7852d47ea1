// The bridge: how Tonnage's recorder inside a host process reaches the virtual driver.
//
// The driver exports only the driver's own symbols. So the recorder asks cuGetExportTable for
// kBridgeUuid, and gets this table. All functions may be called from any thread, never throw, and
// do nothing once recording has stopped.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/event.h"

namespace tonnage::abi {

inline constexpr unsigned char kBridgeUuid[16] = {'t', 'o', 'n', 'n', 'a', 'g', 'e', '-',
                                                  'b', 'r', 'i', 'd', 'g', 'e', 0,   1};
inline constexpr uint32_t kBridgeVersion = 2;

struct Session;

struct Bridge {
  size_t struct_bytes;
  uint32_t version;
  const Session* session;  // read only for the recorder; null outside a session

  // Known content of device memory (gpu/shadow_memory.h). Addresses and sizes in bytes.
  // content_get: 1 and the bytes if all of [address, address + n) is known, else 0 and nothing
  // written.
  int (*content_get)(uint64_t address, void* out, size_t n);
  void (*content_set)(uint64_t address, const void* bytes, size_t n);
  void (*content_forget)(uint64_t address, size_t n);
  int (*content_any)(uint64_t address, size_t n);  // 1 if any byte of the range is known (fast)

  // While depth > 0 on a thread, kernels launched there belong to an operator whose outputs the
  // recorder accounts for; a launch outside makes the known content behind its pointer arguments
  // unknown.
  void (*operator_depth_add)(int delta);

  // The next device-to-host read of 4 or 8 bytes of unknown content on this thread yields `value`
  // (a data-dependent count). kept until used or until clear_posted_read.
  void (*post_read)(int64_t value);
  void (*clear_posted_read)();

  // Record. intern_string: id of a string (0 for ""). intern_stack: id of a stack, innermost frame
  // first.
  uint32_t (*intern_string)(const char* text, size_t n);
  uint32_t (*intern_stack)(const Frame* frames, size_t n);
  // Fills process, thread, and time_ns if 0, then appends. The event's phase, step, op, stack and
  // module are the caller's.
  void (*emit)(const MemoryEvent* event);
  void (*flush)();  // writes the chunk in hand to the file

  // What the driver itself asks the recorder when it records an event of its own (unknown read,
  // device allocation): the recorder fills op, stack, module, phase and step of the thread. Null to
  // unset.
  void (*set_context_provider)(void (*fill)(MemoryEvent* event));

  // Whether host-to-device copies on this thread keep their bytes as known content: 1 yes, -1 no
  // (large floating-point data: keeping it would only cost time), 0 the default (yes up to
  // known_integer_bytes).
  void (*set_upload_policy)(int policy);

  // content_set with a repeated pattern of 1, 2 or 4 bytes (low bytes first), n a multiple of
  // width: costs nothing for any n.
  void (*content_fill)(uint64_t address, uint32_t pattern, unsigned width, size_t n);

  // The n bytes are what `fetch` writes when somebody first reads one of them: it may wait for
  // another process, is called at most once, on any thread, and answers 0 where they are not known
  // after all. `release` ends the promise, fetched or not.
  void (*content_promise)(uint64_t address, size_t n, void* owner,
                          int (*fetch)(void* owner, void* out, size_t n),
                          void (*release)(void* owner));

  // Known bytes are written to `out`, unknown ones become zero; returns how many were unknown.
  size_t (*content_read)(uint64_t address, void* out, size_t n);

  // Kernels whose names contain this are accounted for by the recorder, launched inside an operator
  // or not. One text, which stays.
  void (*account_for_kernels)(const char* part_of_name);
};

}  // namespace tonnage::abi
