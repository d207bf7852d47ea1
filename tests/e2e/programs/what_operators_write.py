"""Every operator of PyTorch's own list that writes into memory which is there already.

In place, and with out=. Samples are computed on the CPU with two fillings of their unknown inputs.
What Tonnage says it knows of the result on the device must be the same in both fillings, and be
what the CPU computed."""
import ctypes
import os
import sys
import types
import unittest
import warnings

import torch

warnings.simplefilter("ignore")
# torch.testing imports it; the samples do not need it.
sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.utils._pytree import tree_flatten, tree_unflatten  # noqa: E402

# Results of these are assumed, and marked so: which indices are chosen, statistics of unknown data.
ASSUMED = {"topk", "nanmean"}
RANDOM = ("rand", "dropout", "empty", "resize", "lowrank", "rrelu", "fractional")
NOT_COMPARED = {"multinomial", "bernoulli", "normal", "cauchy", "exponential", "geometric",
    "log_normal", "uniform", "mvlgamma"}


def bridge():
    """content_get and content_forget of src/abi/bridge.h."""
    driver, table = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    uuid = (ctypes.c_ubyte * 16)(*b"tonnage-bridge", 0, 1)
    assert driver.cuGetExportTable(ctypes.byref(table), ctypes.byref(uuid)) == 0
    entries = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
    return (ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p,
        ctypes.c_size_t)(entries[3]),
            ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_size_t)(entries[5]))


GET, FORGET = bridge()


def known(device):
    """(index, value) of the elements whose content is known; at most 64 are looked at."""
    item, storage = device.element_size(), device.untyped_storage()
    offsets = torch.arange(storage.nbytes() // item).as_strided(device.size(), device.stride(),
        device.storage_offset()).reshape(-1)
    buffer = ctypes.create_string_buffer(item)
    for n, offset in enumerate(offsets.tolist()[:64]):
        if GET(storage.data_ptr() + offset * item, buffer, item):
            yield n, torch.frombuffer(bytearray(buffer.raw), dtype=device.dtype)[0]


def tensors(tree):
    return [x for x in tree_flatten(tree)[0] if isinstance(x, torch.Tensor)]


def wrong(device, one, two):
    """What is known of a result and does not follow from the inputs."""
    for d, x, y in zip(device, one, two):
        if d.device.type != "cuda" or d.layout != torch.strided or not d.numel():
            continue
        if d.shape != x.shape or x.shape != y.shape or d.dtype != x.dtype:
            continue
        for n, value in known(d):
            a, b = x.reshape(-1)[n], y.reshape(-1)[n]
            if not torch.allclose(a.double() if not a.is_complex() else a, b.double()
                if not b.is_complex() else b, equal_nan=True):
                return (f"[{n}] is known as {value.item()} and follows from unknown data: "
                        f"{a.item()} or {b.item()}")
            if not torch.allclose(value, a, rtol=1e-2, atol=1e-2, equal_nan=True):
                return f"[{n}] is known as {value.item()} and is {a.item()}"
    return None


def check(op, sample, call, with_out, which):
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    positions = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    if any(leaves[i].layout != torch.strided or leaves[i].is_conj() or leaves[i].is_neg()
        for i in positions):
        return None
    reals = [i for i in positions if leaves[i].dtype.is_floating_point and leaves[i].numel()]
    chosen = {"none": [], "first": reals[:1], "others": reals[1:], "all": reals}[which]
    if which != "none" and not chosen:
        return None

    def filled(seed):
        random = torch.Generator().manual_seed(seed)
        return [torch.rand(x.shape, generator=random) * 3 + 0.1
            if i in chosen else x.detach().clone() if isinstance(x, torch.Tensor) else x
                for i, x in enumerate(leaves)]

    def run(values, **out):
        first, rest, named = tree_unflatten(values, spec)
        with torch.no_grad():
            return call(first, *rest, **named, **out)
    one, two = filled(1), filled(2)
    a, b = tensors(run(one)), tensors(run(two))
    device = [x.detach().to("cuda") if isinstance(x, torch.Tensor) else x for x in leaves]
    for i in chosen:
        FORGET(device[i].untyped_storage().data_ptr(), device[i].untyped_storage().nbytes())
    if not with_out:
        run(device)
        return wrong([device[positions[0]]], one[positions[0]:][:1], two[positions[0]:][:1])
    outs = [torch.full_like(x, 7, device="cuda") if x.dtype != torch.bool else torch.ones_like(x,
        device="cuda") for x in a]
    run(device, out=outs[0] if len(outs) == 1 else tuple(outs))
    return wrong(outs, a, b)


def main():
    checked = failed = 0
    for op in op_db:
        if torch.float32 not in op.dtypes or op.name in ASSUMED | NOT_COMPARED:
            continue
        if any(part in op.name for part in RANDOM):
            continue
        calls = [(op.inplace_variant, False)] * bool(op.inplace_variant) + [(op.op,
            True)] * bool(op.supports_out)
        sample = next(iter(op.sample_inputs("cpu", torch.float32, requires_grad=False)),
            None) if calls else None
        if sample is None:
            continue
        for call, with_out in calls:
            for which in ("none", "first", "others", "all"):
                try:
                    problem = check(op, sample, call, with_out, which)
                except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError):
                    continue  # the operator does not take such inputs
                checked += 1
                if problem:
                    failed += 1
                    print(op.name, "out=" if with_out else "in place", which, problem)
    print(checked > 500, failed)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
