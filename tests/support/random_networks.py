"""Small random networks with units that are switched off, for tests of compaction."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)
ACTIVATIONS = (nn.ReLU, nn.ELU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.LeakyReLU, nn.Softplus, nn.PReLU)


class Residual(nn.Module):
    """A sum of what a block makes and its input, or of what two blocks make."""

    def __init__(self, body: nn.Module, shortcut: nn.Module, style: int) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut
        self.style = style

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        if self.style == 0:
            return y + self.shortcut(x)
        if self.style == 1:
            y += self.shortcut(x)
            return F.relu(y)
        return F.elu(torch.add(self.shortcut(x), y), inplace=True)


class GlobalMean(nn.Module):
    """The mean over all positions."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


class View(nn.Module):
    """Flattening as older code writes it."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), -1)


def random_network(seed: int) -> tuple[nn.Module, Tensor]:
    """A network in eval mode, and a batch for it."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    channels = choose.choice([2, 4])
    x = torch.randn(3, channels, 12, 12)
    layers: list[nn.Module] = []
    for _ in range(choose.randint(1, 3)):
        stage, channels = _convolutional(choose, channels)
        layers += stage
    layers.append(choose.choice([nn.Flatten(), GlobalMean(), View()]))
    with torch.no_grad():
        features = nn.Sequential(*layers).eval()(x).shape[1]
    for _ in range(choose.randint(0, 2)):
        stage, features = _dense(choose, features)
        layers += stage
    layers.append(nn.Linear(features, 3, bias=choose.random() < 0.8))
    net = nn.Sequential(*layers)
    _shake_norms(net)
    switch_off(net, choose)
    return net.eval(), x


def _convolution(choose: random.Random, channels: int, made: int) -> nn.Module:
    size = choose.choice([1, 3])
    padding = choose.choice([0, size // 2, size // 2])
    groups = choose.choice([1, 1, 1, 2, channels])
    groups = groups if channels % groups == made % groups == 0 else 1
    mode = choose.choice(["zeros", "zeros", "zeros", "circular", "replicate"])
    bias = choose.random() < 0.7
    options = {"padding": padding, "groups": groups, "bias": bias, "padding_mode": mode}
    return nn.Conv2d(channels, made, size, **options)


def _convolutional(choose: random.Random, channels: int) -> tuple[list[nn.Module], int]:
    made = choose.choice([4, 6, 8])
    layers = [_convolution(choose, channels, made)]
    if choose.random() < 0.6:
        layers.append(nn.BatchNorm2d(made, affine=choose.random() < 0.8))
    layers.append(choose.choice(ACTIVATIONS)())
    if choose.random() < 0.2:
        groups, bias = choose.choice([1, 1, 2]), choose.random() < 0.5
        layers.append(nn.ConvTranspose2d(made, made, 2, groups=groups, bias=bias))
    if choose.random() < 0.5:
        layers.append(_residual(choose, made))
    pools = [
        nn.MaxPool2d(3, 1, padding=1),
        nn.AvgPool2d(3, 1, padding=1),
        nn.AvgPool2d(2, 1, ceil_mode=True),
        nn.AvgPool2d(3, 1, padding=1, count_include_pad=False),
        nn.AdaptiveAvgPool2d(7),
        nn.Identity(),
        nn.Dropout(0.5),
    ]
    layers.append(choose.choice(pools))
    return layers, made


def _residual(choose: random.Random, channels: int) -> Residual:
    middle = choose.choice([4, 5])
    body = nn.Sequential(
        nn.Conv2d(channels, middle, 3, padding=1),
        nn.BatchNorm2d(middle),
        choose.choice(ACTIVATIONS)(),
        nn.Conv2d(middle, channels, 1, bias=choose.random() < 0.5),
    )
    plain = choose.random() < 0.5
    shortcut = nn.Identity() if plain else nn.Conv2d(channels, channels, 1)
    return Residual(body, shortcut, choose.choice([0, 1, 2]))


def _dense(choose: random.Random, features: int) -> tuple[list[nn.Module], int]:
    made = choose.choice([5, 8])
    layers: list[nn.Module] = [nn.Linear(features, made, bias=choose.random() < 0.7)]
    if choose.random() < 0.4:
        layers.append(nn.BatchNorm1d(made))
    layers.append(choose.choice(ACTIVATIONS)())
    if choose.random() < 0.4:
        body = nn.Sequential(nn.Linear(made, 4), nn.Tanh(), nn.Linear(4, made))
        layers.append(Residual(body, nn.Identity(), choose.choice([0, 1, 2])))
    if choose.random() < 0.1:
        layers.append(nn.LayerNorm(made))
    return layers, made


@torch.no_grad()
def _shake_norms(net: nn.Module) -> None:
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
            if module.affine:
                module.weight.normal_()
                module.bias.normal_()


@torch.no_grad()
def switch_off(net: nn.Module, choose: random.Random) -> None:
    """Set rows, columns, single weights and sometimes whole layers to zero."""
    for module in net.modules():
        if not isinstance(module, WEIGHTED):
            continue
        weight = module.weight
        rows, columns = (0, 1) if not isinstance(module, nn.ConvTranspose2d) else (1, 0)
        for dim, rate in ((rows, 0.35), (columns, 0.1)):
            off = [i for i in range(weight.shape[dim]) if choose.random() < rate]
            weight.index_fill_(dim, torch.tensor(off, dtype=torch.long), 0.0)
        if choose.random() < 0.03:
            weight.zero_()
        if choose.random() < 0.3:
            weight.mul_(torch.rand_like(weight) < 0.6)
        if module.bias is not None:
            module.bias.normal_()
