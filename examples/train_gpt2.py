"""Trains a GPT-2-sized language model on made-up text and prints the loss and the throughput.

An ordinary training script: nothing in it knows about Tonnage. The model is transformers' GPT-2 with random weights.

  python train_gpt2.py --batch-size 4 --bf16 --checkpointing
"""
import argparse
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

# (layers, width, heads) of the published sizes.
SIZES = {"small": (12, 768, 12), "medium": (24, 1024, 16), "large": (36, 1280, 20), "xl": (48, 1600, 25)}


def parse_args():
    p = argparse.ArgumentParser(description="Train GPT-2 on synthetic text.")
    p.add_argument("--size", choices=SIZES, default="small")
    p.add_argument("--batch-size", type=int, default=4)
    p.add_argument("--length", type=int, default=1024, help="tokens in a sequence")
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--bf16", action="store_true", help="mixed precision")
    p.add_argument("--checkpointing", action="store_true", help="compute activations again instead of keeping them")
    p.add_argument("--accumulate", type=int, default=1, help="batches to an optimizer step")
    return p.parse_args()


def main():
    args = parse_args()
    device = torch.device("cuda")
    torch.manual_seed(0)
    layers, width, heads = SIZES[args.size]
    config = GPT2Config(n_layer=layers, n_embd=width, n_head=heads, n_positions=max(1024, args.length), use_cache=False)
    model = GPT2LMHeadModel(config).to(device).train()
    if args.checkpointing:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)

    start = time.perf_counter()
    for step in range(1, args.steps + 1):
        total = 0.0
        for _ in range(args.accumulate):
            tokens = torch.randint(0, config.vocab_size, (args.batch_size, args.length)).to(device)
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=args.bf16):
                loss = model(input_ids=tokens, labels=tokens).loss / args.accumulate
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {total:.4f}", flush=True)
    seconds = time.perf_counter() - start
    print(f"{args.steps * args.accumulate * args.batch_size * args.length / seconds:.0f} tokens/s")


if __name__ == "__main__":
    main()
