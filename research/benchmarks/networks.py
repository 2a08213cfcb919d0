"""The networks and batches that are measured; plain torch, the same for every method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn


def mlp(widths: tuple[int, ...] = (784, 400, 400, 10)) -> nn.Sequential:
    """Dense layers with ReLU between them; by default the network of the k-tied paper [k-tied]."""
    layers: list[nn.Module] = []
    for columns, rows in pairwise(widths):
        layers += [nn.Linear(columns, rows), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn() -> nn.Sequential:
    """Convolutions 3 × 3 with 32 and 64 channels and two dense layers, for images of 32 × 32."""
    features = (nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    more_features = (nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    classifier = (nn.Flatten(), nn.Linear(4096, 128), nn.ReLU(), nn.Linear(128, 10))
    return nn.Sequential(*features, *more_features, *classifier)


@dataclass(frozen=True)
class Setup:
    """A network and a batch.

    Attributes:
        title: what tables call it.
        network: makes the plain network.
        batch: examples in a training step.
        shape: of one example.
    """

    title: str
    network: Callable[[], nn.Sequential]
    batch: int
    shape: tuple[int, ...]

    def fresh(self) -> nn.Sequential:
        """The network with the same weights every time: what a pooling takes depends on them."""
        torch.manual_seed(0)
        return self.network()

    def data(self, examples: int | None = None) -> tuple[Tensor, Tensor]:
        """Return random inputs and labels: what is computed does not depend on them."""
        count = examples or self.batch
        return torch.rand(count, *self.shape), torch.randint(10, (count,))


SETUPS = {
    "mlp_1024": Setup("MLP 784-400-400-10, batch 1024", mlp, 1024, (784,)),
    "mlp_128": Setup("MLP, batch 128", mlp, 128, (784,)),
    "cnn_256": Setup("CNN, batch 256", cnn, 256, (3, 32, 32)),
}


def whole_title(setup: str) -> str:
    """Return a network and its batch."""
    return SETUPS[setup].title


def network_title(setup: str) -> str:
    """Return a network alone: a prediction has examples of its own."""
    return whole_title(setup).partition(", batch")[0]
