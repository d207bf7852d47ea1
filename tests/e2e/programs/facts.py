"""Facts."""
import os
os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'max_split_size_mb:64'
import platform, torch
x = torch.zeros(1 << 20, device='cuda')
print('SAID', torch.__version__, platform.python_version())
