"""The digits of scikit-learn, and a short training on them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import leanbayes as lb


def images() -> tuple[Tensor, Tensor]:
    """Pixels from −1 to 1, and classes."""
    data, target = load_digits(return_X_y=True)
    return torch.tensor(data / 8 - 1).float(), torch.tensor(target)


def train(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    lr: float,
    batch: int = 100,
    after: Callable[[int], None] = lambda step: None,
) -> None:
    """Adam on the ELBO of random batches; ``after`` is called with the number of every step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for step in range(1, steps + 1):
        chosen = torch.randint(len(x), (batch,))
        optimizer.zero_grad()
        nll = F.cross_entropy(model(x[chosen]), y[chosen])
        lb.elbo(nll, lb.kl(model), data_size=len(x)).loss.backward()
        optimizer.step()
        after(step)
