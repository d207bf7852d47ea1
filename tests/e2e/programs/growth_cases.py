"""Small trainings, each with one habit that fills memory: growth_cases.py NAME.

The lines that a report should name end with "# NAME"."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 12
torch.manual_seed(0)


def make(width=512, depth=4):
    layers = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers).cuda()


def batch(size=256, width=512):
    return torch.randn(size, width, device="cuda")


def train(each, net=None, optimizer=None):
    net = net or make()
    optimizer = optimizer or torch.optim.Adam(net.parameters())
    for step in range(STEPS):
        each(net, optimizer, step)


def step_of(net, optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def losses_in_a_list():
    kept = []

    def each(net, optimizer, step):
        loss = net(batch()).square().mean()
        kept.append(loss * 2)  # a second graph hangs on it
        kept.append(net(batch()).mean())  # losses_in_a_list
        step_of(net, optimizer, loss)

    train(each)


def running_total():
    total = 0

    def each(net, optimizer, step):
        nonlocal total
        penalty = net(batch()).abs().mean()  # running_total
        total = total + penalty
        step_of(net, optimizer, net(batch()).square().mean())

    train(each)


def hidden_state_not_detached():
    cell, head = nn.GRUCell(256, 512).cuda(), nn.Linear(512, 512).cuda()
    state = torch.zeros(256, 512, device="cuda")

    def each(net, optimizer, step):
        nonlocal state
        state = cell(batch(256, 256), state)  # hidden_state_not_detached
        loss = head(state).square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()

    train(each, cell, torch.optim.SGD([*head.parameters()], 0.1))


def evaluation_with_gradients():
    net = make()
    outputs = []

    def each(net, optimizer, step):
        step_of(net, optimizer, net(batch()).square().mean())

    train(each, net)
    net.eval()
    for _ in range(STEPS):
        outputs.append(net(batch()))  # evaluation_with_gradients


def features_in_a_dict():
    cache = {}

    def each(net, optimizer, step):
        x = batch()
        features = net[:4](x)
        cache[step] = features.detach().clone()  # features_in_a_dict
        step_of(net, optimizer, net[4:](features).square().mean())

    train(each)


def optimizers_made_anew():
    net, old = make(), []
    for epoch in range(STEPS):
        optimizer = torch.optim.Adam(net.parameters())
        old.append(optimizer)
        step_of(net, optimizer, net(batch()).square().mean())  # optimizers_made_anew


def snapshots_of_the_weights():
    history = []

    def each(net, optimizer, step):
        step_of(net, optimizer, net(batch()).square().mean())
        weights = net.state_dict()
        copies = {k: w.clone() for k, w in weights.items()}  # snapshots_of_the_weights
        history.append(copies)

    train(each)


def metrics_as_tensors():
    bar = {}

    def each(net, optimizer, step):
        output = net(batch())  # metrics_as_tensors
        bar.setdefault("output", []).append(output.detach())
        step_of(net, optimizer, output.square().mean())

    train(each)


def losses_summed_before_one_backward():
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        total = 0
        for _ in range(STEPS):
            total = total + net(batch()).square().mean()  # losses_summed_before_one_backward
        total.backward()
        optimizer.step()


def gradients_with_a_graph():
    net, norms = make(), []
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(STEPS):
        loss = net(batch()).square().mean()
        gradients = torch.autograd.grad(
            loss, list(net.parameters()), create_graph=True
        )  # gradients_with_a_graph
        norms.append(sum(g.square().sum() for g in gradients))
        step_of(net, optimizer, net(batch()).square().mean())


def healthy():
    def each(net, optimizer, step):
        step_of(net, optimizer, net(batch()).square().mean())

    train(each)


# --- These run out of memory: what fills it has a name. ---


class GatedByHand(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.gate, self.down = (
            nn.Linear(width, 4 * width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x):
        gate = self.gate(x)
        return x + self.down(gate * torch.sigmoid(gate) * self.up(x))  # gated_by_hand


class GeluByHand(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        h = self.up(x)
        h = (
            0.5 * h * (1 + torch.tanh(0.7978845608 * (h + 0.044715 * torch.pow(h, 3.0))))
        )  # gelu_by_hand
        return x + self.down(h)


def until_full(net, size, width):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2):
        step_of(net, optimizer, net(batch(size, width)).square().mean())


def gated_by_hand():
    until_full(nn.Sequential(*[GatedByHand(512) for _ in range(24)]).cuda(), 2048, 512)


def gelu_by_hand():
    until_full(nn.Sequential(*[GeluByHand(512) for _ in range(24)]).cuda(), 2048, 512)


def gelu_by_hand_in_autocast():
    """Powers are computed in float32, so the formula's tensors have two sizes."""
    net = nn.Sequential(*[GeluByHand(512) for _ in range(24)]).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            loss = net(batch(2048, 512)).square().mean()
        step_of(net, optimizer, loss)


def head_of_a_language_model():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.lm_head = nn.Embedding(64000, 128), nn.Linear(128, 64000, bias=False)

        def forward(self, ids):
            return self.lm_head(self.embed(ids))

    net = Model().cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    ids = torch.randint(0, 64000, (2048,), device="cuda")
    step_of(net, optimizer, F.cross_entropy(net(ids).float(), ids))  # head_of_a_language_model


def copies_of_the_model():
    net = nn.DataParallel(make(1024, 40))
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(2):
        step_of(net, optimizer, net(batch(2048, 1024)).square().mean())  # copies_of_the_model


def frozen_weights_in_32_bits():
    net = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(20)]).cuda().requires_grad_(False)
    low = nn.Linear(2048, 2048).cuda()
    optimizer = torch.optim.SGD(low.parameters(), 0.1)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        for _ in range(2):
            step_of(
                low, optimizer, net(low(batch(4096, 2048))).square().mean()
            )  # frozen_weights_in_32_bits


globals()[sys.argv[1]]()
