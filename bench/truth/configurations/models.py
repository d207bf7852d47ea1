"""The models of train.py. Each entry of MODELS takes a batch size and a device, and gives (model, loss of the model)."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def tv(name, size=224, classes=1000):

    def build(bs, dev):
        import torchvision

        m = getattr(torchvision.models, name)(weights=None)
        if name in ("googlenet", "inception_v3"):
            m.aux_logits = False
        x = torch.randn(bs, 3, size, size, device=dev)
        y = torch.randint(0, classes, (bs,), device=dev)
        return (m, lambda mod: F.cross_entropy(mod(x), y))

    return build


def seg(name, size=256):

    def build(bs, dev):
        import torchvision

        m = getattr(torchvision.models.segmentation, name)(
            weights=None, weights_backbone=None, num_classes=21
        )
        x = torch.randn(bs, 3, size, size, device=dev)
        y = torch.randint(0, 21, (bs, size, size), device=dev)
        return (m, lambda mod: F.cross_entropy(mod(x)["out"], y))

    return build


def hf_lm(cls, cfgcls, seq, kw, vocab=None):

    def build(bs, dev):
        import transformers as T

        cfg = getattr(T, cfgcls)(**kw)
        m = getattr(T, cls)(cfg)
        v = vocab or cfg.vocab_size
        ids = torch.randint(0, v, (bs, seq), device=dev)
        return (m, lambda mod: mod(input_ids=ids, labels=ids).loss)

    return build


class Block(nn.Module):

    def __init__(s, d, h):
        super().__init__()
        s.ln1, s.ln2 = (nn.LayerNorm(d), nn.LayerNorm(d))
        s.qkv, s.proj = (nn.Linear(d, 3 * d), nn.Linear(d, d))
        s.fc, s.out = (nn.Linear(d, 4 * d), nn.Linear(4 * d, d))
        s.h = h

    def forward(s, x):
        b, t, d = x.shape
        q, k, v = s.qkv(s.ln1(x)).split(d, 2)
        q, k, v = (z.view(b, t, s.h, d // s.h).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + s.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + s.out(F.gelu(s.fc(s.ln2(x))))


class GPT(nn.Module):

    def __init__(s, v, t, d, n, h, ckpt=False):
        super().__init__()
        s.wte, s.wpe = (nn.Embedding(v, d), nn.Embedding(t, d))
        s.blocks = nn.ModuleList((Block(d, h) for _ in range(n)))
        s.ln, s.head = (nn.LayerNorm(d), nn.Linear(d, v, bias=False))
        s.head.weight = s.wte.weight
        s.ckpt = ckpt

    def forward(s, ids):
        x = s.wte(ids) + s.wpe(torch.arange(ids.shape[1], device=ids.device))
        for b in s.blocks:
            if s.ckpt:
                x = torch.utils.checkpoint.checkpoint(b, x, use_reentrant=False)
            else:
                x = b(x)
        return s.head(s.ln(x))


def gpt(d, n, h, t=1024, v=50304, ckpt=False):

    def build(bs, dev):
        import torch.utils.checkpoint

        m = GPT(v, t, d, n, h, ckpt)
        ids = torch.randint(0, v, (bs, t), device=dev)
        return (m, lambda mod: F.cross_entropy(mod(ids).view(-1, v), ids.view(-1)))

    return build


def lstm(bs, dev):

    class M(nn.Module):

        def __init__(s):
            super().__init__()
            s.e, s.l, s.o = (
                nn.Embedding(33278, 650),
                nn.LSTM(650, 650, 2, dropout=0.5, batch_first=True),
                nn.Linear(650, 33278),
            )

        def forward(s, x):
            return s.o(s.l(s.e(x))[0])

    x = torch.randint(0, 33278, (bs, 35), device=dev)
    return (M(), lambda m: F.cross_entropy(m(x).view(-1, 33278), x.view(-1)))


def unet(bs, dev):

    def dc(i, o):
        return nn.Sequential(
            nn.Conv2d(i, o, 3, padding=1),
            nn.BatchNorm2d(o),
            nn.ReLU(True),
            nn.Conv2d(o, o, 3, padding=1),
            nn.BatchNorm2d(o),
            nn.ReLU(True),
        )

    class U(nn.Module):

        def __init__(s):
            super().__init__()
            c = [64, 128, 256, 512]
            s.d = nn.ModuleList([dc(3, 64)] + [dc(a, b) for a, b in zip(c, c[1:])])
            s.mid = dc(512, 1024)
            s.up = nn.ModuleList([nn.ConvTranspose2d(2 * k, k, 2, 2) for k in c[::-1]])
            s.u = nn.ModuleList([dc(2 * k, k) for k in c[::-1]])
            s.o = nn.Conv2d(64, 2, 1)

        def forward(s, x):
            sk = []
            for b in s.d:
                x = b(x)
                sk.append(x)
                x = F.max_pool2d(x, 2)
            x = s.mid(x)
            for up, b, k in zip(s.up, s.u, sk[::-1]):
                x = b(torch.cat([k, up(x)], 1))
            return s.o(x)

    x = torch.randn(bs, 3, 256, 256, device=dev)
    y = torch.randint(0, 2, (bs, 256, 256), device=dev)
    return (U(), lambda m: F.cross_entropy(m(x), y))


def encoder(bs, dev):
    m = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, 0.1, batch_first=True), 6)
    x = torch.randn(bs, 256, 512, device=dev)
    return (m, lambda mod: mod(x).pow(2).mean())


def mlp(bs, dev):
    m = nn.Sequential(*[l for _ in range(12) for l in (nn.Linear(4096, 4096), nn.ReLU())])
    x = torch.randn(bs, 4096, device=dev)
    return (m, lambda mod: mod(x).pow(2).mean())


def conv3d(bs, dev):
    m = nn.Sequential(
        nn.Conv3d(1, 32, 3, padding=1),
        nn.InstanceNorm3d(32),
        nn.LeakyReLU(),
        nn.Conv3d(32, 64, 3, stride=2, padding=1),
        nn.InstanceNorm3d(64),
        nn.LeakyReLU(),
        nn.Conv3d(64, 64, 3, padding=1),
        nn.LeakyReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(64, 2),
    )
    x = torch.randn(bs, 1, 96, 96, 96, device=dev)
    y = torch.randint(0, 2, (bs,), device=dev)
    return (m, lambda mod: F.cross_entropy(mod(x), y))


MODELS = {
    "resnet18": tv("resnet18"),
    "resnet50": tv("resnet50"),
    "resnet152": tv("resnet152"),
    "vgg16": tv("vgg16"),
    "mobilenet_v3_large": tv("mobilenet_v3_large"),
    "efficientnet_b0": tv("efficientnet_b0"),
    "densenet121": tv("densenet121"),
    "convnext_tiny": tv("convnext_tiny"),
    "vit_b_16": tv("vit_b_16"),
    "swin_t": tv("swin_t"),
    "regnet_y_8gf": tv("regnet_y_8gf"),
    "shufflenet_v2_x1_0": tv("shufflenet_v2_x1_0"),
    "deeplabv3_resnet50": seg("deeplabv3_resnet50"),
    "unet": unet,
    "lstm": lstm,
    "encoder": encoder,
    "mlp": mlp,
    "conv3d": conv3d,
    "gpt_small": gpt(768, 12, 12),
    "gpt_small_ckpt": gpt(768, 12, 12, ckpt=True),
    "gpt_medium": gpt(1024, 24, 16),
    "gpt_medium_ckpt": gpt(1024, 24, 16, ckpt=True),
    "hf_gpt2": hf_lm("GPT2LMHeadModel", "GPT2Config", 1024, {}),
    "hf_bert_base": hf_lm("BertForMaskedLM", "BertConfig", 512, {}),
    "hf_bert_large": hf_lm(
        "BertForMaskedLM",
        "BertConfig",
        512,
        dict(
            hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
        ),
    ),
    "hf_llama_1b": hf_lm(
        "LlamaForCausalLM",
        "LlamaConfig",
        1024,
        dict(
            hidden_size=2048,
            intermediate_size=5632,
            num_hidden_layers=22,
            num_attention_heads=32,
            num_key_value_heads=4,
            vocab_size=32000,
        ),
    ),
    "hf_t5_base": hf_lm(
        "T5ForConditionalGeneration",
        "T5Config",
        512,
        dict(d_model=768, d_ff=3072, num_layers=12, num_heads=12),
    ),
    "hf_qwen2_05b": hf_lm(
        "Qwen2ForCausalLM",
        "Qwen2Config",
        1024,
        dict(
            hidden_size=896,
            intermediate_size=4864,
            num_hidden_layers=24,
            num_attention_heads=14,
            num_key_value_heads=2,
            vocab_size=151936,
            tie_word_embeddings=True,
        ),
    ),
    "hf_mixtral_tiny": hf_lm(
        "MixtralForCausalLM",
        "MixtralConfig",
        512,
        dict(
            hidden_size=512,
            intermediate_size=1024,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=4,
            vocab_size=32000,
            num_local_experts=8,
        ),
    ),
}
