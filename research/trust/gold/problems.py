"""Five small problems whose posterior can be sampled by Hamiltonian Monte Carlo.

All weights have a standard normal prior. Every layer divides its inputs by the square root of
their number, so that functions of the prior are of size one. A constant input stands for biases.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.lab.data import load_dataset

Kind = Literal["numbers", "binary", "classes"]


@dataclass(frozen=True)
class Problem:
    """Data, network and likelihood.

    Attributes:
        kind: of targets.
        x: training inputs, divided by the root of their number, the last one constant.
        y: training targets.
        x_test: test inputs.
        y_test: test targets.
        hidden: number of hidden units; none for a linear model.
        outputs: number of outputs.
        noise: standard deviation of targets, for numbers.
    """

    kind: Kind
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    hidden: int = 0
    outputs: int = 1
    noise: float = 1.0

    @property
    def likelihood(self) -> lb.likelihoods.Likelihood:
        """What the outputs mean."""
        made: dict[Kind, Callable[[], lb.likelihoods.Likelihood]] = {
            "numbers": lambda: lb.likelihoods.Gaussian(self.noise),
            "binary": lb.likelihoods.Bernoulli,
            "classes": lb.likelihoods.Categorical,
        }
        return made[self.kind]()

    def network(self, *, dropout: float = 0.0) -> nn.Sequential:
        """The network, with first weights drawn from the prior."""
        columns, hidden, outputs = self.x.shape[1], self.hidden, self.outputs
        layers: list[nn.Module] = [nn.Linear(columns, outputs, bias=False)]
        if hidden:
            layers = [nn.Linear(columns, hidden, bias=False), ScaledTanh(hidden)]
            layers += [nn.Dropout(dropout)] if dropout else []
            layers += [nn.Linear(hidden, outputs, bias=False)]
        elif dropout:
            layers = [nn.Dropout(dropout), *layers]
        for layer in layers:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight)
        return nn.Sequential(*layers)


class ScaledTanh(nn.Module):
    """``tanh(x) / √hidden``: a sum over hidden units stays of size one."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden

    def forward(self, x: Tensor) -> Tensor:
        """Squash and divide."""
        return x.tanh() / math.sqrt(self.hidden)


def _inputs(x: Tensor, start: Tensor) -> Tensor:
    """Standardize by the training inputs, append a constant, divide by the root of their number."""
    scaled = (x - start.mean(0)) / start.std(0).clamp_min(1e-6)
    scaled = torch.cat([scaled, torch.ones(len(x), 1)], -1)
    return scaled / math.sqrt(scaled.shape[1])


def _table(
    x: Tensor, y: Tensor, train: Tensor, test: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _inputs(x[train], x[train]), y[train], _inputs(x[test], x[train]), y[test]


def curve() -> Problem:
    """A sine, observed on both sides of a gap; test points cover it and what lies beyond."""
    seeded = torch.Generator().manual_seed(0)
    sides = 0.8 * torch.rand(40, generator=seeded) + 0.4
    x = torch.where(torch.arange(40) < 20, -sides, sides)[:, None]
    noise, grid = 0.1, torch.linspace(-2, 2, 101)[:, None]
    x_test = torch.cat([grid, x])
    y = (3 * x).sin() + noise * torch.randn(40, 1, generator=seeded)
    y_test = (3 * x_test).sin() + noise * torch.randn(len(x_test), 1, generator=seeded)
    wide = torch.tensor([[-1.0], [1.0]]) / 4  # so that hidden units bend within the data
    inputs = (_inputs(each, wide) for each in (x, x_test))
    train, test = inputs
    return Problem("numbers", train, y, test, y_test, hidden=50, noise=noise)


def logistic() -> Problem:
    """Logistic regression on the breast cancer table, 150 training rows."""
    table = load_breast_cancer()
    x, y = torch.tensor(table.data).float(), torch.tensor(table.target).float()[:, None]
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return Problem("binary", *_table(x, y, order[:150], order[150:]))


def _uci(name: str, rows: int | None, noise: float) -> Problem:
    data = load_dataset(name, scaling="raw")
    x, y = data.train.x[:rows].float(), data.train.y[:rows].float()
    x_test, y_test = data.test.x.float(), data.test.y.float()
    known, asked = ((each - y.mean()) / y.std() for each in (y, y_test))
    return Problem("numbers", _inputs(x, x), known, _inputs(x_test, x), asked, 50, noise=noise)


def concrete() -> Problem:
    """All training rows of the first split of UCI concrete."""
    return _uci("concrete", None, 0.3)


def energy() -> Problem:
    """As many rows as UCI yacht has for training (277), of the first split of UCI energy."""
    return _uci("energy", 277, 0.1)


def digits() -> Problem:
    """500 of the 8 × 8 digits of scikit-learn, 16 hidden units."""
    table = load_digits()
    x, y = torch.tensor(table.data).float() / 16, torch.tensor(table.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    split = order[:500], order[500:1000]
    return Problem("classes", *_table(x, y, *split), hidden=16, outputs=10)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "curve with a gap": curve,
    "logistic regression": logistic,
    "UCI energy, 277 rows": energy,
    "UCI concrete": concrete,
    "digits, 64-16-10": digits,
}
