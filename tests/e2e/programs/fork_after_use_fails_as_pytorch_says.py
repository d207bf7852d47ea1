"""Fork after use fails as pytorch says."""
import torch
x = torch.zeros(1 << 20, device='cuda')

import os
pid = os.fork()
if pid == 0:
    try: torch.zeros(1, device='cuda')
    except RuntimeError as e: os._exit(4 if 're-initialize CUDA' in str(e) else 5)
    os._exit(6)
print('child', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
