// The words of a snapshot, interned first so that their ids are constants.
#pragma once

#include <cstdint>

namespace tonnage::sources::snapshot {

// X(name, text)
// clang-format off
#define TONNAGE_SNAPSHOT_WORDS(X)                      \
  X(Action, "action")                                  \
  X(Addr, "addr")                                      \
  X(Size, "size")                                      \
  X(Stream, "stream")                                  \
  X(TimeUs, "time_us")                                 \
  X(Frames, "frames")                                  \
  X(DeviceFree, "device_free")                         \
  X(UserMetadata, "user_metadata")                     \
  X(CompileContext, "compile_context")                 \
  X(NotCompiled, "N/A")                                \
  X(Name, "name")                                      \
  X(Filename, "filename")                              \
  X(Line, "line")                                      \
  X(Address, "address")                                \
  X(TotalSize, "total_size")                           \
  X(RequestedSize, "requested_size")                   \
  X(SegmentType, "segment_type")                       \
  X(SegmentPoolId, "segment_pool_id")                  \
  X(PoolId, "pool_id")                                 \
  X(IsExpandable, "is_expandable")                     \
  X(Blocks, "blocks")                                  \
  X(State, "state")                                    \
  X(Device, "device")                                  \
  X(History, "history")                                \
  X(RealSize, "real_size")                             \
  X(Large, "large")                                    \
  X(ActiveAllocated, "active_allocated")               \
  X(ActivePendingFree, "active_pending_free")          \
  X(ActiveAwaitingFree, "active_awaiting_free")        \
  X(Inactive, "inactive")                              \
  X(Segments, "segments")                              \
  X(DeviceTraces, "device_traces")                     \
  X(AllocatorSettings, "allocator_settings")           \
  X(ExternalAnnotations, "external_annotations")       \
  X(Stage, "stage")                                    \
  X(Start, "START")                                    \
  X(End, "END")                                        \
  X(AllocConf, "PYTORCH_CUDA_ALLOC_CONF")              \
  X(MaxSplitSize, "max_split_size")                    \
  X(GarbageCollection, "garbage_collection_threshold") \
  X(ExpandableSegments, "expandable_segments")         \
  X(RoundupDivisions, "roundup_power2_divisions")      \
  X(TraceOverflowed, "trace_alloc_overflowed")         \
  X(Alloc, "alloc")                                    \
  X(FreeRequested, "free_requested")                   \
  X(FreeCompleted, "free_completed")                   \
  X(Free, "free")                                      \
  X(SegmentAlloc, "segment_alloc")                     \
  X(SegmentFree, "segment_free")                       \
  X(SegmentMap, "segment_map")                         \
  X(SegmentUnmap, "segment_unmap")                     \
  X(Snapshot, "snapshot")                              \
  X(Oom, "oom")                                        \
  X(UserDefined, "user_defined")                       \
  X(Annotate, "annotate")                              \
  X(HostTraces, "host_traces")                         \
  X(HostSegments, "host_segments")
// clang-format on

enum Word : uint32_t {
  kWordEmpty = 0,
#define X(name, text) kWord##name,
  TONNAGE_SNAPSHOT_WORDS(X)
#undef X
      kWordCount
};

}  // namespace tonnage::sources::snapshot
