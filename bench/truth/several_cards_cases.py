"""Training on two cards, one case a run: what run_several_cards.py measures on real and on virtual ones.

usage: several_cards_cases.py CASE OUT      started by torchrun with two ranks, or alone for the cases of one process

Each process appends one JSON line to OUT-<rank>: peak allocated and reserved of each of its cards after every step, what the
driver has in use on them at named moments, and values that the program read back, all of which a real pair of cards tells too.
"""
import json
import os
import sys
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from language_model import LanguageModel, language_loss

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
STEPS = 4


class Notes:
    def __init__(self, cards):
        self.cards, self.steps, self.used, self.values = cards, [], {}, {}

    def step(self):
        for card in self.cards:
            torch.cuda.synchronize(card)
        self.steps.append([[torch.cuda.max_memory_allocated(c), torch.cuda.max_memory_reserved(c)] for c in self.cards])

    def device(self, name):
        """What the driver has given out: free memory is asked of a card that is in use already."""
        amounts = []
        for card in self.cards:
            free, total = torch.cuda.mem_get_info(card)
            amounts.append(total - free)
        self.used[name] = amounts


def start(cards=None):
    """The process group, where there are ranks."""
    torch.manual_seed(7)
    if WORLD > 1:
        torch.cuda.set_device(RANK)
        notes = Notes([RANK])
        torch.zeros(1, device="cuda")
        notes.device("start")
        dist.init_process_group("nccl", device_id=torch.device("cuda", RANK), timeout=timedelta(seconds=120))
        notes.device("group")
        return notes
    return Notes(cards or [0, 1])


class Block(nn.Module):
    def __init__(self, width=512, heads=8):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, d // self.heads).transpose(1, 2) for z in self.qkv(self.norm1(x)).split(d, 2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def gpt():
    return LanguageModel(Block() for _ in range(6))


def loss_of(model, ids, precision=torch.bfloat16):
    with torch.autocast("cuda", dtype=precision) if precision else nullcontext():
        logits = model(ids)
    return language_loss(logits, ids)


def ids_for(batch=8, length=256):
    return torch.randint(0, 8192, (batch, length), device="cuda")


def train(notes, model, optimizer, precision=torch.bfloat16, lengths=(256,) * STEPS):
    for length in lengths:
        loss = loss_of(model, ids_for(length=length), precision)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        notes.step()
    notes.device("end")


def run_steps(notes, optimizer, loss_of_step, clip=None):
    """loss_of_step(step) gives the loss, which nobody keeps; clip() is called before the optimizer."""
    for step in range(STEPS):
        loss_of_step(step).backward()
        if clip:
            clip()
        optimizer.step()
        optimizer.zero_grad()
        notes.step()
    notes.device("end")


def mlp(width=1024, layers=8):
    return nn.Sequential(*[layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.GELU())])


# --- One process, two cards ---------------------------------------------------------------------------------------------------

def model_parallel():
    notes = start()
    first, second = mlp().to("cuda:0"), mlp().to("cuda:1")
    notes.device("start")
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()])
    run_steps(notes, optimizer, lambda _: second(first(torch.randn(256, 1024, device="cuda:0")).to("cuda:1")).square().mean())
    return notes


def data_parallel():
    notes = start()
    model = nn.DataParallel(gpt().cuda())
    notes.device("start")
    train(notes, model, torch.optim.AdamW(model.parameters()))
    return notes


def copies_between():
    notes = start()
    torch.zeros(1, device="cuda:0"), torch.zeros(1, device="cuda:1")
    notes.device("start")
    for size in (1 << 10, 1 << 20, 1 << 26):
        source = torch.arange(size, device="cuda:0")
        there = source.to("cuda:1", non_blocking=True)
        back = there.to("cuda:0")
        notes.values[str(size)] = [there[-1].item(), back[1].item(), torch.equal(source, back)]
        notes.step()
        notes.device(str(size))
    strided = torch.arange(1 << 20, device="cuda:1").view(1024, 1024).t().to("cuda:0")
    notes.values["strided"] = [strided[3, 5].item()]
    notes.step()
    notes.device("end")
    return notes


# --- A rank a card ------------------------------------------------------------------------------------------------------------

def collectives():
    notes = start()
    one = torch.full((4,), RANK + 1, device="cuda")

    def note(name, *tensors):
        notes.values[name] = [t.tolist() for t in tensors]
        notes.step()
        notes.device(name)

    t = one.clone()
    dist.all_reduce(t)
    note("all_reduce", t)
    for op in ("MAX", "MIN", "PRODUCT"):
        t = one.clone()
        dist.all_reduce(t, op=getattr(dist.ReduceOp, op))
        note(f"all_reduce {op}", t)
    t = one.float()
    dist.all_reduce(t, op=dist.ReduceOp.AVG)
    note("all_reduce AVG", t)
    t = one.clone()
    dist.broadcast(t, src=1)
    note("broadcast", t)
    t = one.clone()
    dist.reduce(t, dst=0)
    note("reduce", *([t] if RANK == 0 else []))
    parts = [torch.zeros_like(one) for _ in range(WORLD)]
    dist.all_gather(parts, one)
    note("all_gather", *parts)
    whole = torch.zeros(4 * WORLD, dtype=one.dtype, device="cuda")
    dist.all_gather_into_tensor(whole, one)
    note("all_gather_into_tensor", whole)
    parts = [torch.zeros_like(one) for _ in range(WORLD)] if RANK == 0 else None
    dist.gather(one, parts, dst=0)
    note("gather", *(parts or []))
    t = torch.zeros_like(one)
    dist.scatter(t, [one * 10, one * 20] if RANK == 0 else None, src=0)
    note("scatter", t)
    t = torch.zeros(2, dtype=one.dtype, device="cuda")
    dist.reduce_scatter_tensor(t, torch.arange(4, device="cuda") + RANK)
    note("reduce_scatter_tensor", t)
    t = torch.zeros_like(one)
    dist.reduce_scatter(t, [one, one * 2])
    note("reduce_scatter", t)
    t = torch.zeros_like(one)
    dist.all_to_all_single(t, torch.arange(4, device="cuda") + 10 * RANK)
    note("all_to_all_single", t)
    uneven = torch.zeros(3 if RANK == 0 else 5, dtype=torch.long, device="cuda")
    dist.all_to_all_single(uneven, torch.arange(4, device="cuda") + 10 * RANK, [1, 2] if RANK == 0 else [3, 2], [1, 3] if RANK == 0 else [2, 2])
    note("all_to_all_single, uneven", uneven)
    outs = [torch.zeros_like(one) for _ in range(WORLD)]
    dist.all_to_all(outs, [one + 100, one + 200])
    note("all_to_all", *outs)
    t = one.clone()
    if RANK == 0:
        dist.send(t, dst=1)
    else:
        dist.recv(t, src=0)
    note("send and recv", t)
    t = torch.zeros_like(one)
    work = dist.batch_isend_irecv([dist.P2POp(dist.isend, one, 1 - RANK), dist.P2POp(dist.irecv, t, 1 - RANK)])
    for w in work:
        w.wait()
    note("batch_isend_irecv", t)
    a, b = one.clone(), one * 3
    with dist._coalescing_manager(device=torch.device("cuda", RANK)):
        dist.all_reduce(a)
        dist.all_reduce(b)
    note("coalesced", a, b)
    work = dist.all_reduce(t, async_op=True)
    work.wait()
    note("asynchronous", t)
    dist.barrier()
    notes.device("barrier")
    group = dist.new_group([0, 1])
    t = one.clone()
    dist.all_reduce(t, group=group)
    note("second group", t)
    import torch.distributed._functional_collectives as functional
    t = functional.all_reduce(one, "sum", dist.group.WORLD)
    note("functional", t.clone())
    for size in (1 << 20, 1 << 24, 1 << 27):
        dist.all_reduce(torch.ones(size, device="cuda"))
        notes.step()
        notes.device(f"all_reduce of {size}")
    return notes


def objects():
    notes = start()
    gathered = [None] * WORLD
    dist.all_gather_object(gathered, {"rank": RANK, "text": "x" * (10 + 1000 * RANK)})
    notes.values["all_gather_object"] = gathered
    notes.step()
    things = [{"lr": 0.1}, "abc", 3] if RANK == 0 else [None] * 3
    dist.broadcast_object_list(things, src=0)
    notes.values["broadcast_object_list"] = things
    out = [None]
    dist.scatter_object_list(out, [["for 0"], ["for 1"]] if RANK == 0 else None, src=0)
    notes.values["scatter_object_list"] = out
    notes.step()
    notes.device("end")
    return notes


def ddp():
    from torch.nn.parallel import DistributedDataParallel
    notes = start()
    model = DistributedDataParallel(mlp().cuda(), device_ids=[RANK])
    notes.device("model")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run_steps(notes, optimizer, lambda _: model(torch.randn(256, 1024, device="cuda")).square().mean())
    return notes


def ddp_gpt():
    from torch.nn.parallel import DistributedDataParallel
    notes = start()
    model = DistributedDataParallel(gpt().cuda(), device_ids=[RANK], gradient_as_bucket_view=True, static_graph=True)
    train(notes, model, torch.optim.AdamW(model.parameters()))
    return notes


def ddp_unused():
    """A layer that one rank uses and the other does not; lengths differ from step to step."""
    from torch.nn.parallel import DistributedDataParallel
    notes = start()

    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.extra = mlp(512, 4), mlp(512, 2)

        def forward(self, x, use):
            x = self.body(x)
            return self.extra(x) if use else x

    model = DistributedDataParallel(Sometimes().cuda(), device_ids=[RANK], find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters())
    run_steps(notes, optimizer, lambda step: model(torch.randn(64 * (1 + (step + RANK) % 3), 512, device="cuda"), step % 2 == RANK).square().mean())
    return notes


def ddp_compress():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel
    notes = start()
    model = DistributedDataParallel(gpt().cuda(), device_ids=[RANK])
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    scaler = torch.amp.GradScaler("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        loss = loss_of(model, ids_for(), torch.float16)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        notes.step()
    notes.device("end")
    return notes


def ddp_join():
    """Ranks with different numbers of batches."""
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel
    notes = start()
    model = DistributedDataParallel(mlp(512, 4).cuda(), device_ids=[RANK])
    optimizer = torch.optim.AdamW(model.parameters())
    with Join([model]):
        for _ in range(2 + 2 * RANK):
            model(torch.randn(64, 512, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            notes.step()
    notes.step()
    notes.device("end")
    return notes


def sync_batch_norm():
    from torch.nn.parallel import DistributedDataParallel
    notes = start()
    layers = []
    for i, o in ((3, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(i, o, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))
    model = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(model).cuda(), device_ids=[RANK])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        out = model(torch.randn(8 + 4 * RANK, 3, 128, 128, device="cuda"))
        F.cross_entropy(out, torch.randint(0, 10, (out.shape[0],), device="cuda")).backward()
        optimizer.step()
        optimizer.zero_grad()
        notes.step()
    notes.device("end")
    return notes


def zero1():
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel
    notes = start()
    model = DistributedDataParallel(gpt().cuda(), device_ids=[RANK])
    train(notes, model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3))
    return notes


def fsdp1():
    import functools
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
    notes = start()
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    model = FullyShardedDataParallel(gpt().cuda(), auto_wrap_policy=policy, device_id=RANK, use_orig_params=True,
                                     mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16))
    notes.device("model")
    optimizer = torch.optim.AdamW(model.parameters())
    run_steps(notes, optimizer, lambda _: loss_of(model, ids_for(), None), lambda: model.clip_grad_norm_(1.0))
    return notes


def fsdp2():
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    notes = start()
    model = gpt().cuda()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    notes.device("model")
    optimizer = torch.optim.AdamW(model.parameters())
    run_steps(notes, optimizer, lambda _: loss_of(model, ids_for(), None), lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    return notes


def tensor_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    notes = start()
    mesh = init_device_mesh("cuda", (WORLD,))

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(1024, 4096), nn.Linear(4096, 1024)

        def forward(self, x):
            return x + self.down(F.gelu(self.up(x)))

    model = nn.Sequential(*[Mlp() for _ in range(4)]).cuda()
    for layer in model:
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    notes.device("model")
    optimizer = torch.optim.AdamW(model.parameters())
    run_steps(notes, optimizer, lambda _: model(torch.randn(512, 1024, device="cuda")).square().mean())
    return notes


def pipeline():
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    notes = start()
    stage = PipelineStage(mlp(1024, 4).cuda(), RANK, WORLD, torch.device("cuda", RANK))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=F.mse_loss)
    optimizer = torch.optim.AdamW(stage.submod.parameters())
    for _ in range(STEPS):
        if RANK == 0:
            schedule.step(torch.randn(256, 1024, device="cuda"))
        else:
            schedule.step(target=torch.randn(256, 1024, device="cuda"))
        optimizer.step()
        optimizer.zero_grad()
        notes.step()
    notes.device("end")
    return notes


def experts():
    """A mixture whose tokens go to the expert's rank: how many go where is exchanged and read back."""
    notes = start()
    gate, expert = nn.Linear(512, WORLD).cuda(), mlp(512, 2).cuda()
    optimizer = torch.optim.AdamW([*gate.parameters(), *expert.parameters()])
    for step in range(STEPS):
        x = torch.randn(256, 512, device="cuda")
        choice = (torch.arange(256, device="cuda") * (step + 2) + RANK) % 3 % WORLD  # known, so that both cards choose alike
        order = choice.argsort()
        send = torch.bincount(choice, minlength=WORLD)
        receive = torch.empty_like(send)
        dist.all_to_all_single(receive, send)
        send_sizes, receive_sizes = send.tolist(), receive.tolist()
        notes.values[f"sizes {step}"] = [send_sizes, receive_sizes]
        tokens = torch.empty(sum(receive_sizes), 512, device="cuda")
        dist.all_to_all_single(tokens, x[order].contiguous(), receive_sizes, send_sizes)
        out = expert(tokens)
        back = torch.empty(256, 512, device="cuda")
        dist.all_to_all_single(back, out.detach(), send_sizes, receive_sizes)
        (out.square().mean() + (gate(x) * back[:, :WORLD]).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        notes.step()
    notes.device("end")
    return notes


def ring():
    """Keys and values passed around a ring of ranks, point to point."""
    notes = start()
    q, k, v = (torch.randn(2, 8, 512, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    for _ in range(STEPS):
        keys, values, total = k, v, 0
        for hop in range(WORLD):
            total = total + F.scaled_dot_product_attention(q, keys, values)
            if hop + 1 < WORLD:
                next_k, next_v = torch.empty_like(k), torch.empty_like(v)
                ops = [dist.P2POp(dist.isend, keys.detach(), 1 - RANK), dist.P2POp(dist.isend, values.detach(), 1 - RANK),
                       dist.P2POp(dist.irecv, next_k, 1 - RANK), dist.P2POp(dist.irecv, next_v, 1 - RANK)]
                for work in dist.batch_isend_irecv(ops):
                    work.wait()
                keys, values = next_k, next_v
        total.square().mean().backward()
        q.grad = k.grad = v.grad = None
        notes.step()
    notes.device("end")
    return notes


def ddp_compiled():
    from torch.nn.parallel import DistributedDataParallel
    notes = start()
    model = torch.compile(DistributedDataParallel(mlp(512, 4).cuda(), device_ids=[RANK]))
    optimizer = torch.optim.AdamW(model.parameters())
    run_steps(notes, optimizer, lambda _: model(torch.randn(256, 512, device="cuda")).square().mean())
    return notes


def hf_trainer_like():
    """A Hugging Face model under DDP: sequences padded to the longest of the batch, losses gathered and read for the log."""
    from torch.nn.parallel import DistributedDataParallel
    from transformers import BertConfig, BertForSequenceClassification
    notes = start()
    config = BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, num_labels=3)
    model = DistributedDataParallel(BertForSequenceClassification(config).cuda(), device_ids=[RANK])
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for step in range(STEPS):
        lengths = torch.tensor([16 + 13 * ((i + 3 * step + RANK) % 7) for i in range(16)], device="cuda")
        longest = lengths.max().reshape(1)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)  # as where all ranks pad to one length
        t = int(longest)
        notes.values[f"length {step}"] = t
        ids = torch.randint(0, 1000, (16, t), device="cuda")
        mask = (torch.arange(t, device="cuda")[None] < lengths[:, None]).long()
        loss = model(input_ids=ids, attention_mask=mask, labels=torch.randint(0, 3, (16,), device="cuda")).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses = [torch.zeros_like(loss) for _ in range(WORLD)]
        dist.all_gather(losses, loss.detach())
        torch.stack(losses).mean().item()
        notes.step()
    notes.device("end")
    return notes


ALONE = {f.__name__: f for f in (model_parallel, data_parallel, copies_between)}
RANKS = {f.__name__: f for f in (collectives, objects, ddp, ddp_gpt, ddp_unused, ddp_compress, ddp_join, sync_batch_norm, zero1, fsdp1, fsdp2,
                                 tensor_parallel, pipeline, experts, ring, ddp_compiled, hf_trainer_like)}

if __name__ == "__main__":
    case, out = sys.argv[1:3]
    notes = {**ALONE, **RANKS}[case]()
    with open(f"{out}-{RANK}", "a") as file:
        file.write(json.dumps({"case": case, "rank": RANK, "steps": notes.steps, "device": notes.used, "values": notes.values}) + "\n")
    if dist.is_initialized():
        dist.destroy_process_group()
