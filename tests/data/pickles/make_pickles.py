#!/usr/bin/env python3
"""Make the small pickles beside this file. They are committed; run it again only to change them.

Every file is hand-written data in the layouts of torch.cuda.memory._snapshot (see src/sources/snapshot/snapshot_reader.h).
"""
import os
import pickle
import pickletools

HERE = os.path.dirname(os.path.abspath(__file__))
FRAME = {"name": "forward", "filename": "/home/user/train.py", "line": 12}
OUTER = {"name": "<module>", "filename": "/home/user/train.py", "line": 90}
STACK = [FRAME, OUTER]


def event(action, addr, size, time_us, frames=STACK, **more):
    return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time_us, "compile_context": "N/A", "user_metadata": "",
            "frames": frames, **more}


def modern():
    base = 0x7F0000000000
    trace0 = [
        event("segment_alloc", base, 2 << 20, 1000),
        event("alloc", base, 1000, 1001),
        event("alloc", base + 1024, 512, 1003, frames=[OUTER]),
        event("free_requested", base, 1000, 1010),
        event("free_completed", base, 1000, 1011, frames=[]),
        {"action": "oom", "device_free": (1 << 63) + 5, "size": 1 << 40, "stream": 0, "time_us": 1020, "frames": STACK},
    ]
    trace1 = [event("segment_map", base + (1 << 30), 20 << 20, 1002), event("alloc", base + (1 << 30), 3 << 20, 1012)]
    return {
        "segments": [
            {"device": 0, "address": base, "total_size": 2 << 20, "allocated_size": 512, "active_size": 512, "requested_size": 512,
             "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0), "is_expandable": False, "frames": STACK,
             "blocks": [
                 {"address": base, "size": 1024, "requested_size": 1000, "state": "inactive", "frames": []},
                 {"address": base + 1024, "size": 512, "requested_size": 512, "state": "active_allocated", "frames": [OUTER]},
                 {"address": base + 1536, "size": (2 << 20) - 1536, "requested_size": 0, "state": "inactive", "frames": []}]},
            {"device": 1, "address": base + (1 << 30), "total_size": 20 << 20, "allocated_size": 3 << 20, "active_size": 3 << 20,
             "requested_size": 3 << 20, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 7), "is_expandable": True,
             "frames": [], "blocks": [
                 {"address": base + (1 << 30), "size": 3 << 20, "requested_size": 3 << 20, "state": "active_pending_free", "frames": STACK},
                 {"address": base + (1 << 30) + (3 << 20), "size": 17 << 20, "requested_size": 0, "state": "inactive", "frames": []}]},
        ],
        "device_traces": [trace0, trace1, []],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128", "max_split_size": 128 << 20, "garbage_collection_threshold": 0.5,
            "expandable_segments": True, "pinned_num_register_threads": 1,
            "roundup_power2_divisions": {str(1 << i): (4 if i > 8 else 0) for i in range(16)}},
        "external_annotations": [{"name": "step", "stage": "START", "device": 0, "time_us": 1002},
                                 {"name": "step", "stage": "END", "device": 0, "time_us": 1015}],
        "a_key_of_the_future": {"nested": [1, 2.5, None, {"deep": (1, 2, 3)}]},
    }


def old():
    """Before 2.1: a bare list of segments, blocks without addresses, a history in each block."""
    return [{"device": 0, "address": 4096, "total_size": 2048, "allocated_size": 1024, "active_size": 1024, "stream": 0, "segment_type": "small",
             "blocks": [{"size": 1024, "state": "active_allocated", "history": [{"addr": 4096, "real_size": 1000, "frames": STACK}]},
                        {"size": 1024, "state": "inactive"}]}]


def old_trace():
    """The one-word "free", no times, no settings."""
    return {"segments": old(), "device_traces": [[
        {"action": "segment_alloc", "addr": 4096, "size": 2048, "stream": 0},
        {"action": "alloc", "addr": 4096, "size": 1000, "stream": 0, "frames": STACK},
        {"action": "alloc", "addr": 5120, "size": 100, "stream": 0},
        {"action": "free", "addr": 5120, "size": 100, "stream": 0}]]}


def write(name, data):
    with open(os.path.join(HERE, name), "wb") as file:
        file.write(data)


def main():
    for protocol in range(6):
        write(f"protocol{protocol}.pickle", pickle.dumps(modern(), protocol=protocol))
    write("optimized.pickle", pickletools.optimize(pickle.dumps(modern(), protocol=4)))
    write("old.pickle", pickle.dumps(old(), protocol=2))
    write("old_trace.pickle", pickle.dumps(old_trace(), protocol=4))
    cyclic = modern()
    cyclic["device_traces"][0].append(cyclic["device_traces"][0])
    cyclic["segments"].append(cyclic)
    cyclic["self"] = cyclic
    write("cyclic.pickle", pickle.dumps(cyclic, protocol=4))
    shared = modern()
    shared["device_traces"][0] = [shared["device_traces"][0][1]] * 3
    write("shared.pickle", pickle.dumps(shared, protocol=4))
    write("not_a_snapshot.pickle", pickle.dumps({"loss": [1.0, 0.5]}, protocol=4))


if __name__ == "__main__":
    main()
