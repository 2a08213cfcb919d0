"""Where inputs are correlated so are weights, and a matrix normal has the better bound."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from research.papers.matrix_normal.natural_gradient import NaturalGradient

EXAMPLES, INPUTS, CLASSES, DRAWS = 150, 8, 3, 400


def data():
    """Eight inputs that say nearly the same, and classes that depend on it."""
    shared = torch.randn(EXAMPLES, 1)
    x = shared + 0.2 * torch.randn(EXAMPLES, INPUTS)
    return x, torch.bucketize(shared[:, 0] + 0.3 * torch.randn(EXAMPLES), torch.tensor([-0.5, 0.5]))


def fitted(posterior, x, y):
    """A linear classifier, trained on all examples until its bound stands still."""
    net = nn.Linear(INPUTS, CLASSES)
    with torch.no_grad():
        net.weight.zero_(), net.bias.zero_()
    model = lb.convert(net, posterior, lb.priors.Normal(1.0))
    optimizer = NaturalGradient(model, data_size=EXAMPLES, lr=0.1)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, total_iters=300)
    for _ in range(300):
        optimizer.zero_grad()
        nll = F.cross_entropy(model(x), y)
        lb.elbo(nll, lb.kl(model), data_size=EXAMPLES).loss.backward()
        optimizer.step()
        scheduler.step()
    return model


@torch.no_grad()
def negative_elbo(model, x, y):
    """Of all examples together, with the standard error of its samples."""
    drawn = lb.predict(model, x, samples=DRAWS, coherent=True, seed=0).samples
    nll = torch.stack([F.cross_entropy(sample, y, reduction="sum") for sample in drawn]).double()
    error = float(nll.std()) / math.sqrt(DRAWS)
    return float(nll.mean()) + float(lb.kl(model)), error


@pytest.mark.checklist("MN10")
def test_a_matrix_normal_has_the_better_bound_where_inputs_are_correlated():
    """By several nats; a diagonal Kronecker covariance, which correlates nothing, has not."""
    x, y = data()
    families = {
        "independent": lb.MeanField(0.3),
        "tied": lb.posteriors.MatrixNormal(0.3, rank=0),
        "correlated": lb.posteriors.MatrixNormal(0.3),
    }
    bounds = {name: negative_elbo(fitted(q, x, y), x, y) for name, q in families.items()}
    (independent, error), (tied, _), (correlated, other) = bounds.values()
    assert correlated < independent - 3 - 5 * math.hypot(error, other)
    assert correlated < tied - 3
    assert tied > independent - 3  # tied standard deviations alone gain nothing
