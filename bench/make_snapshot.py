#!/usr/bin/env python3
"""Write a large memory snapshot with the layout and the opcodes of torch.cuda.memory._dump_snapshot (PyTorch 2.11).

    make_snapshot.py OUT.pickle [--gib 1] [--depth 12] [--seed 1]

The history is a training loop: per step and layer an activation is allocated and freed in reverse order during backward, with a few
gradients and temporaries; frames lists are shared between an allocation and what follows from it, as PyTorch shares them. Events are
encoded by hand, so that memory stays small; the file loads with pickle.load.
"""
import argparse
import random
import struct

MARK, EMPTY_DICT, EMPTY_LIST, MEMOIZE, SETITEMS, APPENDS = b"(", b"}", b"]", b"\x94", b"u", b"e"
BATCH = 1000  # CPython's pickler ends a batch of APPENDS after 1000 items
FRAME_BYTES = 64 << 10


class Writer:
    def __init__(self, file):
        self.file, self.parts, self.pending, self.total, self.memo = file, [], 0, 0, 0
        self.file.write(b"\x80\x04")
        self.strings = {}

    def put(self, data):
        self.parts.append(data)
        self.pending += len(data)

    def end_item(self):
        if self.pending >= FRAME_BYTES:
            self.flush()

    def flush(self):
        data = b"".join(self.parts)
        self.file.write(b"\x95" + struct.pack("<Q", len(data)) + data)
        self.total += len(data) + 9
        self.parts, self.pending = [], 0

    def memoize(self):
        self.memo += 1
        return self.memo - 1

    def string(self, text, share=True):
        if share and text in self.strings:
            return get(self.strings[text])
        raw = text.encode()
        index = self.memoize()
        if share:
            self.strings[text] = index
        return b"\x8c" + bytes([len(raw)]) + raw + MEMOIZE


def get(index):
    return b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)


def integer(number):
    if 0 <= number < 256:
        return b"K" + bytes([number])
    if 0 <= number < 65536:
        return b"M" + struct.pack("<H", number)
    if -(1 << 31) <= number < 1 << 31:
        return b"J" + struct.pack("<i", number)
    raw = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def new_dict(writer):
    writer.memoize()
    return EMPTY_DICT + MEMOIZE + MARK


def frame_bytes(writer, frame):
    """A frame dict, memoised once per process as PyTorch's frame cache does."""
    if frame in writer.strings:
        return get(writer.strings[frame])
    name, filename, line = frame
    index = writer.memoize()
    writer.strings[frame] = index
    return (EMPTY_DICT + MEMOIZE + MARK + writer.string("name") + writer.string(name) + writer.string("filename") +
            writer.string(filename) + writer.string("line") + integer(line) + SETITEMS)


def frames_bytes(writer, stack):
    """A new frames list, or a reference to one (an integer)."""
    if isinstance(stack, int):
        return get(stack)
    writer.memoize()
    out = EMPTY_LIST + MEMOIZE + MARK
    for frame in stack:
        out += frame_bytes(writer, frame)
    return out + APPENDS


def event(writer, action, address, size, time_us, frames):
    writer.put(new_dict(writer) + writer.string("action") + writer.string(action, share=False) + writer.string("addr") + integer(address) +
               writer.string("size") + integer(size) + writer.string("stream") + integer(0) + writer.string("time_us") + integer(time_us) +
               writer.string("compile_context") + writer.string("N/A", share=False) + writer.string("user_metadata") + writer.string("") +
               writer.string("frames") + frames_bytes(writer, frames) + SETITEMS)


def segments(writer, live):
    writer.put(writer.string("segments") + EMPTY_LIST + MEMOIZE + MARK)
    writer.memoize()
    for address, size in live:
        writer.put(new_dict(writer))
        for key, value in (("device", 0), ("address", address), ("total_size", size), ("allocated_size", 0), ("active_size", 0),
                           ("requested_size", 0), ("stream", 0)):
            writer.put(writer.string(key) + integer(value))
        writer.put(writer.string("segment_type") + writer.string("large") + writer.string("segment_pool_id") + b"K\x00K\x00\x86" + MEMOIZE)
        writer.memoize()
        writer.put(writer.string("is_expandable") + b"\x89" + writer.string("blocks") + EMPTY_LIST + MEMOIZE)
        writer.memoize()
        writer.put(new_dict(writer))
        for key, value in (("address", address), ("size", size), ("requested_size", size)):
            writer.put(writer.string(key) + integer(value))
        writer.put(writer.string("state") + writer.string("inactive") + writer.string("frames") + EMPTY_LIST + MEMOIZE + SETITEMS + b"a" + SETITEMS)
        writer.memoize()
        writer.end_item()
    writer.put(APPENDS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--depth", type=int, default=12, help="frames in a stack")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    limit = int(args.gib * (1 << 30))
    layers = 48
    base = 0x7F0000000000
    sizes = [rng.randrange(2, 64) << 19 for _ in range(layers)]
    addresses, at = [], base
    for size in sizes:
        addresses.append(at)
        at += max(size, 20 << 20)
    stacks = []
    for layer in range(layers):
        stack = [("forward", f"model/layer_{layer}.py", 40 + layer)]
        stack += [(f"call_{d}", "torch/nn/modules/module.py", 1700 + d) for d in range(args.depth - 2)]
        stacks.append(stack + [("<module>", "train.py", 80)])
    events = 0
    with open(args.out, "wb") as file:
        writer = Writer(file)
        writer.put(new_dict(writer))
        segments(writer, [(address, max(size, 20 << 20)) for address, size in zip(addresses, sizes)])
        writer.put(writer.string("device_traces") + EMPTY_LIST + MEMOIZE + EMPTY_LIST + MEMOIZE + MARK)
        writer.memoize()
        writer.memoize()
        time_us, in_batch = 1_795_000_000_000_000, 0

        def emit(*fields):
            nonlocal in_batch, events
            event(writer, *fields)
            events += 1
            in_batch += 1
            if in_batch == BATCH:
                writer.put(APPENDS + MARK)
                in_batch = 0
            writer.end_item()

        for layer in range(layers):
            emit("segment_alloc", addresses[layer], max(sizes[layer], 20 << 20), time_us, stacks[layer])
        while writer.total < limit:
            for layer in range(layers):
                time_us += 7
                emit("alloc", addresses[layer], sizes[layer] - rng.randrange(512), time_us, stacks[layer])
            for layer in reversed(range(layers)):
                time_us += 5
                # free_completed has the very list of free_requested, which is the last thing that was memoised.
                emit("free_requested", addresses[layer], sizes[layer], time_us, stacks[layer][-2:])
                emit("free_completed", addresses[layer], sizes[layer], time_us + 1, writer.memo - 1)
        writer.put(APPENDS + b"a" + writer.string("allocator_settings") + new_dict(writer) + writer.string("PYTORCH_CUDA_ALLOC_CONF") +
                   writer.string("") + writer.string("max_split_size") + integer(-1) + SETITEMS)
        writer.put(writer.string("external_annotations") + EMPTY_LIST + MEMOIZE + SETITEMS + b".")
        writer.memoize()
        writer.flush()
    print(f"{args.out}: {events} events, {writer.total / 2**30:.3f} GiB, {writer.total / events:.0f} B an event")


if __name__ == "__main__":
    main()
