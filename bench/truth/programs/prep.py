"""Makes fake data in the forms that the programs expect. usage: prep.py FOLDER (where get.sh put the programs)"""

import gzip
import os
import pickle
import random
import struct
import sys

import numpy as np
from PIL import Image

root = sys.argv[1]
os.chdir(root)
rng = np.random.default_rng(0)


def idx(path, a):
    with open(path, "wb") as f:
        f.write(
            struct.pack(">BBBB", 0, 0, 8, a.ndim)
            + struct.pack(">" + "I" * a.ndim, *a.shape)
            + a.tobytes()
        )


raw = "data/MNIST/raw"
os.makedirs(raw, exist_ok=True)
for k, n in (("train", 60000), ("t10k", 10000)):
    for s, a in (
        ("images-idx3-ubyte", rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)),
        ("labels-idx1-ubyte", rng.integers(0, 10, (n,), dtype=np.uint8)),
    ):
        idx(f"{raw}/{k}-{s}", a)
        with gzip.open(f"{raw}/{k}-{s}.gz", "wb", compresslevel=1) as g:
            g.write(open(f"{raw}/{k}-{s}", "rb").read())
for d in ("mnist", "vae", "mnist_rnn", "siamese_network", "mnist_forward_forward"):
    for p in ("examples/data", f"examples/{d}/data"):
        os.makedirs(os.path.dirname(p), exist_ok=True)
        if not os.path.exists(p):
            os.symlink(os.path.abspath("data"), p)
for s in ("train", "val", "validation"):
    for c in range(10):
        os.makedirs(f"images/{s}/c{c}", exist_ok=True)
        for i in range(40):
            Image.fromarray(rng.integers(0, 256, (240, 260, 3), dtype=np.uint8)).save(
                f"images/{s}/c{c}/{i}.jpg"
            )
w = "examples/word_language_model/data/wikitext-2"
os.makedirs(w, exist_ok=True)
r = random.Random(0)


def word():
    """Words are as unequal in number as in a language, with some rare ones between them."""
    return "w%d" % (int(r.paretovariate(0.6)) if r.random() < 0.9 else r.randrange(20000))


for n, k in (("train.txt", 60000), ("valid.txt", 6000), ("test.txt", 6000)):
    with open(f"{w}/{n}", "w") as f:
        f.write("\n".join(" ".join(word() for _ in range(30)) for _ in range(k // 30)))
for d, v in (("shakespeare_char", 65), ("openwebtext", 50257), ("fake", 50257)):
    os.makedirs(f"nanoGPT/data/{d}", exist_ok=True)
    for s in ("train", "val"):
        rng.integers(0, v, 1000000, dtype=np.uint16).tofile(f"nanoGPT/data/{d}/{s}.bin")
ch = [chr(32 + i) for i in range(91)]
pickle.dump(
    {"vocab_size": 65, "itos": dict(enumerate(ch)), "stoi": {c: i for i, c in enumerate(ch)}},
    open("nanoGPT/data/shakespeare_char/meta.pkl", "wb"),
)
open("minGPT/projects/chargpt/input.txt", "w").write("".join((r.choice(ch) for _ in range(200000))))
