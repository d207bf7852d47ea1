// The private tables of functions that the CUDA runtime asks a driver for. The runtime is linked
// into NVIDIA's libraries and into programs.
//
// cuGetExportTable hands out a table by its UUID. Its first word is its size in bytes, the others
// are functions ("slots"). Source: the public code of ZLUDA (dark_api) and scuda; docs/interop.md
// lists each table and what is answered. A table that is not known answers "not supported". A slot
// that is not known does nothing, succeeds, and is named in the report.
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "abi/bridge.h"
#include "driver/api/module.h"
#include "driver/bridge.h"
#include "driver/enter.h"
#include "driver/entry_points.h"
#include "driver/export_tables/integrity_digest.h"
#include "driver/recording.h"
#include "driver/state.h"

namespace tonnage::driver {
namespace {

using Slot = void*;
template <class F>
Slot slot(F* function) {
  return reinterpret_cast<Slot>(function);
}

// A slot in front of a typed function, as the C entries are (driver/enter.h).
template <auto kFunction>
Slot typed_slot() {
  return slot(Entry<kFunction>::call);
}

CUresult not_supported() { return CUDA_ERROR_NOT_SUPPORTED; }

// A slot whose meaning is not known: it does nothing and succeeds, because programs continue
// normally then. The report names table and slot, so that a program that needs more can be looked
// into.
template <int Table, int Index>
CUresult unknown_slot() {
  char name[64];
  snprintf(name, sizeof name, "private table %d, slot %d", Table, Index);
  record_stub_call(name);
  return CUDA_SUCCESS;
}

// Slots that every runtime calls when it starts. Nothing later depends on them.
CUresult runtime_notice() { return CUDA_SUCCESS; }

// --- Modules from the runtime's own fat binaries ---

CUresult module_from_wrapper(Context* context, CUmodule* out, const void* wrapper) {
  return load_module(context, wrapper, out);
}
CUresult module_from_wrapper_ext(Context* context, CUmodule* out, const void* wrapper, void*, void*,
                                 unsigned) {
  return load_module(context, wrapper, out);
}
CUresult module_from_fatbin(Context* context, const void* fatbin, CUmodule* out, void*, void*,
                            unsigned) {
  return load_module(context, fatbin, out);
}
// The handle only: the context is made when it is retained.
CUresult primary_context(Driver* state, CUcontext* out, Device* device) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = to_handle(primary_context_object(state, device));
  return CUDA_SUCCESS;
}

// --- Context-local storage ---

using StorageDestructor = void (*)(CUcontext, void*, void*);
struct StorageEntry {
  void* value;
  StorageDestructor destroy;
};
struct Storage {
  std::mutex mutex;
  std::map<std::pair<CUcontext, void*>, StorageEntry> entries;
};
Storage& storage() {
  static Storage& all = *new Storage;
  return all;
}
CUcontext or_current(CUcontext context) { return context ? context : to_handle(current_context()); }

CUresult storage_put(CUcontext context, void* key, void* value, StorageDestructor destroy) {
  std::lock_guard lock(storage().mutex);
  storage().entries[{or_current(context), key}] = {value, destroy};
  return CUDA_SUCCESS;
}
CUresult storage_delete(CUcontext context, void* key) {
  std::lock_guard lock(storage().mutex);
  storage().entries.erase({or_current(context), key});
  return CUDA_SUCCESS;
}
CUresult storage_get(void** value, CUcontext context, void* key) {
  std::lock_guard lock(storage().mutex);
  const auto found = storage().entries.find({or_current(context), key});
  if (found == storage().entries.end()) return CUDA_ERROR_INVALID_HANDLE;
  *value = found->second.value;
  return CUDA_SUCCESS;
}

}  // namespace

void drop_context_storage(CUcontext context) {
  std::map<std::pair<CUcontext, void*>, StorageEntry> dropped;
  {
    std::lock_guard lock(storage().mutex);
    auto& entries = storage().entries;
    for (auto entry = entries.lower_bound({context, nullptr});
         entry != entries.end() && entry->first.first == context;)
      dropped.insert(entries.extract(entry++));
  }
  for (const auto& [key, entry] : dropped)
    if (entry.destroy) entry.destroy(context, key.second, entry.value);
}

namespace {

// --- Small answers ---

unsigned g_tools_buffer_1[1024], g_tools_buffer_2[14];
void tools_buffer_1(void** buffer, size_t* size) {
  *buffer = g_tools_buffer_1;
  *size = 1024;
}
void tools_buffer_2(void** buffer, size_t* size) {
  *buffer = g_tools_buffer_2;
  *size = 14;
}
CUresult device_attribute_ext(CUdevice, unsigned, int, size_t*) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult device_something(unsigned char* value, CUdevice) {
  *value = 0;
  return CUDA_SUCCESS;
}
CUresult context_check(CUcontext, unsigned* state, const void** detail) {
  *state = 0;
  (void)detail;
  return CUDA_SUCCESS;
}
unsigned context_check_3() { return 0; }

// Calls `visit` once for each kernel of a module; 1 if there was one, else 0. Programs that use
// cuFFT call it. Arguments and result: scuda's public source (docs/interop.md).
using VisitFunction = void (*)(void* data, FunctionNode* function, CUmodule module);
unsigned visit_functions(CUcontext, CUmodule handle, VisitFunction visit, void* data) {
  Module* module = to_module(handle);
  if (!module || !module->image || !visit) return 0;
  unsigned found = 0;
  for (const image::KernelInfo& info : module->image->kernels()) {
    Function* function = nullptr;
    if (find_kernel(module, std::string(info.name).c_str(), &function) != CUDA_SUCCESS) continue;
    FunctionNode* node = nullptr;
    {
      std::lock_guard lock(module->mutex);
      auto& entry = module->nodes[function];
      if (!entry) {
        entry = std::make_unique<FunctionNode>();
        entry->function = function;
      }
      node = entry.get();
    }
    visit(data, node, handle);
    found = 1;
  }
  return found;
}

// --- The check of the driver ---

// The tables, sized as a driver 580 has them (slots, the size word included).
Slot g_runtime[14], g_tls[4], g_tools[8], g_storage[4], g_context_bypass[2], g_heap[3],
    g_device_ext[64], g_integrity[3], g_context_checks[16], g_table_93[96], g_hybrid[3],
    g_tools_module[64], g_unknown[64];

CUresult integrity_check(unsigned version, uint64_t unix_seconds, uint64_t result[2]) {
  if (version % 10 < 2) {  // two fixed answers for old runtimes
    result[0] = version % 10 == 0 ? 0x3341181c03cb675cull : 0x1841181c03cb675cull;
    result[1] = 0x8ed383aa1f4cd1e8ull;
    return CUDA_SUCCESS;
  }
  // A keyed digest (HMAC with MD2) over driver version, caller, the tables' addresses, time and the
  // devices.
  static const uint8_t key[16] = {0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52,
                                  0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f};
  uint8_t message[16 + 64 + 28 * abi::kMaxDevices];
  size_t n = 0;
  auto add = [&](const void* bytes, size_t count) {
    memcpy(message + n, bytes, count);
    n += count;
  };
  for (uint8_t byte : key) message[n++] = byte ^ 0x36;
  int driver_version = 0;
  cuDriverGetVersion(&driver_version);
  const uint32_t pid = static_cast<uint32_t>(getpid()),
                 thread = static_cast<uint32_t>(pthread_self());
  const void* runtime = g_runtime;
  const void* integrity = g_integrity;
  const void* check = g_integrity[1];
  add(&driver_version, 4);
  add(&version, 4);
  add(&pid, 4);
  add(&thread, 4);
  add(&runtime, 8);
  add(&integrity, 8);
  add(&check, 8);
  add(&unix_seconds, 8);
  if (const Driver* state = driver()) {
    for (const auto& device : state->devices) {
      const int32_t* attributes = device->card->attributes;
      add(device->card->uuid, 16);
      add(&attributes[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID], 4);
      add(&attributes[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID], 4);
      add(&attributes[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID], 4);
    }
  }
  uint8_t outer[32];
  for (int i = 0; i < 16; i++) outer[i] = key[i] ^ 0x5c;
  compute_digest(message, n, outer + 16);
  compute_digest(outer, 32, reinterpret_cast<uint8_t*>(result));
  return CUDA_SUCCESS;
}

template <int Table, size_t N, size_t... Index>
void fill_slots(Slot (&table)[N], std::index_sequence<Index...>) {
  ((table[Index] =
        table[Index] ? table[Index] : slot(unknown_slot<Table, static_cast<int>(Index)>)),
   ...);
}
template <int Table, size_t N>
void fill(Slot (&table)[N], size_t slots) {
  table[0] = reinterpret_cast<Slot>(slots * sizeof(Slot));
  fill_slots<Table>(table, std::make_index_sequence<N>());
}

void make_tables() {
  g_runtime[1] = typed_slot<&module_from_wrapper>();
  g_runtime[2] = typed_slot<&primary_context>();
  g_runtime[6] = typed_slot<&module_from_wrapper_ext>();
  g_runtime[8] = typed_slot<&module_from_fatbin>();
  fill<1>(g_runtime, 13);
  g_tls[2] = slot(runtime_notice);
  fill<2>(g_tls, 4);
  g_tools[2] = slot(tools_buffer_1);
  g_tools[6] = slot(tools_buffer_2);
  fill<3>(g_tools, 7);
  g_storage[0] = typed_slot<&storage_put>();  // the one table without a size
  g_storage[1] = typed_slot<&storage_delete>();
  g_storage[2] = typed_slot<&storage_get>();
  g_context_bypass[1] = slot(not_supported);
  fill<5>(g_context_bypass, 2);
  g_heap[1] = g_heap[2] = slot(not_supported);
  fill<6>(g_heap, 3);
  g_device_ext[5] = slot(device_attribute_ext);
  g_device_ext[13] = typed_slot<&device_something>();
  fill<7>(g_device_ext, 26);
  g_integrity[1] = typed_slot<&integrity_check>();
  fill<8>(g_integrity, 3);
  g_context_checks[2] = typed_slot<&context_check>();
  g_context_checks[3] = slot(context_check_3);
  fill<9>(g_context_checks, 15);
  g_table_93[4] = slot(runtime_notice);
  fill<10>(g_table_93, 93);
  g_hybrid[1] = g_hybrid[2] = slot(not_supported);
  fill<11>(g_hybrid, 3);
  for (Slot& entry : g_tools_module) entry = slot(not_supported);
  g_tools_module[0] = reinterpret_cast<Slot>(sizeof g_tools_module);
  g_tools_module[7] = slot(visit_functions);
  for (Slot& entry : g_unknown) entry = slot(not_supported);
  g_unknown[0] = reinterpret_cast<Slot>(sizeof g_unknown);
}

struct TableId {
  unsigned char uuid[16];
  Slot* table;
};
const TableId kTables[] = {
    {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d,
      0xf9},
     g_runtime},
    {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec,
      0xdc},
     g_tls},
    {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a,
      0x66},
     g_tools},
    {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95,
      0x93},
     g_storage},
    {{0x0c, 0xa5, 0x0b, 0x8c, 0x10, 0x04, 0x92, 0x9a, 0x89, 0xa7, 0xd0, 0xdf, 0x10, 0xe7, 0x72,
      0x86},
     g_context_bypass},
    {{0x19, 0x5b, 0xcb, 0xf4, 0xd6, 0x7d, 0x02, 0x4a, 0xac, 0xc5, 0x1d, 0x29, 0xce, 0xa6, 0x31,
      0xae},
     g_heap},
    {{0xb1, 0x05, 0x41, 0xe1, 0xf7, 0xc7, 0xc7, 0x4a, 0x9f, 0x64, 0xf2, 0x23, 0xbe, 0x99, 0xf1,
      0xe2},
     g_device_ext},
    {{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1,
      0xf2},
     g_integrity},
    {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa,
      0x7e},
     g_context_checks},
    {{0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8,
      0xf2},
     g_table_93},
    {{0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99,
      0x1e},
     g_tools_module},
    {{0xdd, 0x9e, 0x98, 0xa4, 0xf4, 0x10, 0x48, 0x44, 0x99, 0xb0, 0xe2, 0xae, 0xb7, 0xb4, 0x32,
      0xb5},
     g_hybrid},
};

}  // namespace

CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  if (!table || !id) return CUDA_ERROR_INVALID_VALUE;
  static std::once_flag once;
  std::call_once(once, make_tables);
  if (memcmp(id->bytes, abi::kBridgeUuid, 16) == 0) {
    *table = bridge();
    return CUDA_SUCCESS;
  }
  for (const TableId& known : kTables) {
    if (memcmp(id->bytes, known.uuid, 16) != 0) continue;
    *table = known.table;
    return CUDA_SUCCESS;
  }
  *table = g_unknown;
  return CUDA_SUCCESS;
}

}  // namespace tonnage::driver
