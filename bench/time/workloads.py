"""What measure_kernels.py measures: configurations of one training or inference step each.

A configuration is its description and a function that makes the step. all_configurations has them.
"""

import json
import os
import sys

import torch

TRUTH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "truth")
ROWS = [
    os.path.join(TRUTH, "configurations", "h200-torch2.11.jsonl"),
    os.path.join(TRUTH, "h200-other-rows.jsonl"),
]
sys.path.insert(0, os.path.join(TRUTH, "configurations"))
from models import MODELS  # noqa: E402

dev = "cuda"


def row_config(r):
    """A row of bench/truth: the step of its configurations/train.py, without the measurements."""
    name, bs, prec, opt = r["model"], r["batch"], r["precision"], r["optimizer"]

    def make():
        torch.manual_seed(0)
        m, loss_fn = MODELS[name](bs, dev)
        m.to(dev).train()
        if prec == "bf16_pure":
            m.to(torch.bfloat16)
        p = [q for q in m.parameters() if q.requires_grad]
        O = {
            "sgd": lambda: torch.optim.SGD(p, 0.01),
            "sgdm": lambda: torch.optim.SGD(p, 0.01, momentum=0.9),
            "adam": lambda: torch.optim.Adam(p, 0.0001),
            "adamw": lambda: torch.optim.AdamW(p, 0.0001),
            "adamw_fused": lambda: torch.optim.AdamW(p, 0.0001, fused=True),
            "adamw_loop": lambda: torch.optim.AdamW(p, 0.0001, foreach=False),
        }[opt]()
        scaler = torch.amp.GradScaler("cuda", init_scale=256.0) if prec == "fp16" else None
        ac = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(prec)

        def step():
            O.zero_grad()
            if ac:
                with torch.autocast("cuda", dtype=ac):
                    loss = loss_fn(m)
            else:
                loss = loss_fn(m)
            (scaler.scale(loss) if scaler else loss).backward()
            if scaler:
                scaler.step(O)
                scaler.update()
            else:
                O.step()

        return step

    return dict(kind="row", model=name, batch=bs, precision=prec, optimizer=opt), make


def timm_config(name, mode, layout, bs):
    def make():
        import timm

        torch.manual_seed(0)
        m = timm.create_model(name).to(dev)
        size = m.default_cfg.get("input_size", (3, 224, 224))
        fmt = torch.channels_last if layout == "nhwc" else torch.contiguous_format
        m.to(memory_format=fmt)
        x = torch.randn(bs, *size, device=dev).to(memory_format=fmt)
        if mode == "infer":
            m.eval()

            def step():
                with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
                    m(x)

            return step
        m.train()
        O = torch.optim.SGD(m.parameters(), 0.01, momentum=0.9)
        y = torch.randint(0, 1000, (bs,), device=dev)
        crit = torch.nn.CrossEntropyLoss()

        def step():
            O.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = crit(m(x), y)
            loss.backward()
            O.step()

        return step

    return dict(kind="timm", model=name, mode=mode, layout=layout, batch=bs), make


TIMM = """
vit_small_patch16_224 vit_base_patch16_384 tf_efficientnet_b3 tf_efficientnetv2_s
xcit_tiny_12_p16_224 swinv2_tiny_window8_256 resnetv2_50 deit3_small_patch16_224 convnext_small
convnextv2_tiny mobilevitv2_100 regnetz_c16 nf_resnet50 crossvit_15_240 cait_s24_224 volo_d1_224
resmlp_24_224 regnety_032 regnetx_032 mnasnet_100 mobilenetv2_100 pit_s_224 hrnet_w18
twins_svt_small tresnet_m repvgg_b1 poolformer_s24 mixer_b16_224 levit_256 lcnet_100
cs3darknet_m tinynet_a res2net50_26w_4s mobilevit_s lambda_resnet26t inception_v3 edgenext_small
ghostnet_100 dla60 gernet_m mixnet_m sequencer2d_s nest_tiny coat_lite_small convmixer_768_32
wide_resnet50_2 seresnext50_32x4d resnext101_32x8d vgg16_bn dm_nfnet_f0 densenet169 xception41
beit_base_patch16_224 eca_nfnet_l0 bat_resnext26ts halonet26t skresnet34 fastvit_t8
hiera_tiny_224 maxvit_tiny_tf_224 coatnet_0_rw_224 efficientformer_l1 eva02_small_patch14_224
davit_tiny
""".split()


def products(dtype):
    def make():
        sizes = [
            (m, n, k)
            for m in (64, 256, 1024, 4096, 16384)
            for n in (128, 768, 1024, 3072, 4096, 11008)
            for k in (64, 768, 1024, 4096, 11008)
            if m * n * k < 2e11
        ]

        def step():
            for m, n, k in sizes:
                a = torch.randn(m, k, device=dev, dtype=dtype)
                b = torch.randn(n, k, device=dev, dtype=dtype)
                g = torch.randn(m, n, device=dev, dtype=dtype)
                torch.mm(a, b.t())
                torch.mm(g, b)
                torch.mm(g.t(), a)

        return step

    return make


def batched(dtype):
    def make():
        def step():
            for b in (8, 96, 384):
                for m, n, k in [
                    (64, 64, 64),
                    (128, 128, 64),
                    (512, 512, 64),
                    (1024, 1024, 64),
                    (1024, 64, 1024),
                    (197, 197, 64),
                    (49, 49, 32),
                    (512, 128, 512),
                ]:
                    x = torch.randn(b, m, k, device=dev, dtype=dtype)
                    y = torch.randn(b, k, n, device=dev, dtype=dtype)
                    torch.bmm(x, y)
                    torch.bmm(x, y.transpose(1, 2).contiguous().transpose(1, 2))

        return step

    return make


def convs(dtype, fmt):
    def make():
        cases = []
        for n, c, h, k, r, s, g in [
            (16, 3, 224, 64, 7, 2, 1),
            (64, 64, 56, 64, 1, 1, 1),
            (64, 64, 56, 64, 3, 1, 1),
            (64, 256, 56, 128, 1, 2, 1),
            (64, 128, 28, 128, 3, 1, 1),
            (64, 512, 28, 256, 1, 1, 1),
            (64, 256, 14, 256, 3, 1, 1),
            (64, 512, 7, 512, 3, 1, 1),
            (64, 2048, 7, 512, 1, 1, 1),
            (8, 64, 256, 64, 3, 1, 1),
            (4, 128, 128, 256, 3, 1, 1),
            (64, 96, 56, 96, 7, 1, 96),
            (64, 384, 14, 384, 7, 1, 384),
            (64, 144, 56, 144, 3, 1, 144),
            (64, 240, 28, 240, 5, 2, 240),
            (64, 480, 14, 480, 3, 1, 480),
            (64, 128, 56, 128, 3, 1, 32),
            (64, 512, 14, 512, 3, 1, 32),
            (64, 3, 224, 768, 16, 16, 1),
            (64, 3, 224, 96, 4, 4, 1),
            (256, 24, 28, 58, 1, 1, 1),
        ]:
            cases.append((n, c, h, k, r, s, g))

        def step():
            for n, c, h, k, r, s, g in cases:
                x = (
                    torch.randn(n, c, h, h, device=dev, dtype=dtype)
                    .to(memory_format=fmt)
                    .requires_grad_()
                )
                w = (
                    torch.randn(k, c // g, r, r, device=dev, dtype=dtype)
                    .to(memory_format=fmt)
                    .requires_grad_()
                )
                y = torch.nn.functional.conv2d(
                    x, w, stride=s, padding=r // 2 if r < s * 2 + 6 and s < 4 else 0, groups=g
                )
                y.backward(torch.randn_like(y))

        return step

    return make


def attention(dtype):
    def make():
        def step():
            for b, h, s, d in [
                (8, 12, 1024, 64),
                (4, 16, 2048, 64),
                (2, 32, 4096, 128),
                (64, 12, 197, 64),
                (16, 12, 512, 64),
                (128, 6, 196, 64),
                (1, 32, 8192, 128),
                (32, 8, 256, 32),
                (4, 32, 1024, 80),
                (4, 8, 1024, 256),
            ]:
                for causal in (False, True):
                    q, k, v = (
                        torch.randn(b, h, s, d, device=dev, dtype=dtype, requires_grad=True)
                        for _ in range(3)
                    )
                    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
                    o.backward(torch.randn_like(o))
            q, k, v = (
                torch.randn(8, 12, 512, 64, device=dev, dtype=dtype, requires_grad=True)
                for _ in range(3)
            )
            mask = torch.randn(8, 1, 512, 512, device=dev, dtype=dtype)
            o = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            o.backward(torch.randn_like(o))

        return step

    return make


def pointwise(dtype):
    def make():
        F = torch.nn.functional

        def step():
            for n in (1 << 12, 1 << 16, 1 << 20, 1 << 23, 1 << 26):
                x = torch.randn(n, device=dev, dtype=dtype)
                y = torch.randn_like(x)
                for f in (
                    torch.relu,
                    torch.exp,
                    torch.sigmoid,
                    torch.tanh,
                    F.gelu,
                    F.silu,
                    F.hardswish,
                    torch.erf,
                    torch.rsqrt,
                    lambda v: v.float(),
                    lambda v: v.half(),
                    lambda v: v.to(torch.bfloat16),
                    lambda v: v + y,
                    lambda v: v * y,
                    lambda v: v * 2,
                    lambda v: v**2,
                    lambda v: v.add_(y),
                    lambda v: v.zero_(),
                    lambda v: v.clone(),
                    lambda v: F.dropout(v, 0.1),
                    lambda v: torch.where(v > 0, v, y),
                    lambda v: v.sum(),
                    lambda v: v.max(),
                    lambda v: v.norm(),
                    lambda v: torch.addcmul(v, v, y),
                    lambda v: torch.lerp(v, y, 0.1),
                ):
                    f(x)
            for r, c in (
                (4096, 768),
                (16384, 1024),
                (8192, 4096),
                (512, 50304),
                (131072, 96),
                (50176, 197),
                (98304, 49),
            ):
                x = torch.randn(r, c, device=dev, dtype=dtype, requires_grad=True)
                w = torch.randn(c, device=dev, dtype=dtype, requires_grad=True)
                b = torch.randn(c, device=dev, dtype=dtype, requires_grad=True)
                for f in (
                    lambda: F.softmax(x, -1),
                    lambda: F.log_softmax(x.float(), -1),
                    lambda: F.layer_norm(x, (c,), w, b),
                    lambda: F.rms_norm(x, (c,), w),
                    lambda: x + w,
                    lambda: x.transpose(0, 1).contiguous(),
                    lambda: torch.cat([x, x], 1),
                    lambda: F.gelu(x),
                    lambda: F.silu(x) * x,
                    lambda: F.cross_entropy(
                        x.float(), torch.zeros(r, dtype=torch.long, device=dev)
                    ),
                ):
                    o = f()
                    o.backward(torch.ones_like(o))
                x.detach().sum(0)
                x.detach().sum(1)
                x.detach().max(1)
                x.detach().cumsum(1)
                x.detach().argmax(1)
                if r * c < 2e7:
                    x.detach().sort(1)
                    x.detach().topk(min(8, c), 1)
            for n, c, h in (
                (64, 64, 112),
                (64, 256, 56),
                (64, 512, 28),
                (64, 1024, 14),
                (64, 2048, 7),
                (8, 64, 256),
            ):
                for fmt in (torch.contiguous_format, torch.channels_last):
                    x = (
                        torch.randn(n, c, h, h, device=dev, dtype=dtype)
                        .to(memory_format=fmt)
                        .requires_grad_()
                    )
                    bn = torch.nn.BatchNorm2d(c, device=dev)
                    gn = torch.nn.GroupNorm(32, c, device=dev, dtype=dtype)
                    for f in (
                        bn,
                        gn,
                        lambda v: F.max_pool2d(v, 3, 2, 1),
                        lambda v: F.avg_pool2d(v, 2),
                        lambda v: F.adaptive_avg_pool2d(v, 1),
                        lambda v: F.interpolate(v, scale_factor=2),
                        lambda v: F.relu(v),
                        lambda v: F.pad(v, (1, 1, 1, 1)),
                        lambda v: F.interpolate(v, scale_factor=2, mode="bilinear"),
                    ):
                        try:
                            o = f(x)
                            o.backward(torch.ones_like(o))
                        except RuntimeError:
                            pass
            ids = torch.randint(0, 50304, (8192,), device=dev)
            w = torch.randn(50304, 768, device=dev, dtype=dtype, requires_grad=True)
            o = F.embedding(ids, w)
            o.backward(torch.ones_like(o))
            w.detach().index_select(0, ids)
            w.detach()[ids]
            w.detach().index_add_(0, ids, torch.ones(8192, 768, device=dev, dtype=dtype))
            torch.gather(w.detach(), 1, ids.view(-1, 1) % 768)
            src = torch.zeros(8192, 768, device=dev, dtype=dtype)
            src.scatter_add_(1, ids.view(-1, 1).expand(-1, 768) % 768, torch.ones_like(src))

        return step

    return make


def rnn(cls, dtype, hidden, layers, bs, steps, bi):
    def make():
        m = cls(hidden, hidden, layers, bidirectional=bi, device=dev, dtype=dtype)

        def step():
            x = torch.randn(steps, bs, hidden, device=dev, dtype=dtype, requires_grad=True)
            o, _ = m(x)
            o.backward(torch.ones_like(o))

        return step

    return make


def conv3(dtype):
    def make():
        def step():
            for n, c, d, h, k, r in [
                (2, 3, 16, 112, 64, 3),
                (4, 64, 16, 56, 64, 3),
                (4, 64, 8, 28, 128, 3),
                (4, 128, 8, 28, 128, 3),
                (8, 256, 4, 14, 256, 3),
                (2, 32, 64, 64, 32, 3),
                (1, 16, 96, 96, 32, 3),
                (4, 64, 16, 56, 128, 1),
            ]:
                x = torch.randn(n, c, d, h, h, device=dev, dtype=dtype, requires_grad=True)
                w = torch.randn(k, c, r, r, r, device=dev, dtype=dtype, requires_grad=True)
                o = torch.nn.functional.conv3d(x, w, padding=r // 2)
                o.backward(torch.ones_like(o))
            for n, c, l, k, r in [
                (16, 64, 4000, 128, 3),
                (16, 80, 3000, 384, 3),
                (32, 256, 512, 256, 9),
            ]:
                x = torch.randn(n, c, l, device=dev, dtype=dtype, requires_grad=True)
                w = torch.randn(k, c, r, device=dev, dtype=dtype, requires_grad=True)
                o = torch.nn.functional.conv1d(x, w, padding=r // 2)
                o.backward(torch.ones_like(o))
            for n, c, h, k, r, s in [
                (16, 512, 14, 256, 2, 2),
                (16, 128, 56, 64, 2, 2),
                (64, 512, 4, 256, 4, 2),
                (64, 128, 16, 64, 4, 2),
            ]:
                x = torch.randn(n, c, h, h, device=dev, dtype=dtype, requires_grad=True)
                w = torch.randn(c, k, r, r, device=dev, dtype=dtype, requires_grad=True)
                o = torch.nn.functional.conv_transpose2d(x, w, stride=s)
                o.backward(torch.ones_like(o))

        return step

    return make


def copies():
    def make():
        def step():
            for n in (1 << 12, 1 << 20, 1 << 24, 1 << 28):
                x = torch.empty(n, dtype=torch.uint8, device=dev)
                p = torch.empty(n, dtype=torch.uint8).pin_memory()
                h = torch.empty(n, dtype=torch.uint8)
                x.copy_(p, non_blocking=True)
                p.copy_(x, non_blocking=True)
                x.copy_(h)
                h.copy_(x)
                x.clone()

        return step

    return make


def micro_configs():
    R = [
        ("mm", products(torch.bfloat16)),
        ("mm_fp16", products(torch.float16)),
        ("mm_fp32", products(torch.float32)),
        ("bmm_bf16", batched(torch.bfloat16)),
        ("bmm_fp32", batched(torch.float32)),
        ("conv_fp32", convs(torch.float32, torch.contiguous_format)),
        ("conv_fp16", convs(torch.float16, torch.contiguous_format)),
        ("conv_bf16_nhwc", convs(torch.bfloat16, torch.channels_last)),
        ("conv_fp32_nhwc", convs(torch.float32, torch.channels_last)),
        ("conv_fp16_nhwc", convs(torch.float16, torch.channels_last)),
        ("attention_bf16", attention(torch.bfloat16)),
        ("attention_fp32", attention(torch.float32)),
        ("pointwise_fp32", pointwise(torch.float32)),
        ("pointwise_bf16", pointwise(torch.bfloat16)),
        ("conv3_fp32", conv3(torch.float32)),
        ("conv3_fp16", conv3(torch.float16)),
        ("copies", copies()),
    ]
    for i, (cls, dt, hd, ly, bs, st, bi) in enumerate(
        [
            (torch.nn.LSTM, torch.float32, 512, 2, 32, 64, False),
            (torch.nn.LSTM, torch.float16, 1024, 1, 64, 50, True),
            (torch.nn.GRU, torch.float32, 256, 3, 16, 100, False),
            (torch.nn.GRU, torch.bfloat16, 650, 2, 20, 35, False),
            (torch.nn.RNN, torch.float32, 512, 2, 64, 64, False),
            (torch.nn.LSTM, torch.float32, 1500, 2, 20, 35, False),
        ]
    ):
        R.append((f"rnn{i}", rnn(cls, dt, hd, ly, bs, st, bi)))
    return [(dict(kind="micro", model=n), f) for n, f in R]


def all_configurations(lists):
    configurations, seen = [], set()
    if "rows" in lists:
        for path in ROWS:
            for line in open(path):
                row = json.loads(line)
                key = (row["model"], row["batch"], row["precision"], row["optimizer"])
                if key not in seen:
                    seen.add(key)
                    configurations.append(row_config(row))
    if "micro" in lists:
        configurations += micro_configs()
    if "timm" in lists:
        for i, name in enumerate(TIMM):
            configurations.append(timm_config(name, "train", ("nchw", "nhwc")[i % 2], 64))
            configurations.append(timm_config(name, "infer", ("nhwc", "nchw")[i % 2], 256))
    return configurations
