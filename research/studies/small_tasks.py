"""Training, test and OOD data of small studies, and how predictions on them are judged."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

import leanbayes as lb
from leanbayes.lab.data import Dataset
from leanbayes.lab.evaluation import foreign_auroc
from leanbayes.metrics.numbers import Coverage
from research.data import load_dataset


class Rows(NamedTuple):
    """Training, test and OOD rows."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    ood_x: Tensor


@cache
def _loaded(name: str, scaling: str) -> Dataset:
    return load_dataset(name, download=False, scaling=scaling)


def images(name: str, ood: str, scaling: str, seed: int, count: int, test: int) -> Rows:
    """Return training images, which depend on the seed; OOD images are of another data set."""
    data, other = _loaded(name, scaling), _loaded(ood, scaling)
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed))
    x, y = data.train.take(order[:count])
    tested, away = data.test[:test], other.test[:test]
    return Rows(x.float(), y, tested.x.float(), tested.y, away.x.float())


def concrete(seed: int) -> Rows:
    """Return a standard split; OOD rows have the columns of test rows, shuffled separately."""
    data = load_dataset("concrete", download=False, split=seed)
    test = data.test.x.float()
    order = torch.rand(test.shape, generator=torch.Generator().manual_seed(seed)).argsort(0)
    train = data.train.x.float(), data.train.y.float()
    return Rows(*train, test, data.test.y.float(), test.gather(0, order))


def likelihood_of(rows: Rows) -> lb.likelihoods.Likelihood:
    """Return a learned Gaussian for numbers, a categorical likelihood for classes."""
    if rows.y.is_floating_point():
        return lb.likelihoods.Gaussian(0.5, "learned")
    return lb.likelihoods.Categorical()


@torch.no_grad()
def judge(predict: Callable[[Tensor], lb.Prediction], rows: Rows) -> dict[str, float]:
    """Measure NLL, calibration error, coverage of what should hold 90%, and AUROC of OOD rows.

    AUROC is that of entropy, or of the predictive variance of numbers.
    """
    own, ood = predict(rows.test_x), predict(rows.ood_x)
    scores = own.metrics(rows.test_y)
    found = {"nll": scores["nll"].value}
    if own.has_classes:
        found |= {name: scores[name].value for name in ("accuracy", "ece")}
        found["coverage"] = credible_sets(own.probs, rows.test_y)
        doubts = own.entropy, ood.entropy
    else:
        curve = own.calibration(rows.test_y)
        assert isinstance(curve, Coverage)
        found["rmse"] = scores["rmse"].value
        found["ece"] = float((curve.observed - curve.nominal).abs().mean())
        found["coverage"] = scores["coverage_90"].value
        doubts = own.variance.flatten(), ood.variance.flatten()
    found["auroc"] = foreign_auroc(*doubts)
    return found


def credible_sets(probs: Tensor, y: Tensor, level: float = 0.9) -> float:
    """Return how often the true class is among the most probable ones that together reach a level.

    Example:
        >>> credible_sets(torch.tensor([[0.6, 0.35, 0.05]]).repeat(3, 1), torch.arange(3))
        0.6666666666666666
    """
    ordered, order = probs.sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    inside = (order == y[:, None]) & (before < level)
    return float(inside.any(-1).double().mean())
