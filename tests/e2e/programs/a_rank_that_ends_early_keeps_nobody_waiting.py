"""A rank that ends early keeps nobody waiting."""
import os, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
t = torch.full((2,), rank + 1, device="cuda")
dist.all_reduce(t)
print(f"SUM {t.tolist()}\n", end="", flush=True)
if rank == 1:
    os._exit(7)  # at an ordinary exit NCCL itself waits for the other rank
dist.all_reduce(t)
print(f"NEVER {t.tolist()}", flush=True)
