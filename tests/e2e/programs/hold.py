"""Ends a program with a peak at which everything that it holds is alive, and says how much of each kind that is."""
import json, torch
def bytes_of(tensors):
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t is not None and t.is_cuda}
    return sum(storages.values())
def states(optimizers):
    for o in optimizers:
        for s in o.state.values():
            for v in s.values():
                yield from (x for x in (v if isinstance(v, (list, tuple)) else [v]) if isinstance(x, torch.Tensor))
def hold(models, optimizers=()):
    parameters = [p for m in models for p in m.parameters()]
    filler = torch.empty(max(1 << 30, 4 * torch.cuda.max_memory_allocated()), dtype=torch.uint8, device='cuda')
    print('HELD ' + json.dumps({'parameters': bytes_of(parameters), 'gradients': bytes_of(p.grad for p in parameters),
                                'optimizer_state': bytes_of(states(optimizers)), 'peak': torch.cuda.max_memory_allocated()}), flush=True)
