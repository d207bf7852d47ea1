"""What Tonnage does inside Python programs that use the GPU by other frameworks than PyTorch. `tonnage run` loads this when such a
framework has been imported. Nothing here raises, prints, or starts a GPU.

  - The Python line behind each allocation is recorded (libtonnage_python.so), unless PyTorch is there: its recorder does more.
  - At the end each framework is asked for its allocator's own figures, because the driver sees only what the allocator holds: JAX and
    TensorFlow take most of the card at their start. The report has them as notes.
  - JAX's allocator refuses what is more than it holds without asking the driver. Its error tells of it, where the program gets it.
"""

import atexit
import ctypes
import re
import sys

FRAMEWORKS = ("jax", "tensorflow", "cupy", "numba.cuda", "warp")
_library = None


def imported(name):
    """`name`, one of FRAMEWORKS, has just been imported. Its own end comes later than what is registered here."""
    global _library
    if _library is None:
        _library = ctypes.PyDLL(
            "libtonnage_python.so.1"
        )  # with the GIL held, which the start needs
        _library.tonnage_python_start("torch" not in sys.modules)
    ask = {
        "jax": _ask_jax,
        "tensorflow": _ask_tensorflow,
        "cupy": _ask_cupy,
        "warp": _ask_warp,
    }.get(name)
    if ask is not None:
        atexit.register(_quietly, ask)
    if name == "jax":
        _watch_jax_errors()


def _quietly(ask):
    try:
        if not _library.tonnage_python_driver_runs():  # asking would start it
            return
        for text in ask():
            _library.tonnage_python_note(text.encode())
    except Exception:
        pass


_UNITS = {
    "": 1,
    "B": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
    "K": 1 << 10,
    "M": 1 << 20,
    "G": 1 << 30,
}


def refused_bytes(text):
    """The bytes that XLA's allocator did not have, as its error says; None: another error."""
    if not text.startswith("RESOURCE_EXHAUSTED"):
        return None
    found = re.search(r"(?:allocate|allocating) ([0-9.]+) ?([KMGT]iB|B|[KMG])?\b", text)
    return int(float(found[1].rstrip(".")) * _UNITS[found[2] or ""]) if found else None


def _watch_jax_errors():
    """XLA's errors are made when the program gets them, on its own line."""
    errors = getattr(sys.modules["jax"], "errors", None)
    error_type = getattr(errors, "JaxRuntimeError", None) or getattr(
        errors, "XlaRuntimeError", None
    )
    make = error_type.__init__

    def __init__(self, *arguments, **named):
        make(self, *arguments, **named)
        try:
            _tell_refusal(str(arguments[0]) if arguments else "")
        except Exception:
            pass

    error_type.__init__ = __init__


def _tell_refusal(text):
    bytes_asked = refused_bytes(text)
    if bytes_asked is None or not _library.tonnage_python_driver_runs():
        return
    from jax._src import xla_bridge

    backend = getattr(xla_bridge, "_backends", {}).get("cuda")
    devices = backend.local_devices() if backend is not None else []
    # The error does not name the card: the fullest one of those that could not have given it.
    free = {
        device.local_hardware_id: stats["bytes_limit"] - stats["bytes_in_use"]
        for device in devices
        if {"bytes_limit", "bytes_in_use"} <= (stats := device.memory_stats() or {}).keys()
    }
    if not free:
        return
    device = min(free, key=free.get)
    refused = _library.tonnage_python_refused
    refused.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64]
    refused(b"jax_pool", device, bytes_asked, free[device])


def size(count):
    """As the report writes bytes."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}" if unit == "GiB" else f"{count / scale:.1f} {unit}"
    return f"{count} B"


def _ask_jax():
    """XLA's allocator, of each card that JAX has started."""
    import os

    from jax._src import xla_bridge

    backend = getattr(xla_bridge, "_backends", {}).get(
        "cuda"
    )  # not jax.devices(): that would start one
    if backend is None:
        return
    preallocates = os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true").lower() not in (
        "false",
        "0",
    )
    if os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR", "default").lower() not in ("default", "bfc"):
        return
    for device in backend.local_devices():
        stats = device.memory_stats() or {}
        if "peak_bytes_in_use" not in stats:
            continue
        peak, held = stats["peak_bytes_in_use"], stats.get("peak_pool_bytes") or stats.get(
            "pool_bytes", 0
        )
        text = f"JAX on GPU {device.local_hardware_id}: {size(peak)} in use at most, of {size(held)} that XLA holds"
        if preallocates:
            text += "; it takes most of the card at its start, whatever the program needs. XLA_PYTHON_CLIENT_PREALLOCATE=false ends that"
        yield text


def _ask_tensorflow():
    import os

    tf = sys.modules["tensorflow"]
    from tensorflow.python.eager import context

    if not context.context()._initialized:
        return
    grows = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() == "true"
    for number, _ in enumerate(tf.config.list_logical_devices("GPU")):
        text = f"TensorFlow on GPU {number}: {size(tf.config.experimental.get_memory_info(f'GPU:{number}')['peak'])} in use at most"
        if not grows:
            text += "; it takes most of the card at its start, whatever the program needs. TF_FORCE_GPU_ALLOW_GROWTH=true ends that"
        yield text


def _ask_cupy():
    """Its default pool, of the current card."""
    cupy = sys.modules["cupy"]
    pool = cupy.get_default_memory_pool()
    if pool.total_bytes() > pool.used_bytes():
        yield (
            f"CuPy's pool holds {size(pool.total_bytes())} at the end, of which {size(pool.used_bytes())} are in use; the rest is kept for "
            "later requests (free_all_blocks() gives it back)"
        )


def _ask_warp():
    warp = sys.modules["warp"]
    if warp._src.context.runtime is None if hasattr(warp, "_src") else warp.context.runtime is None:
        return
    for device in warp.get_cuda_devices():
        if device.is_mempool_enabled:
            peak = warp.get_mempool_used_mem_high(device)
            if peak:
                yield f"Warp on GPU {device.ordinal}: {size(peak)} of its pool in use at most"
