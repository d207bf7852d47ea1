"""Small user scripts over public libraries, one function each. usage: misc.py NAME"""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
dev = "cuda"


def loop(model, batch, loss, opt=torch.optim.AdamW, n=100, **kw):
    model.to(dev).train()
    o = opt(model.parameters(), lr=0.0001, **kw)
    for _ in range(n):
        o.zero_grad()
        l = loss(model, batch())
        l.backward()
        o.step()
        l.item()


def diffusers_unet():
    from diffusers import UNet2DModel, DDPMScheduler

    s = DDPMScheduler()
    m = UNet2DModel(
        sample_size=64,
        block_out_channels=(128, 128, 256, 256, 512, 512),
        down_block_types=("DownBlock2D",) * 4 + ("AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D") + ("UpBlock2D",) * 4,
    )

    def loss(m, x):
        n = torch.randn_like(x)
        t = torch.randint(0, 1000, (x.shape[0],), device=dev)
        with torch.autocast(dev, torch.bfloat16):
            return F.mse_loss(m(s.add_noise(x, n, t), t).sample.float(), n)

    loop(m, lambda: torch.randn(8, 3, 64, 64, device=dev), loss)


def fasterrcnn():
    from torchvision.models.detection import fasterrcnn_resnet50_fpn

    m = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=20)

    def batch():
        return (
            [torch.rand(3, 480, 640, device=dev) for _ in range(4)],
            [
                {
                    "boxes": torch.tensor(
                        [[50.0, 60.0, 200.0, 220.0], [300.0, 100.0, 420.0, 400.0]], device=dev
                    ),
                    "labels": torch.tensor([1, 2], device=dev),
                }
                for _ in range(4)
            ],
        )

    loop(m, batch, lambda m, b: sum(m(*b).values()), torch.optim.SGD, momentum=0.9)


def deeplab():
    from torchvision.models.segmentation import deeplabv3_resnet50

    m = deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=21)
    loop(
        m,
        lambda: torch.rand(8, 3, 320, 320, device=dev),
        lambda m, x: F.cross_entropy(
            m(x)["out"], torch.zeros(8, 320, 320, dtype=torch.long, device=dev)
        ),
        torch.optim.SGD,
        momentum=0.9,
    )


def compile_gpt():
    from transformers import GPT2Config, GPT2LMHeadModel

    m = GPT2LMHeadModel(GPT2Config(n_layer=4)).cuda()
    c = torch.compile(m)
    o = torch.optim.AdamW(m.parameters(), fused=True)
    for _ in range(100):
        x = torch.randint(0, 50257, (4, 512), device=dev)
        with torch.autocast(dev, torch.bfloat16):
            l = c(x, labels=x).loss
        l.backward()
        o.step()
        o.zero_grad()


def cudagraph():
    m = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
    o = torch.optim.Adam(m.parameters(), capturable=True)
    x = torch.randn(512, 1024, device=dev)
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        for _ in range(3):
            o.zero_grad(set_to_none=True)
            m(x).square().mean().backward()
            o.step()
    torch.cuda.current_stream().wait_stream(s)
    g = torch.cuda.CUDAGraph()
    o.zero_grad(set_to_none=True)
    with torch.cuda.graph(g):
        l = m(x).square().mean()
        l.backward()
        o.step()
    for _ in range(20):
        g.replay()
    print(l.item())


def lstm_seq():

    class M(nn.Module):

        def __init__(s):
            super().__init__()
            s.e = nn.Embedding(10000, 256)
            s.r = nn.LSTM(256, 512, 3, dropout=0.2, batch_first=True, bidirectional=True)
            s.o = nn.Linear(1024, 10000)

        def forward(s, x):
            return s.o(s.r(s.e(x))[0])

    loop(
        M(),
        lambda: torch.randint(0, 10000, (32, 100), device=dev),
        lambda m, x: F.cross_entropy(m(x).flatten(0, 1), x.flatten()),
    )


def pyg_gcn():
    from torch_geometric.nn import GATConv, GCNConv

    class M(nn.Module):

        def __init__(s):
            super().__init__()
            s.a = GCNConv(256, 256)
            s.b = GATConv(256, 64, heads=4)
            s.c = GCNConv(256, 40)

        def forward(s, x, e):
            return s.c(F.relu(s.b(F.relu(s.a(x, e)), e)), e)

    e = torch.randint(0, 20000, (2, 200000), device=dev)
    x = torch.randn(20000, 256, device=dev)
    y = torch.randint(0, 40, (20000,), device=dev)
    idx = torch.arange(0, 20000, 3, device=dev)
    loop(M(), lambda: x, lambda m, x: F.cross_entropy(m(x, e)[idx], y[idx]), torch.optim.Adam)


def conformer():
    from torchaudio.models import Conformer

    loop(
        Conformer(80, 4, 512, 8, 31),
        lambda: torch.randn(8, 400, 80, device=dev),
        lambda m, x: m(x, torch.full((8,), 400, device=dev))[0].square().mean(),
    )


def lightning_vae():
    import pytorch_lightning as pl

    class L(pl.LightningModule):

        def __init__(s):
            super().__init__()
            s.e = nn.Sequential(
                nn.Conv2d(3, 64, 4, 2, 1),
                nn.ReLU(),
                nn.Conv2d(64, 128, 4, 2, 1),
                nn.ReLU(),
                nn.Conv2d(128, 256, 4, 2, 1),
            )
            s.d = nn.Sequential(
                nn.ConvTranspose2d(256, 128, 4, 2, 1),
                nn.ReLU(),
                nn.ConvTranspose2d(128, 64, 4, 2, 1),
                nn.ReLU(),
                nn.ConvTranspose2d(64, 3, 4, 2, 1),
            )

        def training_step(s, b, i):
            return F.mse_loss(s.d(s.e(b[0])), b[0])

        def configure_optimizers(s):
            return torch.optim.Adam(s.parameters())

    d = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(640, 3, 64, 64)), 64)
    pl.Trainer(
        max_epochs=1,
        precision="16-mixed",
        logger=False,
        enable_checkpointing=False,
        accumulate_grad_batches=2,
        enable_progress_bar=False,
        accelerator="gpu",
        devices=1,
    ).fit(L(), d)


def liger():
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss, LigerRMSNorm

    l = LigerFusedLinearCrossEntropyLoss()
    w = nn.Linear(1024, 50000, bias=False).cuda()
    n = LigerRMSNorm(1024).cuda()
    o = torch.optim.AdamW(list(w.parameters()) + list(n.parameters()))
    for _ in range(100):
        x = torch.randn(4096, 1024, device=dev)
        l(w.weight, n(x), torch.randint(0, 50000, (4096,), device=dev)).backward()
        o.step()
        o.zero_grad()


def fft_svd():
    m = nn.Linear(512, 512).cuda()
    o = torch.optim.SGD(m.parameters(), lr=0.01)
    for _ in range(100):
        y = (
            torch.fft.rfft2(m(torch.randn(8, 512, 512, device=dev))).abs().mean()
            + torch.linalg.svdvals(m.weight).sum()
            + torch.linalg.solve(
                m.weight + torch.eye(512, device=dev) * 9, torch.randn(512, 8, device=dev)
            ).mean()
            + torch.linalg.cholesky(m.weight @ m.weight.T + torch.eye(512, device=dev)).mean()
        )
        y.backward()
        o.step()
        o.zero_grad()


def boolean():
    m = nn.Linear(256, 256).cuda()
    o = torch.optim.SGD(m.parameters(), lr=0.01)
    for _ in range(100):
        x = m(torch.randn(8192, 256, device=dev))
        y = x[x.sum(1) > 0]
        u = torch.unique(torch.randint(0, 5000, (100000,), device=dev))
        (y.square().mean() + u.float().mean() * 0).backward()
        o.step()
        o.zero_grad()


globals()[sys.argv[1]]()
