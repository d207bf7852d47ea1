"""Trains ResNet-50 on made-up images and prints the loss and the throughput.

An ordinary training script: nothing in it knows about Tonnage.

  python train_resnet50.py --batch-size 64 --amp
"""
import argparse
import time

import torch
import torch.nn.functional as F
import torchvision


def parse_args():
    p = argparse.ArgumentParser(description="Train ResNet-50 on synthetic images.")
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--image-size", type=int, default=224)
    p.add_argument("--optimizer", choices=("sgd", "adamw"), default="sgd")
    p.add_argument("--amp", action="store_true", help="mixed precision (fp16 with a gradient scaler)")
    p.add_argument("--channels-last", action="store_true")
    p.add_argument("--benchmark", action="store_true", help="let cuDNN time its convolution algorithms")
    return p.parse_args()


def main():
    args = parse_args()
    device = torch.device("cuda")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = args.benchmark
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    model = torchvision.models.resnet50(weights=None).to(device, memory_format=layout).train()
    if args.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=args.amp)

    start = time.perf_counter()
    for step in range(1, args.steps + 1):
        images = torch.randn(args.batch_size, 3, args.image_size, args.image_size).to(device, memory_format=layout)
        labels = torch.randint(0, 1000, (args.batch_size,)).to(device)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16, enabled=args.amp):
            loss = F.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
    seconds = time.perf_counter() - start
    print(f"{args.steps * args.batch_size / seconds:.1f} images/s")


if __name__ == "__main__":
    main()
