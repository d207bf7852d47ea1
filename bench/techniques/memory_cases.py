"""The Python twins of memory_cases.cpp: recomputation, offloading, precision and accumulation with PyTorch's own means."""
import torch
from torch.utils.checkpoint import checkpoint


def _step(model, optimizer, loss):
    o = optimizer([p for p in model.parameters() if p.requires_grad])

    def step():
        o.zero_grad()
        loss().backward()
        o.step()

    return step


def _checkpoint_blocks(model, blocks):
    for block in blocks:
        plain = block.forward
        block.forward = lambda x, plain=plain: checkpoint(plain, x, use_reentrant=False)


def _offloaded(forward):
    def loss():
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            return forward()

    return loss


def _autocast(forward):
    def loss():
        with torch.autocast("cuda", torch.bfloat16):
            return forward()

    return loss


def _scaled_half(job, optimizer):
    model, forward = job
    o, scaler = optimizer(list(model.parameters())), torch.amp.GradScaler("cuda")

    def step():
        o.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = forward()
        scaler.scale(loss).backward()
        scaler.step(o)
        scaler.update()

    return step


def _accumulated(job, optimizer, batch, parts):
    model, forward = job
    o = optimizer(list(model.parameters()))
    rows = batch // parts

    def step():
        for i in range(parts):
            (forward(slice(i * rows, (i + 1) * rows)) / parts).backward()
        o.step()
        o.zero_grad()

    return step


def memory_cases(models):
    """models: name -> (job, optimizer, blocks of a model, batch size). Cases as run_techniques.cases() has them."""
    out = {}

    def checkpointed(job, optimizer, blocks):
        model, forward = job()
        _checkpoint_blocks(model, blocks(model))
        return _step(model, optimizer, forward)

    def wrapped(job, optimizer, wrap):
        model, forward = job()
        return _step(model, optimizer, wrap(forward))

    for name, (job, optimizer, blocks, batch) in models.items():
        out[name, "checkpoint", "without"] = lambda job=job, optimizer=optimizer: wrapped(job, optimizer, lambda f: f)
        out[name, "checkpoint", "every block"] = lambda job=job, optimizer=optimizer, blocks=blocks: checkpointed(job, optimizer, blocks)
        out[name, "offload", "with"] = lambda job=job, optimizer=optimizer: wrapped(job, optimizer, _offloaded)
        out[name, "autocast", "bfloat16"] = lambda job=job, optimizer=optimizer: wrapped(job, optimizer, _autocast)
        out[name, "autocast", "float16 and scaler"] = lambda job=job, optimizer=optimizer: _scaled_half(job(), optimizer)
        out[name, "accumulate", "4 parts"] = lambda job=job, optimizer=optimizer, batch=batch: _accumulated(job(), optimizer, batch, 4)
    return out
