"""Our methods: how each turns a plain network into a training step and a prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam

import leanbayes as lb
from leanbayes.estimators import Estimator

DATA_SIZE = 50_000
PRIOR = lb.priors.Normal(0.3)


class Works(NamedTuple):
    """What is measured of a method.

    Attributes:
        step: forward pass, KL, backward pass and update.
        predict: class probabilities averaged over samples, without gradients.
        model: the converted network.
        optimizer: whose state the step needs; none where a method keeps its own.
    """

    step: Callable[[Tensor, Tensor], object]
    predict: Callable[[Tensor, int], Tensor]
    model: nn.Module
    optimizer: torch.optim.Optimizer | None = None


Builder = Callable[[nn.Sequential], Works]


def mean_of_passes(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor, int], Tensor]:
    """Return the prediction that everybody writes: one pass per sample, probabilities averaged."""

    @torch.no_grad()
    def predict(x: Tensor, samples: int) -> Tensor:
        return torch.stack([forward(x).softmax(-1) for _ in range(samples)]).mean(0)

    return predict


def descent(
    optimizer: torch.optim.Optimizer, loss: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the step that everybody writes; it returns the loss."""

    def step(x: Tensor, y: Tensor) -> Tensor:
        value = loss(x, y)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def negative_elbo(
    model: nn.Module, *, data_size: int = DATA_SIZE, members: int = 1
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss of a converted model, whose members take the same batch."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        if members > 1:
            x, y = lb.tile(x, members), lb.tile(y, members)
        return lb.elbo(F.cross_entropy(model(x), y), lb.kl(model), data_size=data_size).loss

    return loss


def plain(net: nn.Sequential) -> Works:
    """Return the deterministic network: a step down the cross-entropy; a prediction is one pass."""
    optimizer = Adam(net.parameters(), lr=1e-3)

    @torch.no_grad()
    def predict(x: Tensor, samples: int) -> Tensor:
        return net(x)

    step = descent(optimizer, lambda x, y: F.cross_entropy(net(x), y))
    return Works(step, predict, net, optimizer)


def ours(
    posterior: lb.posteriors.Posterior,
    prior: lb.priors.Prior = PRIOR,
    estimator: Estimator = lb.estimators.auto,
    *,
    split: bool = False,
) -> Builder:
    """Return every layer converted."""

    def build(net: nn.Sequential) -> Works:
        model = lb.convert(net, posterior, prior, estimator)
        optimizer = Adam(model.parameters(), lr=1e-3)
        loss = negative_elbo(model, members=1 if split else lb.extend.members(model))

        def predict(x: Tensor, samples: int) -> Tensor:
            return lb.predict(model, x, samples=samples).probs

        return Works(descent(optimizer, loss), predict, model, optimizer)

    return build


def compiled(net: nn.Sequential) -> Works:
    """Return the default in ``torch.compile``: loss and KL are one graph."""
    works = ours(lb.KTied(2))(net)
    assert works.optimizer is not None
    loss = torch.compile(negative_elbo(works.model), fullgraph=True)
    return works._replace(step=descent(works.optimizer, loss))


def plain_compiled(net: nn.Sequential) -> Works:
    """Compile the plain network: what ``torch.compile`` itself is worth."""
    works, loss = plain(net), torch.compile(lambda x, y: F.cross_entropy(net(x), y), fullgraph=True)
    assert works.optimizer is not None
    return works._replace(step=descent(works.optimizer, loss))


def mc_dropout(net: nn.Sequential) -> Works:
    """Return dropout of a half after every activation, in training and in prediction."""
    layers: list[nn.Module] = []
    for layer in net:
        layers += [layer, nn.Dropout()] if isinstance(layer, nn.ReLU) else [layer]
    noisy = nn.Sequential(*layers)
    return plain(noisy)._replace(predict=mean_of_passes(noisy))


METHODS: dict[str, Builder] = {
    "k-tied 2, auto": ours(lb.KTied(2)),
    "k-tied 2, weights": ours(lb.KTied(2), estimator=lb.estimators.weights),
    "k-tied 2, local": ours(lb.KTied(2), estimator=lb.estimators.local),
    "mean field, local": ours(lb.MeanField(), estimator=lb.estimators.local),
    "mean field, weights": ours(lb.MeanField(), estimator=lb.estimators.weights),
    "variance layers": ours(lb.posteriors.ZeroMean(), lb.priors.LogUniform()),
    "matrix normal, low rank": ours(lb.posteriors.MatrixNormal(rank=2)),
    "rank-1, 1 member": ours(lb.Rank1(1), lb.priors.Normal(0.1, loc=1.0)),
    "MC dropout": mc_dropout,
}
COMPILED: dict[str, Builder] = {
    "k-tied 2, auto, compiled": compiled,
    "plain network, compiled": plain_compiled,
}
"""Measured in steps alone: a compiled model predicts by one pass per sample."""
