"""A forked child that uses the card on its own: both are in the report."""
import os, torch
pid = os.fork()
x = torch.zeros((4 if pid else 8) << 20, dtype=torch.uint8, device='cuda')
if pid == 0: os._exit(3)
print('child', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
