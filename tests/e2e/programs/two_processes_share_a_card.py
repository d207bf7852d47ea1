"""Two processes share a card."""
import subprocess, sys, torch
def free(): return torch.cuda.mem_get_info()[0]
before = free()
child = subprocess.Popen([sys.executable, '-c', "import torch; x = torch.zeros(4 << 30, dtype=torch.uint8, device='cuda'); print('up', flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert child.stdout.readline() == 'up\n'
during = free()
try: torch.zeros(9 << 30, dtype=torch.uint8, device='cuda'); print('too much was given')
except torch.OutOfMemoryError: print('refused')
child.kill(); child.wait()
x = torch.zeros(9 << 30, dtype=torch.uint8, device='cuda')
print('taken', before - during, 'after', free())
