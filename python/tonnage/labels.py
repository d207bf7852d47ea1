"""Names for the tensors in Tonnage's record: parameters, buffers, gradients and optimizer states.

The recorder (a C++ library in this process) follows operators and memory by itself; it calls attach() once and name_tensors()
when it meets a parameter without a name. Only the standard library and the running program's torch are used. Nothing here may
fail the program: every entry catches everything.
"""
import ctypes
import gc
import os
import sys

# categories: made by tools/gen_categories.py
PARAMETER = 1
GRADIENT = 2
OPTIMIZER_STATE = 3
ACTIVATION = 4
INPUT = 5
WORKSPACE = 6
TEMPORARY = 7
BUFFER = 8
KEY_VALUE_CACHE = 15
# end of categories

# Gradients keep their places in most programs; their names are told in the first steps, and the states' also now and then.
NAMED_STEPS = 3
RENAME_EVERY = 50

_library = None
_names = {}  # address of a parameter -> name
_steps = {}  # id of an optimizer -> steps seen
_state_sizes = {}  # id of an optimizer -> number of states when they were named last


def attach(path):
    """Called by the recorder, with the path of its library."""
    global _library
    library = ctypes.CDLL(path)
    library.tonnage_torch_label.argtypes = [
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_uint64),
        ctypes.POINTER(ctypes.c_uint8),
        ctypes.POINTER(ctypes.c_char_p),
    ]
    library.tonnage_torch_label.restype = None
    library.tonnage_torch_step.restype = None
    _library = library
    _finish_before_hard_exit(library)
    _show_all_to_profilers(library)


def _finish_before_hard_exit(library):
    """os._exit skips exit handlers, the recorder's too: they are run first, in the process that was attached, not its forks."""
    leave, process = os._exit, os.getpid()
    library.tonnage_torch_finish.restype = None

    def _exit(status):
        try:
            if os.getpid() == process:
                library.tonnage_torch_finish()
        finally:
            leave(status)

    os._exit = _exit


def _show_all_to_profilers(library):
    """The recorder has PyTorch pass over plain views, which it does not need; a profiler does, from its first operator on."""
    profiler = sys.modules.get("torch.autograd.profiler")
    start = getattr(profiler, "_run_on_profiler_start", None)
    if start is None:
        return
    library.tonnage_torch_observe_all.restype = None

    def _run_on_profiler_start():
        library.tonnage_torch_observe_all()
        start()

    profiler._run_on_profiler_start = _run_on_profiler_start


def torch_imported():
    """Called when torch.optim.optimizer has been imported: follows optimizers."""
    optimizer = sys.modules["torch.optim.optimizer"]
    optimizer.register_optimizer_step_pre_hook(_before_step)
    optimizer.register_optimizer_step_post_hook(_after_step)


def _label(entries):
    """entries: (address, category, name) triples."""
    n = len(entries)
    if n == 0 or _library is None:
        return
    addresses = (ctypes.c_uint64 * n)(*[e[0] for e in entries])
    categories = (ctypes.c_uint8 * n)(*[e[1] for e in entries])
    names = (ctypes.c_char_p * n)(*[e[2].encode("utf-8", "replace") for e in entries])
    _library.tonnage_torch_label(n, addresses, categories, names)


def _address(tensor):
    """Device address of a tensor's data, 0 if it has none on a CUDA device."""
    try:
        local = getattr(tensor, "_local_tensor", None)  # DTensor
        if local is not None:
            tensor = local
        return tensor.data_ptr() if tensor.device.type == "cuda" else 0
    except Exception:
        return 0


def _modules():
    """All modules that no other module holds, found without touching them: the types of all objects are looked at, not the objects."""
    module_class = sys.modules["torch.nn.modules.module"].Module
    is_module = {}
    found = []
    for thing in gc.get_objects():
        kind = type(thing)
        known = is_module.get(kind)
        if known is None:
            known = is_module[kind] = issubclass(kind, module_class)
        if known:
            found.append(thing)
    held = set()
    for module in found:
        for child in (module.__dict__.get("_modules") or {}).values():
            held.add(id(child))
    return [m for m in found if id(m) not in held]


def _collect(module, prefix, seen, entries):
    if module is None or id(module) in seen:
        return
    seen.add(id(module))
    state = module.__dict__
    for name, tensor in (state.get("_parameters") or {}).items():
        address = _address(tensor) if tensor is not None else 0
        if address and address not in _names:
            _names[address] = prefix + name
        if address:
            entries.append((address, PARAMETER, prefix + name))
    for name, tensor in (state.get("_buffers") or {}).items():
        address = _address(tensor) if tensor is not None else 0
        if address:
            entries.append((address, BUFFER, prefix + name))
    for name, child in (state.get("_modules") or {}).items():
        _collect(child, prefix + name + ".", seen, entries)


def name_tensors(_=""):
    """Called by the recorder when it meets a parameter without a name, at most a few times in a program."""
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunction():
        entries = []
        seen = set()
        _names.clear()
        roots = _modules()
        for module in roots:
            # Wrappers (DistributedDataParallel, a Trainer's model) hold the model as their only child: its names start below.
            _collect(module, "", seen, entries)
        _label(entries)


def meet_leaf(pointer):
    """Called by the recorder with a tensor that requires a gradient and is no module's parameter. A plain tensor may be an input whose
    gradient is wanted, or a detached activation; it counts as a parameter when an optimizer, or an update by hand, takes it."""
    tensor = ctypes.cast(int(pointer), ctypes.py_object).value
    if type(tensor) is not sys.modules["torch"].Tensor:
        _label([(_address(tensor), PARAMETER, "")])


def _skip(torch):
    compiler = getattr(torch, "compiler", None)
    return _library is None or (compiler is not None and compiler.is_compiling())


def _before_step(optimizer, args, kwargs):
    torch = sys.modules["torch"]
    if _skip(torch):
        return None
    try:
        count = _steps.get(id(optimizer), 0)
        if count < NAMED_STEPS or count % RENAME_EVERY == 0:
            entries = []
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    address = _address(parameter)
                    if address and address not in _names:
                        entries.append((address, PARAMETER, ""))
                    gradient = parameter.grad
                    if gradient is not None:
                        address = _address(gradient)
                        if address:
                            entries.append((address, GRADIENT, _names.get(_address(parameter), "")))
            _label(entries)
    except Exception:
        pass
    return None


def _after_step(optimizer, args, kwargs):
    torch = sys.modules["torch"]
    if _skip(torch):
        return
    try:
        key = id(optimizer)
        count = _steps[key] = _steps.get(key, 0) + 1
        if count <= NAMED_STEPS or count % RENAME_EVERY == 0 or _state_sizes.get(key) != len(optimizer.state):
            _state_sizes[key] = len(optimizer.state)
            entries = []
            for parameter, state in optimizer.state.items():
                if not isinstance(state, dict):
                    continue
                name = _names.get(_address(parameter), "") if isinstance(parameter, torch.Tensor) else ""
                for what, value in state.items():
                    if isinstance(value, torch.Tensor):
                        address = _address(value)
                        if address:
                            entries.append((address, OPTIMIZER_STATE, f"{name}.{what}" if name else str(what)))
            _label(entries)
        _library.tonnage_torch_step()
    except Exception:
        pass
