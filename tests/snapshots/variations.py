#!/usr/bin/env python3
"""Snapshots as people publish them, in the layouts of several PyTorch versions.

They are made here, with what `tonnage explain` must say of each.

    variations.py TONNAGE [NAME...]"""
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile

MIB = 1 << 20
TORCH = "/opt/venv/lib/python3.10/site-packages/torch/"


def frame(filename, line, name):
    return {"filename": filename, "line": line, "name": name}


# --- Stacks, innermost frame first ---

USER = [frame("/home/u/net.py", 21, "forward"), frame(TORCH + "nn/modules/module.py", 1518,
    "_call_impl"), frame("/home/u/train.py", 40, "main")]
BY_HAND = [frame("/home/u/net.py", 21, "forward"), frame("/home/u/net.py", 55, "run_layers"),
    frame("/home/u/train.py", 40, "main")]
LOOP_OF_LAYERS = [frame(TORCH + "nn/modules/linear.py", 125, "forward"),
    frame("/home/u/net.py", 33, "forward"), frame("/home/u/train.py", 40, "main")]
HELPERS = [frame(TORCH + "functional.py", 380, "einsum"),
    frame("/opt/venv/lib/python3.10/site-packages/einops/_backends.py", 287, "einsum"),
           frame("/opt/venv/lib/python3.10/site-packages/einops/einops.py", 907,
               "einsum"), frame("/home/u/layers/attention.py", 77, "scores"),
           frame("/home/u/train.py", 40, "main")]
WINDOWS = [frame(r"C:\Users\u\anaconda3\Lib\site-packages\torch\nn\modules\linear.py", 125,
    "forward"),
           frame(r"C:\Users\u\anaconda3\Lib\site-packages\torch\nn\modules\module.py", 1532,
               "_wrapped_call_impl"),
           frame(r"C:\Users\u\project\train.py", 40, "main")]
NOTEBOOK = [frame(TORCH + "nn/modules/linear.py", 125, "forward"),
    frame("/tmp/ipykernel_4711/1234567.py", 7, "<module>"),
            frame("/opt/venv/lib/python3.10/site-packages/IPython/core/interactiveshell.py", 3508,
                "run_code")]
CHECKOUT = [frame("/home/u/src/pytorch/torch/nn/modules/linear.py", 125, "forward"),
    frame("/home/u/train.py", 40, "main")]
BACKWARD_THREAD = [frame("??", 0, "torch::unwind::unwind()"),
    frame("CUDACachingAllocator.cpp", 0,
        "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc()"),
                   frame("??", 0, "at::_ops::mm::call(at::Tensor const&, at::Tensor const&)"),
                   frame("engine.cpp", 0, "torch::autograd::Engine::thread_main()"),
                   frame("??", 0, "execute_native_thread_routine"),
                   frame("./nptl/pthread_create.c", 442, "start_thread")]
THREAD_CC = [frame("/pytorch/torch/csrc/autograd/engine.cpp", 915,
    "torch::autograd::Engine::evaluate_function()"),
             frame("/home/conda/feedstock_root/gcc/libstdc++-v3/src/c++11/thread.cc", 82,
                   "execute_native_thread_routine"),
             frame("/lib/x86_64-linux-gnu/libc.so.6", 0, "clone")]
C_PLUS_PLUS = [frame("/pytorch/c10/cuda/CUDACachingAllocator.cpp", 1520,
    "c10::cuda::CUDACachingAllocator::malloc"),
               frame("/pytorch/aten/src/ATen/native/cuda/Blas.cpp", 88, "at::native::mm"),
               frame("/home/u/trainer/src/net.cpp", 64,
                   "Net::forward(at::Tensor)"), frame("/home/u/trainer/src/main.cpp", 31, "main"),
               frame("./csu/../sysdeps/nptl/libc_start_call_main.h", 58,
                   "__libc_start_call_main"), frame("crt1.o", 0, "_start")]
MIXED = BACKWARD_THREAD[:3] + [frame("/usr/local/src/conda/python-3.10.12/Objects/call.c", 215,
    "_PyObject_Call"), *USER[:1],
                               frame("/home/conda/feedstock_root/build/python/Python/ceval.c",
                                   5300, "_PyEval_EvalFrameDefault"), *USER[1:],
                             frame("/opt/conda/bin/python3.10", 0, "main")]
DEEP = [frame("/home/u/tree.py", 12, "descend")] * 900 + [frame("/home/u/train.py", 40, "main")]


# --- Layouts ---

def block(size, stack, layout, address):
    if layout == "1.13":
        return {"size": size, "state": "active_allocated", "history": [{"addr": address,
            "real_size": size - 100, "frames": stack}]}
    if layout == "2.0":
        return {"size": size, "state": "active_allocated", "history": [{"addr": address,
            "real_size": size - 100, "frames": stack}]}
    return {"size": size, "requested_size": size - 100, "address": address,
        "state": "active_allocated", "frames": stack}


def segment(stack, layout, device=0, size=64 * MIB, used=48 * MIB):
    address = 0x7F0000000000 + device * (1 << 36)
    blocks = [block(used, stack, layout, address)]
    rest = {"size": size - used, "state": "inactive"}
    if layout not in ("1.13", "2.0"):
        rest.update(requested_size=0, address=address + used, frames=[])
    out = {"device": device, "address": address, "total_size": size, "allocated_size": used,
        "active_size": used, "segment_type": "large", "blocks": blocks + [rest]}
    if layout not in ("1.13",):
        out.update(stream=0)
    if layout not in ("1.13", "2.0"):
        out.update(requested_size=used - 100, segment_pool_id=(0, 0), is_expandable=False,
            frames=[])
    return out


def events(stack, device, count=3, free=True, out_of_memory=False, base=0x7F0000000000):
    trace, address = [], base + device * (1 << 36)
    trace.append({"action": "segment_alloc", "addr": address, "size": 64 * MIB, "stream": 0,
        "frames": stack, "time_us": 1})
    for i in range(count):
        trace.append({"action": "alloc", "addr": address, "size": 48 * MIB, "stream": 0,
            "frames": stack, "time_us": 2 + 3 * i})
        if free and i + 1 < count:
            trace.append({"action": "free_requested", "addr": address, "size": 48 * MIB,
                "stream": 0, "frames": stack, "time_us": 3 + 3 * i})
            trace.append({"action": "free_completed", "addr": address, "size": 48 * MIB,
                "stream": 0, "frames": stack, "time_us": 4 + 3 * i})
    if out_of_memory:
        trace.append({"action": "oom", "addr": 0, "device_free": 10 * MIB, "size": 96 * MIB,
            "stream": 0, "frames": stack, "time_us": 99})
    return trace


def modern(stack, **options):
    device = options.pop("device", 0)
    traces = [[] for _ in range(max(device + 1, 2))]
    traces[device] = events(stack, device, **options)
    return {"segments": [segment(stack, "2.3", device)], "device_traces": traces,
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1,
            "garbage_collection_threshold": 0.0, "expandable_segments": False,
            "pinned_num_register_threads": 1, "release_lock_on_cudamalloc": False,
            "pinned_use_cuda_host_register": False, "roundup_power2_divisions": {}}}


def truncated():
    """The ring of the history was full: it begins with frees of what it never saw."""
    snapshot = modern(USER)
    trace = snapshot["device_traces"][0]
    snapshot["device_traces"][0] = [{"action": "free_completed", "addr": 0x7E0000000000 + i * MIB,
        "size": MIB, "stream": 0, "frames": USER, "time_us": 0} for i in range(5)] + trace[1:]
    return snapshot


# name: (snapshot, the file and line that must be the site of the largest)
CASES = {
    "1.13": ([segment(USER, "1.13")], ("net.py", 21)),
    "2.0": ({"segments": [segment(USER, "2.0")], "device_traces": []}, ("net.py", 21)),
    "no_frames": ({"segments": [segment([], "2.3")], "device_traces": [[]]}, None),
    "user": (modern(USER, out_of_memory=True), ("net.py", 21)),
    "forward_by_hand": (modern(BY_HAND, out_of_memory=True), ("net.py", 21)),
    "layers_by_forward": (modern(LOOP_OF_LAYERS, out_of_memory=True), ("net.py", 33)),
    "helpers": (modern(HELPERS, out_of_memory=True), ("attention.py", 77)),
    "windows": (modern(WINDOWS, out_of_memory=True), ("train.py", 40)),
    "notebook": (modern(NOTEBOOK, out_of_memory=True), ("1234567.py", 7)),
    "checkout": (modern(CHECKOUT, out_of_memory=True), ("train.py", 40)),
    "second_device": (modern(USER, device=1, out_of_memory=True), ("net.py", 21)),
    "backward_thread": (modern(BACKWARD_THREAD, out_of_memory=True), None),
    "thread_cc": (modern(THREAD_CC, out_of_memory=True), None),
    "c_plus_plus": (modern(C_PLUS_PLUS, out_of_memory=True), ("net.cpp", 64)),
    "mixed": (modern(MIXED, out_of_memory=True), ("net.py", 21)),
    "deep": (modern(DEEP, out_of_memory=True), ("tree.py", 12)),
    "truncated": (truncated(), ("net.py", 21)),
}
NEVER = ["thread.cc", "crt1.o", "libc.so", "pthread_create", "ceval.c", "python3.10:0", "call.c"]


def explain(tonnage, snapshot, folder):
    path = pathlib.Path(folder) / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    environment = dict(os.environ, NO_COLOR="1", COLUMNS="100", LC_ALL="C.UTF-8")
    call = [tonnage, "explain", str(path)]
    as_json = subprocess.run(call + ["--json"], capture_output=True, text=True, env=environment,
        timeout=60)
    as_text = subprocess.run(call, capture_output=True, text=True, env=environment, timeout=60)
    return as_json, as_text


def sites_in(value):
    """All sites of the user's own lines in an explanation."""
    if isinstance(value, dict):
        if isinstance(value.get("user_line"), dict) and value["user_line"].get("file"):
            yield value["user_line"]["file"], value["user_line"]["line"]
        for inner in value.values():
            yield from sites_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from sites_in(inner)


def problems_of(tonnage, name, folder):
    snapshot, site = CASES[name]
    as_json, as_text = explain(tonnage, snapshot, folder)
    if as_json.returncode != 0 or as_text.returncode != 0:
        return [f"exit code {as_json.returncode}: {(as_json.stderr + as_text.stderr)[:300]}"]
    problems = []
    explanation = json.loads(as_json.stdout)["explanations"][0]
    found = [(pathlib.PurePosixPath(f.replace("\\", "/")).name, line) for f,
        line in sites_in(explanation)]
    if site and site not in found:
        problems.append(f"site {site} is not among {sorted(set(found))[:6]}")
    if site and f"{site[0]}:{site[1]}" not in as_text.stdout:
        problems.append(f"{site[0]}:{site[1]} is not in the text")
    for word in NEVER:
        if word in as_text.stdout:
            problems.append(f"{word} occurs in the text")
    wrong = [f for f, _ in found if f in ("thread.cc", "crt1.o", "engine.cpp", "pthread_create.c",
        "python3.10", "libc.so.6")]
    if wrong:
        problems.append(f"{wrong[0]} is a site")
    if any(f.get("device") not in (None, 1)
        for f in explanation["failures"]) and name == "second_device":
        problems.append("the failure is on the wrong device")
    if problems:
        problems.append(as_text.stdout[:1500])
    return problems


def main():
    tonnage, names = os.path.abspath(sys.argv[1]), sys.argv[2:] or list(CASES)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="tonnage-snapshots-") as folder:
        for name in names:
            for problem in problems_of(tonnage, name, folder):
                failed += 1
                print(f"{name}: {problem}")
    print(f"{len(names)} snapshots, {failed} problems")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
