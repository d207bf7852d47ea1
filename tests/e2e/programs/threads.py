"""Threads."""
import threading, torch
def work():
    for i in range(50): torch.randn(256, 256, device='cuda') @ torch.randn(256, 256, device='cuda')
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print('peak', torch.cuda.max_memory_allocated())
