"""Training and inference of many kinds, one program a run: what run_program_kinds.py measures on a real and on a virtual card.

usage: program_kinds_cases.py CASE OUT

Appends one JSON line to OUT: peak allocated and reserved after every step, and what the driver has in use at the end. Models have
random weights and data is made up; sizes are small (a step takes well under a second), the ways of using memory are those of the field.
"""
import copy
import json
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from language_model import LanguageModel, language_loss

DEVICE = "cuda"
STEPS = 4
CASES = {}
PEAKS = []


def case(function):
    CASES[function.__name__] = function
    return function


def note_step():
    torch.cuda.synchronize()
    PEAKS.append([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()])


def train(model, loss_of, steps=STEPS, optimizer=None, precision=None, scaled=False, clip=None):
    """loss_of(step) gives the loss; `precision` is autocast's, `scaled` trains with a GradScaler."""
    parameters = list(model.parameters())
    optimizer = optimizer or torch.optim.AdamW(parameters, 1e-4)
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0, enabled=scaled)
    for step in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=precision, enabled=precision is not None):
            loss = loss_of(step)
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, clip)
        scaler.step(optimizer)
        scaler.update()
        note_step()
        del loss


def noise(*shape, **kwargs):
    return torch.randn(*shape, device=DEVICE, **kwargs)


def integers(high, *shape, low=0):
    return torch.randint(low, high, shape, device=DEVICE)


def mlp(*widths, activation=nn.ReLU):
    layers = []
    for i, o in zip(widths, widths[1:]):
        layers += [nn.Linear(i, o), activation()]
    return nn.Sequential(*layers[:-1])


class Block(nn.Module):
    """A transformer's block; x is batch, time, width, or a jagged nested tensor of that."""

    def __init__(self, width=512, heads=8, causal=True):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.causal = heads, causal

    def attention(self, x):
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(-2))

    def feed_forward(self, x):
        return self.down(F.gelu(self.up(x)))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


def gpt(layers=6):
    return LanguageModel(Block() for _ in range(layers))


# --- Images, video, speech, fields --------------------------------------------------------------------------------------------

@case
def unet3d():
    def block(i, o):
        return nn.Sequential(nn.Conv3d(i, o, 3, padding=1), nn.InstanceNorm3d(o), nn.LeakyReLU(0.1))

    class UNet3d(nn.Module):
        def __init__(self):
            super().__init__()
            self.down1, self.down2, self.bottom = block(1, 16), block(16, 32), block(32, 64)
            self.up2, self.up1 = nn.ConvTranspose3d(64, 32, 2, 2), nn.ConvTranspose3d(32, 16, 2, 2)
            self.joined2, self.joined1 = block(64, 32), block(32, 16)
            self.head = nn.Conv3d(16, 3, 1)

        def forward(self, x):
            a = self.down1(x)
            b = self.down2(F.max_pool3d(a, 2))
            c = self.bottom(F.max_pool3d(b, 2))
            y = self.joined2(torch.cat([self.up2(c), b], 1))
            return self.head(self.joined1(torch.cat([self.up1(y), a], 1)))

    model = UNet3d().to(DEVICE)
    train(model, lambda step: F.cross_entropy(model(noise(2, 1, 32, 64, 64)), integers(3, 2, 32, 64, 64)))


@case
def raft_flow():
    from torchvision.models.optical_flow import raft_small
    model = raft_small().to(DEVICE).train()

    def loss_of(step):
        first, second = (torch.rand(2, 3, 128, 160, device=DEVICE) for _ in range(2))
        return sum(flow.abs().mean() for flow in model(first, second, num_flow_updates=4))

    train(model, loss_of, clip=1.0)


@case
def ssdlite():
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large
    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5).to(DEVICE).train()

    def loss_of(step):
        images = [torch.rand(3, 320, 320, device=DEVICE) for _ in range(4)]
        targets = [{"boxes": torch.tensor([[10., 10., 100., 120.], [50., 60., 200., 210.]], device=DEVICE),
                    "labels": torch.tensor([1, 2], device=DEVICE)} for _ in range(4)]
        return sum(model(images, targets).values())

    train(model, loss_of, optimizer=torch.optim.SGD(model.parameters(), 0.01, momentum=0.9))


@case
def deformable_rois():
    """A detection head: deformable convolution over the map, boxes cut out of it by RoIAlign, as many as survive suppression."""
    from torchvision.ops import DeformConv2d, RoIAlign, nms

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 4, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 256, 3, 2, 1), nn.ReLU())
            self.offsets, self.deformed = nn.Conv2d(256, 27, 3, padding=1), DeformConv2d(256, 256, 3, padding=1)
            self.pool = RoIAlign(7, 1 / 8, 2)
            self.box = mlp(256 * 49, 1024, 21)

        def forward(self, images, boxes):
            x = self.stem(images)
            offset, mask = self.offsets(x).split((18, 9), 1)
            x = F.relu(self.deformed(x, offset, mask.sigmoid()))
            return self.box(self.pool(x, boxes).flatten(1))

    model = Head().to(DEVICE)

    def loss_of(step):
        boxes = []
        for image in range(4):
            corner = (torch.arange(120, device=DEVICE) * (37 + step + image) % 384).float()
            candidates = torch.stack([corner, corner.flip(0), corner + 64, corner.flip(0) + 96], 1)
            boxes.append(candidates[nms(candidates, torch.linspace(1, 0, 120, device=DEVICE), 0.5)])
        out = model(noise(4, 3, 512, 512), boxes)
        return F.cross_entropy(out, integers(21, out.shape[0]))

    train(model, loss_of, optimizer=torch.optim.SGD(model.parameters(), 0.01, momentum=0.9))


@case
def convnext_channels_last():
    from torchvision.models import convnext_small
    model = convnext_small().to(DEVICE, memory_format=torch.channels_last).train()

    def loss_of(step):
        images = noise(16, 3, 160, 160).to(memory_format=torch.channels_last)
        return F.cross_entropy(model(images), integers(1000, 16), label_smoothing=0.1)

    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)
    train(model, loss_of, optimizer=optimizer, precision=torch.float16, scaled=True, clip=1.0)


@case
def swin_v2():
    from torchvision.models import swin_v2_t
    model = swin_v2_t().to(DEVICE).train()
    train(model, lambda step: F.cross_entropy(model(noise(16, 3, 256, 256)), integers(1000, 16)), precision=torch.bfloat16)


@case
def maxvit_soft_labels():
    from torchvision.models import maxvit_t
    model = maxvit_t().to(DEVICE).train()
    optimizer = torch.optim.NAdam(model.parameters())
    train(model, lambda step: F.cross_entropy(model(noise(8, 3, 224, 224)), torch.softmax(noise(8, 1000), 1)), optimizer=optimizer)


@case
def r2plus1d_video():
    from torchvision.models.video import r2plus1d_18
    model = r2plus1d_18().to(DEVICE).train()
    train(model, lambda step: F.cross_entropy(model(noise(4, 3, 8, 112, 112)), integers(400, 4)), precision=torch.float16, scaled=True)


@case
def efficientnet_triplets():
    from torchvision.models import efficientnet_v2_s
    model = efficientnet_v2_s().to(DEVICE).train()
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-3, momentum=0.9)
    train(model, lambda step: F.triplet_margin_loss(*[model(noise(8, 3, 160, 160)) for _ in range(3)]), optimizer=optimizer)


@case
def segformer():
    from transformers import SegformerConfig, SegformerForSemanticSegmentation
    model = SegformerForSemanticSegmentation(SegformerConfig(num_labels=10)).to(DEVICE).train()
    train(model, lambda step: model(noise(4, 3, 256, 256), labels=integers(10, 4, 256, 256)).loss)


@case
def ctc_speech():
    class Recognizer(nn.Module):
        def __init__(self):
            super().__init__()
            self.subsample = nn.Sequential(nn.Conv1d(80, 256, 3, 2, 1), nn.ReLU(), nn.Conv1d(256, 256, 3, 2, 1), nn.ReLU())
            self.rnn = nn.LSTM(256, 256, 3, bidirectional=True, batch_first=True)
            self.head = nn.Linear(512, 40)

        def forward(self, spectrum):
            return self.head(self.rnn(self.subsample(spectrum).transpose(1, 2))[0])

    model = Recognizer().to(DEVICE)

    def loss_of(step):
        scores = model(noise(16, 80, 400)).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(scores, integers(40, 16, 30, low=1), torch.full((16,), 100), torch.full((16,), 30))

    train(model, loss_of)


@case
def whisper():
    from transformers import WhisperConfig, WhisperForConditionalGeneration
    model = WhisperForConditionalGeneration(WhisperConfig(
        encoder_layers=4, decoder_layers=4, d_model=384, encoder_attention_heads=6, decoder_attention_heads=6,
        encoder_ffn_dim=1536, decoder_ffn_dim=1536)).to(DEVICE).train()
    train(model, lambda step: model(input_features=noise(4, 80, 3000), labels=integers(5000, 4, 60)).loss,
          precision=torch.float16, scaled=True)


@case
def fourier_operator():
    """A neural operator (FNO): layers multiply the low frequencies of a two-dimensional field."""

    class SpectralConv(nn.Module):
        def __init__(self, width=32, modes=16):
            super().__init__()
            self.modes = modes
            self.weight = nn.Parameter(torch.randn(width, width, modes, modes, dtype=torch.cfloat) * 0.02)

        def forward(self, x):
            spectrum, m = torch.fft.rfft2(x), self.modes
            out = torch.zeros_like(spectrum)
            out[..., :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[..., :m, :m], self.weight)
            return torch.fft.irfft2(out, s=x.shape[-2:])

    model = nn.Sequential(nn.Conv2d(1, 32, 1), SpectralConv(), nn.GELU(), SpectralConv(), nn.GELU(), nn.Conv2d(32, 1, 1)).to(DEVICE)
    train(model, lambda step: model(noise(16, 1, 64, 64)).square().mean())


@case
def physics_informed():
    """Burgers' equation as the loss: first and second derivatives of the network by its inputs, then the gradient through them."""
    model = mlp(2, 256, 256, 256, 256, 1, activation=nn.Tanh).to(DEVICE)

    def derivative(y, x):
        return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]

    def loss_of(step):
        x, t = (torch.rand(20000, 1, device=DEVICE, requires_grad=True) for _ in range(2))
        u = model(torch.cat([x, t], 1))
        u_x, u_t = derivative(u, x), derivative(u, t)
        residual = u_t + u * u_x - 0.01 / torch.pi * derivative(u_x, x)
        edge = torch.rand(1000, 1, device=DEVICE)
        start = model(torch.cat([edge, torch.zeros_like(edge)], 1)) + torch.sin(torch.pi * edge)
        return residual.square().mean() + start.square().mean()

    train(model, loss_of)


# --- Generative models --------------------------------------------------------------------------------------------------------

@case
def wgan_gradient_penalty():
    generator = nn.Sequential(
        nn.Linear(128, 256 * 16), nn.Unflatten(1, (256, 4, 4)),
        nn.ConvTranspose2d(256, 128, 4, 2, 1), nn.BatchNorm2d(128), nn.ReLU(),
        nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh()).to(DEVICE)
    critic = nn.Sequential(
        nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(64, 128, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(128, 256, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(256 * 16, 1)).to(DEVICE)
    generator_optimizer = torch.optim.Adam(generator.parameters(), 1e-4, betas=(0.0, 0.9))
    critic_optimizer = torch.optim.Adam(critic.parameters(), 1e-4, betas=(0.0, 0.9))
    for _ in range(STEPS):
        real = torch.rand(64, 3, 32, 32, device=DEVICE)
        fake = generator(noise(64, 128)).detach()
        mix = torch.rand(64, 1, 1, 1, device=DEVICE)
        between = (mix * real + (1 - mix) * fake).requires_grad_()
        slope, = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = ((slope.flatten(1).norm(2, 1) - 1) ** 2).mean()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
        critic_optimizer.zero_grad()
        loss.backward()
        critic_optimizer.step()

        generator_optimizer.zero_grad()
        loss = -critic(generator(noise(64, 128))).mean()
        loss.backward()
        generator_optimizer.step()
        note_step()


@case
def gan_spectral_norm():
    """Two optimizers, hinge losses, a discriminator under spectral norm that is trained twice as often."""
    from torch.nn.utils.parametrizations import spectral_norm

    def up(i, o):
        return nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())

    def down(i, o):
        return nn.Sequential(spectral_norm(nn.Conv2d(i, o, 4, 2, 1)), nn.LeakyReLU(0.1))

    generator = nn.Sequential(nn.Linear(128, 256 * 16), nn.Unflatten(1, (256, 4, 4)), up(256, 256), up(256, 128), up(128, 64), up(64, 64),
                              nn.Conv2d(64, 3, 3, padding=1), nn.Tanh()).to(DEVICE)
    discriminator = nn.Sequential(down(3, 64), down(64, 128), down(128, 256), down(256, 512), nn.Flatten(),
                                  spectral_norm(nn.Linear(512 * 16, 1))).to(DEVICE)
    generator_optimizer = torch.optim.Adam(generator.parameters(), 1e-4, betas=(0.0, 0.999))
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), 4e-4, betas=(0.0, 0.999))
    for _ in range(STEPS):
        for _ in range(2):
            with torch.no_grad():
                fake = generator(noise(64, 128))
            real = torch.rand(64, 3, 64, 64, device=DEVICE) * 2 - 1
            loss = F.relu(1 - discriminator(real)).mean() + F.relu(1 + discriminator(fake)).mean()
            discriminator_optimizer.zero_grad(set_to_none=True)
            loss.backward()
            discriminator_optimizer.step()
        discriminator.requires_grad_(False)
        loss = -discriminator(generator(noise(64, 128))).mean()
        generator_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        generator_optimizer.step()
        discriminator.requires_grad_(True)
        note_step()


@case
def diffusion_ema():
    """A denoiser in bf16 with an averaged copy of the weights."""
    model = nn.Sequential(
        nn.Conv2d(3, 128, 3, padding=1), nn.GroupNorm(32, 128), nn.SiLU(),
        nn.Conv2d(128, 256, 3, 2, 1), nn.GroupNorm(32, 256), nn.SiLU(),
        nn.Upsample(scale_factor=2), nn.Conv2d(256, 128, 3, padding=1), nn.SiLU(), nn.Conv2d(128, 3, 3, padding=1)).to(DEVICE)
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    for _ in range(STEPS):
        images = noise(16, 3, 64, 64)
        added = torch.randn_like(images)
        level = torch.cos(integers(1000, 16).float() / 1000)[:, None, None, None]
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.mse_loss(model(level * images + (1 - level) * added).float(), added)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(average.parameters(), model.parameters()):
                p.lerp_(q, 0.01)
        note_step()


# --- Language -----------------------------------------------------------------------------------------------------------------

@case
def seq2seq_attention():
    vocabulary, width = 8000, 512

    class Seq2Seq(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(vocabulary, width)
            self.encoder = nn.GRU(width, width, 2, bidirectional=True, batch_first=True, dropout=0.1)
            self.decoder = nn.LSTMCell(3 * width, width)
            self.attention, self.head = nn.Linear(3 * width, 1), nn.Linear(3 * width, vocabulary)

        def forward(self, source, target):
            memory, _ = self.encoder(self.embed(source))
            state = (torch.zeros(source.size(0), width, device=DEVICE), torch.zeros(source.size(0), width, device=DEVICE))
            context, logits = memory.mean(1), []
            y = self.embed(target)
            for t in range(target.size(1)):
                state = self.decoder(torch.cat([y[:, t], context], 1), state)
                query = state[0][:, None].expand(-1, memory.size(1), -1)
                weights = torch.softmax(self.attention(torch.cat([memory, query], 2)), 1)
                context = (weights * memory).sum(1)
                logits.append(self.head(torch.cat([state[0], context], 1)))
            return torch.stack(logits, 1)

    model = Seq2Seq().to(DEVICE)
    train(model, lambda step: F.cross_entropy(model(integers(vocabulary, 32, 30), integers(vocabulary, 32, 20)).flatten(0, 1),
                                              integers(vocabulary, 640)), clip=1.0)


@case
def packed_lstm():
    """A tagger over sentences of different lengths, packed."""
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20000, 256, padding_idx=0)
            self.rnn = nn.LSTM(256, 512, 2, bidirectional=True, batch_first=True, dropout=0.2)
            self.head = nn.Linear(1024, 50)

        def forward(self, ids, lengths):
            packed = pack_padded_sequence(self.embed(ids), lengths.cpu(), batch_first=True, enforce_sorted=False)
            return self.head(pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0])

    model = Tagger().to(DEVICE)

    def loss_of(step):
        lengths = torch.tensor([8 + (11 * i + 29 * step) % 90 for i in range(48)], device=DEVICE)
        longest = int(lengths.max())
        padding = torch.arange(longest, device=DEVICE) >= lengths[:, None]
        ids = integers(20000, 48, longest, low=1).masked_fill(padding, 0)
        tags = integers(50, 48, longest).masked_fill(padding, -100)
        return F.cross_entropy(model(ids, lengths).flatten(0, 1), tags.flatten())

    train(model, loss_of, clip=5.0)


@case
def selective_state_space():
    """Mamba's layer, its scan written out step by step."""

    class SelectiveScan(nn.Module):
        def __init__(self, width, states=16):
            super().__init__()
            self.inner, self.conv = nn.Linear(width, 2 * width), nn.Conv1d(width, width, 4, padding=3, groups=width)
            self.select, self.delta = nn.Linear(width, 1 + 2 * states), nn.Linear(1, width)
            self.decay = nn.Parameter(torch.rand(width, states))
            self.out, self.norm = nn.Linear(width, width), nn.RMSNorm(width)
            self.states = states

        def forward(self, u):
            x, gate = self.inner(self.norm(u)).chunk(2, -1)
            x = F.silu(self.conv(x.transpose(1, 2))[..., :u.size(1)].transpose(1, 2))
            delta, b, c = self.select(x).split((1, self.states, self.states), -1)
            delta = F.softplus(self.delta(delta))
            da = torch.exp(-delta[..., None] * self.decay)
            db = delta[..., None] * b[:, :, None] * x[..., None]
            h, out = torch.zeros_like(da[:, 0]), []
            for t in range(u.size(1)):
                h = da[:, t] * h + db[:, t]
                out.append((h * c[:, t, None]).sum(-1))
            return u + self.out(torch.stack(out, 1) * F.silu(gate))

    model = nn.Sequential(nn.Embedding(1000, 256), SelectiveScan(256), SelectiveScan(256), nn.Linear(256, 1000)).to(DEVICE)
    train(model, lambda step: F.cross_entropy(model(integers(1000, 8, 64)).flatten(0, 1), integers(1000, 512)))


@case
def dense_mixture():
    """Every expert sees every token; the gate weighs their outputs."""
    experts, width = 8, 512

    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(width, experts)
            self.up = nn.Parameter(torch.randn(experts, width, 4 * width) * 0.02)
            self.down = nn.Parameter(torch.randn(experts, 4 * width, width) * 0.02)

        def forward(self, x):
            weights = torch.softmax(self.gate(x), -1)
            hidden = F.gelu(torch.einsum("bd,edf->ebf", x, self.up))
            return torch.einsum("ebf,efd,be->bd", hidden, self.down, weights)

    model = nn.Sequential(Mixture(), Mixture()).to(DEVICE)
    train(model, lambda step: model(noise(1024, width)).square().mean(), precision=torch.bfloat16)


@case
def windowed_attention():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, norm_first=True), 4).to(DEVICE)
    ones = torch.ones(256, 256, dtype=torch.bool, device=DEVICE)
    mask = ones.triu(1) | ones.tril(-64)
    optimizer = torch.optim.RAdam(model.parameters())
    train(model, lambda step: model(noise(16, 256, 512), mask=mask).square().mean(), optimizer=optimizer)


@case
def varying_lengths():
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
    model = nn.Sequential(nn.Embedding(20000, 512), nn.TransformerEncoder(layer, 4), nn.Linear(512, 20000)).to(DEVICE)
    lengths = [64, 192, 128, 320, 96, 256]
    train(model, lambda step: F.cross_entropy(model(integers(20000, 16, lengths[step])).flatten(0, 1),
                                              integers(20000, 16 * lengths[step])), steps=len(lengths))


@case
def nested_jagged():
    """Sentences of different lengths without padding, as jagged nested tensors through attention."""
    embed = nn.Embedding(8192, 512)
    model = nn.ModuleList([embed, *[Block(causal=False) for _ in range(4)], nn.Linear(512, 8192)]).to(DEVICE)

    def loss_of(step):
        sentences = [integers(8192, 16 + (37 * i + 53 * step) % 240) for i in range(24)]
        x = model[0](torch.nested.nested_tensor(sentences, layout=torch.jagged, device=DEVICE))
        for layer in model[1:]:
            x = layer(x)
        return F.cross_entropy(x.values().float(), torch.cat(sentences))

    train(model, loss_of, precision=torch.bfloat16)


@case
def length_buckets():
    """Classification with batches of like lengths: lengths and counts are read back, as a log does."""

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20000, 256, padding_idx=0)
            layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
            self.encoder, self.head = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(256, 5)

        def forward(self, ids):
            padding = ids == 0
            x = self.encoder(self.embed(ids), src_key_padding_mask=padding).masked_fill(padding[..., None], 0)
            return self.head(x.sum(1) / (~padding).sum(1, keepdim=True))

    model = Classifier().to(DEVICE)
    lengths = 10 + (torch.arange(200, device=DEVICE) * 7919) % 290
    buckets = [bucket.tolist() for bucket in lengths.sort().values.split(50)]
    seen = correct = 0

    def loss_of(step):
        nonlocal seen, correct
        bucket = buckets[step]
        ids = nn.utils.rnn.pad_sequence([integers(20000, n, low=1) for n in bucket], batch_first=True)
        labels = integers(5, len(bucket))
        logits = model(ids)
        seen += (ids != 0).sum().item()
        correct += (logits.argmax(1) == labels).sum().item()
        return F.cross_entropy(logits, labels)

    train(model, loss_of)


@case
def clip_pairs():
    from transformers import CLIPConfig, CLIPModel
    model = CLIPModel(CLIPConfig()).to(DEVICE).train()
    train(model, lambda step: model(input_ids=integers(49000, 32, 40), pixel_values=noise(32, 3, 224, 224), return_loss=True,
                                    attention_mask=torch.ones(32, 40, dtype=torch.long, device=DEVICE)).loss, precision=torch.bfloat16)


@case
def gemma_checkpointed():
    from transformers import Gemma2Config, Gemma2ForCausalLM
    model = Gemma2ForCausalLM(Gemma2Config(
        vocab_size=32000, hidden_size=512, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=4, head_dim=64)).to(DEVICE).train()
    model.gradient_checkpointing_enable()

    def loss_of(step):
        ids = integers(32000, 4, 512)
        return model(input_ids=ids, labels=ids).loss

    train(model, loss_of, precision=torch.bfloat16, clip=1.0)


@case
def t5_adafactor():
    from transformers import T5Config, T5ForConditionalGeneration
    model = T5ForConditionalGeneration(T5Config(
        d_model=512, d_ff=2048, num_layers=4, num_heads=8, decoder_start_token_id=0, pad_token_id=0)).to(DEVICE).to(torch.bfloat16).train()
    optimizer = torch.optim.Adafactor(model.parameters())
    train(model, lambda step: model(input_ids=integers(32000, 8, 128), labels=integers(32000, 8, 64)).loss, optimizer=optimizer)


@case
def gpt_accumulation():
    """Three small batches a step under autocast, Adam one parameter at a time."""
    layers = [nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, activation="gelu") for _ in range(6)]
    model = nn.ModuleList([nn.Embedding(32000, 768), *layers, nn.Linear(768, 32000)]).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, foreach=False)
    for _ in range(STEPS):
        for _ in range(3):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                x = model[0](integers(32000, 4, 256))
                for block in model[1:-1]:
                    x = block(x, src_mask=nn.Transformer.generate_square_subsequent_mask(256, device=DEVICE), is_causal=True)
                loss = F.cross_entropy(model[-1](x).flatten(0, 1), integers(32000, 1024)) / 3
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        note_step()


@case
def bf16_accumulation():
    """Everything in bf16, weights and optimizer state too; fused AdamW after four small batches."""
    model = gpt().to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    for _ in range(STEPS):
        for _ in range(4):
            ids = integers(8192, 8, 256)
            (language_loss(model(ids), ids) / 4).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        note_step()


def random_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    return GPT2LMHeadModel(GPT2Config(vocab_size=8192, n_embd=512, n_layer=6, n_head=8, bos_token_id=1, eos_token_id=2)).to(DEVICE).eval()


@case
def generate_greedy():
    model = random_gpt2()
    for step in range(STEPS):
        prompt = integers(8192, 8, 64 + 32 * step, low=3)
        model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=32, do_sample=False, pad_token_id=0)
        note_step()


@case
def generate_beams():
    model = random_gpt2()
    for step in range(STEPS):
        prompt = integers(8192, 4, 64 + 32 * step, low=3)
        model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=32, num_beams=4, do_sample=False, pad_token_id=0)
        note_step()


# --- Recommendation, reinforcement --------------------------------------------------------------------------------------------

@case
def sparse_embedding():
    """Word vectors with negative samples: sparse gradients, SparseAdam."""
    words, contexts = (nn.Embedding(200000, 128, sparse=True).to(DEVICE) for _ in range(2))
    optimizer = torch.optim.SparseAdam([*words.parameters(), *contexts.parameters()], 1e-3)
    for step in range(STEPS):
        batch = 8192 + 2048 * step
        word, near, negative = words(integers(200000, batch)), contexts(integers(200000, batch)), contexts(integers(200000, batch, 5))
        loss = -F.logsigmoid((word * near).sum(-1)).mean() - F.logsigmoid(-(word[:, None] * negative).sum(-1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        note_step()


@case
def recommender():
    """DLRM: bags of categories of varying sizes, dense features, pairwise dot products."""

    class Dlrm(nn.Module):
        def __init__(self, rows=(100000, 50000, 20000, 5000, 1000, 100), width=64):
            super().__init__()
            self.bags = nn.ModuleList(nn.EmbeddingBag(n, width, mode="sum", sparse=True) for n in rows)
            vectors = len(rows) + 1
            self.bottom, self.top = mlp(13, 512, 256, width), mlp(width + vectors * (vectors - 1) // 2, 512, 256, 1)
            self.register_buffer("pairs", torch.tril_indices(vectors, vectors, -1), persistent=False)

        def forward(self, dense, sparse):
            x = self.bottom(dense)
            vectors = torch.stack([x, *[bag(ids, offsets) for bag, (ids, offsets) in zip(self.bags, sparse)]], 1)
            products = torch.bmm(vectors, vectors.transpose(1, 2))
            return self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], 1)).squeeze(1)

    model, batch = Dlrm().to(DEVICE), 8192
    dense_optimizer = torch.optim.Adagrad([*model.bottom.parameters(), *model.top.parameters()], 1e-2)
    sparse_optimizer = torch.optim.SGD(model.bags.parameters(), 1e-2)
    for step in range(STEPS):
        sparse = []
        for bag in model.bags:
            lengths = integers(6, batch, low=1)
            offsets = lengths.cumsum(0) - lengths
            sparse.append((integers(bag.num_embeddings, int(lengths.sum())), offsets))
        loss = F.binary_cross_entropy_with_logits(model(noise(batch, 13), sparse), integers(2, batch).float())
        dense_optimizer.zero_grad()
        sparse_optimizer.zero_grad()
        loss.backward()
        dense_optimizer.step()
        sparse_optimizer.step()
        note_step()


@case
def soft_actor_critic():
    network = lambda i, o: mlp(i, 256, 256, o).to(DEVICE)
    policy, q1, q2, target1, target2 = network(17, 12), network(23, 1), network(23, 1), network(23, 1), network(23, 1)
    log_alpha = torch.zeros((), device=DEVICE, requires_grad=True)
    policy_optimizer = torch.optim.Adam(policy.parameters(), 3e-4)
    q_optimizer = torch.optim.Adam([*q1.parameters(), *q2.parameters()], 3e-4)
    alpha_optimizer = torch.optim.Adam([log_alpha], 3e-4)
    states, actions, rewards = noise(20000, 17), noise(20000, 6), noise(20000, 1)  # the replay buffer

    def update(optimizer, loss):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def act(state):
        mean, log_deviation = policy(state).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_deviation.clamp(-5, 2).exp())
        action = normal.rsample()
        log_probability = normal.log_prob(action) - torch.log(1 - torch.tanh(action) ** 2 + 1e-6)
        return torch.tanh(action), log_probability.sum(-1, keepdim=True)

    for _ in range(6):
        chosen = integers(20000, 256)
        state, action, reward, following = states[chosen], actions[chosen], rewards[chosen], states[chosen]
        with torch.no_grad():
            next_action, log_probability = act(following)
            pair = torch.cat([following, next_action], 1)
            goal = reward + 0.99 * (torch.min(target1(pair), target2(pair)) - log_alpha.exp() * log_probability)
        pair = torch.cat([state, action], 1)
        update(q_optimizer, F.mse_loss(q1(pair), goal) + F.mse_loss(q2(pair), goal))
        action, log_probability = act(state)
        pair = torch.cat([state, action], 1)
        update(policy_optimizer, (log_alpha.exp().detach() * log_probability - torch.min(q1(pair), q2(pair))).mean())
        update(alpha_optimizer, -(log_alpha * (log_probability.detach() - 6)).mean())
        for p, q in zip([*target1.parameters(), *target2.parameters()], [*q1.parameters(), *q2.parameters()]):
            p.data.lerp_(q.data, 0.005)
        note_step()


@case
def ppo():
    """Rollouts of 256 environments into buffers on the card, advantages backwards in time, four epochs of minibatches."""
    horizon, environments, observed, choices = 64, 256, 64, 8
    body, actor, critic = mlp(observed, 256, 256).to(DEVICE), nn.Linear(256, choices).to(DEVICE), nn.Linear(256, 1).to(DEVICE)
    dynamics = noise(observed + choices, observed) * 0.1
    parameters = [*body.parameters(), *actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, 3e-4, eps=1e-5)

    def buffer(*shape):
        return torch.zeros(horizon, environments, *shape, device=DEVICE)

    observations, actions = buffer(observed), buffer().long()
    log_probabilities, rewards, dones, values, advantages = (buffer() for _ in range(5))

    def evaluate(observation):
        hidden = body(observation)
        return torch.distributions.Categorical(logits=actor(hidden)), critic(hidden).squeeze(-1)

    observation = noise(environments, observed)
    for _ in range(STEPS):
        with torch.no_grad():
            for t in range(horizon):
                policy, values[t] = evaluate(observation)
                observations[t], actions[t] = observation, policy.sample()
                log_probabilities[t] = policy.log_prob(actions[t])
                observation = torch.tanh(torch.cat([observation, F.one_hot(actions[t], choices)], 1) @ dynamics)
                rewards[t] = observation[:, 0]
                dones[t] = observation[:, 1] > 0.9
            following, advantage = evaluate(observation)[1], 0
            for t in reversed(range(horizon)):
                alive = 1 - dones[t]
                advantage = rewards[t] + 0.99 * following * alive - values[t] + 0.99 * 0.95 * alive * advantage
                advantages[t], following = advantage, values[t]
        flat = [x.flatten(0, 1) for x in (observations, actions, log_probabilities, advantages, advantages + values)]
        for _ in range(4):
            for chosen in torch.randperm(horizon * environments, device=DEVICE).split(4096):
                seen, action, old, advantage, goal = (x[chosen] for x in flat)
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                policy, value = evaluate(seen)
                ratio = (policy.log_prob(action) - old).exp()
                surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
                loss = -surrogate.mean() + 0.5 * F.mse_loss(value, goal) - 0.01 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()
        note_step()


# --- Ways of training ---------------------------------------------------------------------------------------------------------

@case
def meta_learning():
    """MAML: a gradient step inside the loss, mapped over tasks."""
    from torch.func import functional_call, grad, vmap
    model = mlp(64, 256, 256, 10).to(DEVICE)
    weights = dict(model.named_parameters())

    def task_loss(x, y, query_x, query_y):
        gradient = grad(lambda w: F.cross_entropy(functional_call(model, w, (x,)), y))(weights)
        adapted = {name: w - 0.1 * gradient[name] for name, w in weights.items()}
        return F.cross_entropy(functional_call(model, adapted, (query_x,)), query_y)

    train(model, lambda step: vmap(task_loss)(noise(16, 25, 64), integers(10, 16, 25), noise(16, 25, 64), integers(10, 16, 25)).mean())


@case
def ensemble():
    """Eight networks as one, by torch.func: their weights stacked, gradients by grad under vmap."""
    from torch.func import functional_call, grad_and_value, stack_module_state, vmap
    members = [mlp(784, 1024, 1024, 10).to(DEVICE) for _ in range(8)]
    weights, buffers = stack_module_state(members)
    skeleton = copy.deepcopy(members[0]).to("meta")
    optimizer = torch.optim.Adam(weights.values(), 1e-3)

    def loss_of(w, b, x, y):
        return F.cross_entropy(functional_call(skeleton, (w, b), (x,)), y)

    for _ in range(STEPS):
        gradients, losses = vmap(grad_and_value(loss_of), in_dims=(0, 0, None, None))(weights, buffers, noise(512, 784), integers(10, 512))
        for name, w in weights.items():
            w.grad = gradients[name]
        optimizer.step()
        note_step()


@case
def distillation():
    from torchvision.models import mobilenet_v3_small, resnet50
    teacher, student = resnet50().to(DEVICE).eval(), mobilenet_v3_small().to(DEVICE).train()

    def loss_of(step):
        images, labels = noise(32, 3, 160, 160), integers(1000, 32)
        with torch.no_grad():
            soft = F.softmax(teacher(images) / 4, 1)
        logits = student(images)
        return F.kl_div(F.log_softmax(logits / 4, 1), soft, reduction="batchmean") * 16 + F.cross_entropy(logits, labels)

    train(student, loss_of, optimizer=torch.optim.SGD(student.parameters(), 0.05, momentum=0.9, weight_decay=1e-4))


@case
def momentum_contrast():
    """MoCo: a second encoder that follows the first, and a queue of its keys."""
    from torchvision.models import resnet18

    class MoCo(nn.Module):
        def __init__(self, width=128, length=4096):
            super().__init__()
            self.query, self.key = resnet18(num_classes=width), resnet18(num_classes=width)
            self.key.load_state_dict(self.query.state_dict())
            self.key.requires_grad_(False)
            self.register_buffer("queue", F.normalize(torch.randn(width, length), dim=0))
            self.register_buffer("place", torch.zeros(1, dtype=torch.long))

        @torch.no_grad()
        def keys(self, images):
            for k, q in zip(self.key.parameters(), self.query.parameters()):
                k.data = k.data * 0.999 + q.data * 0.001
            order = torch.randperm(images.shape[0], device=images.device)
            return F.normalize(self.key(images[order]), dim=1)[order.argsort()]

        @torch.no_grad()
        def enqueue(self, keys):
            place = int(self.place)
            self.queue[:, place:place + keys.shape[0]] = keys.T
            self.place[0] = (place + keys.shape[0]) % self.queue.shape[1]

        def forward(self, first, second):
            q, k = F.normalize(self.query(first), dim=1), self.keys(second)
            positive = (q * k).sum(1, keepdim=True)
            logits = torch.cat([positive, q @ self.queue.clone().detach()], 1) / 0.07
            self.enqueue(k)
            return F.cross_entropy(logits, torch.zeros(logits.shape[0], dtype=torch.long, device=logits.device))

    model = MoCo().to(DEVICE)
    optimizer = torch.optim.SGD(model.query.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)
    train(model, lambda step: model(noise(32, 3, 128, 128), noise(32, 3, 128, 128)), optimizer=optimizer)


@case
def averaged_weights():
    """Stochastic weight averaging; the averaged model's batch norm is computed anew over the data."""
    from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
    from torchvision.models import resnet18
    model = resnet18(num_classes=10).to(DEVICE)
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    schedule = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
    data = [(torch.randn(32, 3, 64, 64), torch.randint(0, 10, (32,))) for _ in range(3)]
    for _ in range(STEPS):
        for images, labels in data:
            loss = F.cross_entropy(model(images.to(DEVICE)), labels.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        average.update_parameters(model)
        schedule.step()
        note_step()
    update_bn(data, average, device=torch.device(DEVICE))
    note_step()


@case
def quantization_aware():
    """Weights and activations through fake quantization; the activations' range is a running one."""

    def fake_quantize(x, largest):
        scale = (largest / 127).clamp(min=1e-8)
        return torch.fake_quantize_per_tensor_affine(x, scale, torch.zeros_like(scale, dtype=torch.int32), -128, 127)

    class QuantizedConv(nn.Conv2d):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.register_buffer("range", torch.ones(()))

        def forward(self, x):
            with torch.no_grad():
                self.range.lerp_(x.abs().amax(), 0.1)
            weight = fake_quantize(self.weight, self.weight.detach().abs().amax())
            return self._conv_forward(fake_quantize(x, self.range), weight, self.bias)

    layers = []
    for i, o in ((3, 64), (64, 128), (128, 256), (256, 256)):
        layers += [QuantizedConv(i, o, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)).to(DEVICE)
    train(model, lambda step: F.cross_entropy(model(noise(32, 3, 128, 128)), integers(10, 32)))


# --- Ways of using memory and the card ----------------------------------------------------------------------------------------

@case
def nested_checkpoints():
    """Checkpoints inside checkpoints: pairs of blocks, each block again."""
    from torch.utils.checkpoint import checkpoint
    model = gpt(layers=8).to(DEVICE)

    def pair(x, first, second):
        return checkpoint(second, checkpoint(first, x, use_reentrant=False), use_reentrant=False)

    def loss_of(step):
        ids = integers(8192, 8, 256)
        x = model.tokens(ids)
        for first, second in zip(model.blocks[::2], model.blocks[1::2]):
            x = checkpoint(pair, x, first, second, use_reentrant=False)
        return language_loss(model.head(model.norm(x)), ids)

    train(model, loss_of)


@case
def selective_checkpoints():
    """Results of matrix products and attention are kept, the rest is computed again."""
    from functools import partial
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
    aten = torch.ops.aten
    kept = [aten.mm.default, aten.addmm.default, aten._scaled_dot_product_flash_attention.default,
            aten._scaled_dot_product_efficient_attention.default]
    contexts = partial(create_selective_checkpoint_contexts, kept)
    model = gpt(layers=8).to(DEVICE)

    def loss_of(step):
        ids = integers(8192, 8, 256)
        return language_loss(model(ids, lambda block, x: checkpoint(block, x, use_reentrant=False, context_fn=contexts)), ids)

    train(model, loss_of, precision=torch.bfloat16)


@case
def activations_on_host():
    model = gpt().to(DEVICE)

    def loss_of(step):
        ids = integers(8192, 8, 256)
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            return language_loss(model(ids), ids)

    train(model, loss_of)


@case
def prefetching_loader():
    """The next batch is copied on a stream of its own while the last one is trained on."""
    from torchvision.models import resnet18

    class Prefetcher:
        def __init__(self, batches):
            self.batches, self.stream = iter(batches), torch.cuda.Stream()
            self.preload()

        def preload(self):
            self.following = next(self.batches, None)
            if self.following is not None:
                with torch.cuda.stream(self.stream):
                    images, labels = (t.to(DEVICE, non_blocking=True) for t in self.following)
                    self.following = images.float().div_(255), labels

        def __iter__(self):
            while self.following is not None:
                torch.cuda.current_stream().wait_stream(self.stream)
                batch = self.following
                for tensor in batch:
                    tensor.record_stream(torch.cuda.current_stream())
                self.preload()
                yield batch

    sizes = (48, 64, 32, 64, 48)
    host = [(torch.randint(0, 256, (n, 3, 160, 160), dtype=torch.uint8).pin_memory(), torch.randint(0, 10, (n,)).pin_memory())
            for n in sizes]
    batches = iter(Prefetcher(host))
    model = resnet18(num_classes=10).to(DEVICE)

    def loss_of(step):
        images, labels = next(batches)
        return F.cross_entropy(model(images), labels)

    train(model, loss_of, steps=len(sizes), optimizer=torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))


@case
def compiled_with_graphs():
    """torch.compile with CUDA graphs, which have memory pools of their own."""
    model = mlp(512, 1024, 1024, 512, activation=nn.GELU).to(DEVICE)
    compiled = torch.compile(model, mode="reduce-overhead")
    train(model, lambda step: compiled(noise(256, 512)).square().mean(), steps=5)


@case
def graphed_callables():
    """Forward and backward of a module captured once as CUDA graphs."""
    body, head = mlp(512, 2048, 2048, 512, activation=nn.GELU).to(DEVICE), nn.Linear(512, 10).to(DEVICE)
    model = nn.Sequential(body, head)
    graphed = torch.cuda.make_graphed_callables(body, (noise(256, 512),))
    train(model, lambda step: F.cross_entropy(head(graphed(noise(256, 512))), integers(10, 256)))


if __name__ == "__main__":
    name, out = sys.argv[1:3]
    torch.manual_seed(7)
    CASES[name]()
    free, total = torch.cuda.mem_get_info()
    with open(out, "a") as file:
        file.write(json.dumps({"case": name, "steps": PEAKS, "device": total - free}) + "\n")
