"""A 7-billion-parameter Llama-shaped model: built on the device in bf16, two steps of AdamW at length 4096 with checkpointing."""
import resource
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

start = time.perf_counter()
config = LlamaConfig(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32,
                     vocab_size=32000, max_position_embeddings=4096, use_cache=False)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = LlamaForCausalLM(config)
torch.set_default_dtype(torch.float32)
model.gradient_checkpointing_enable()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for step in range(2):
    tokens = torch.randint(0, config.vocab_size, (1, 4096), device="cuda")
    optimizer.zero_grad()
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    print(f"step {step + 1}: {time.perf_counter() - start:.1f} s")
print(f"parameters {sum(p.numel() for p in model.parameters())}")
print(f"peak {torch.cuda.max_memory_allocated()} reserved {torch.cuda.max_memory_reserved()}")
print(f"host {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}")
