"""Switches for the noise of a model: another estimator, or one held draw."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from leanbayes.errors import require
from leanbayes.estimators import Estimator, weights
from leanbayes.layers.dropout import MCDropout
from leanbayes.layers.forward_pass import Held, set_estimators
from leanbayes.layers.maps import draws_anew
from leanbayes.models.random_maps import random_maps
from leanbayes.ops import Usage


@contextmanager
def using(model: nn.Module, estimator: Estimator) -> Iterator[None]:
    """Use one estimator in every layer for the length of a ``with`` block.

    Other threads and tasks that run the model meanwhile do not notice; the innermost block wins.

    Example:
        >>> import leanbayes as lb
        >>> x = torch.ones(1, 3)
        >>> model = lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.priors.Normal(1.0))
        >>> with using(model, lb.estimators.mean):
        ...     torch.equal(model(x), model(x))
        True
    """
    with set_estimators({layer: estimator for _, layer in random_maps(model)}):
        yield


@contextmanager
def held(model: nn.Module, estimator: Estimator = weights) -> Iterator[None]:
    """Draw every layer once and keep the draw for the length of a ``with`` block.

    The model is then one function: the same for every batch, of any size. Other threads and tasks
    that run the model meanwhile do not notice.

    Example:
        >>> import leanbayes as lb
        >>> x = torch.ones(1, 3)
        >>> model = lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.priors.Normal(1.0))
        >>> with held(model):
        ...     torch.equal(model(x), model(x))
        True
    """
    require(
        not any(isinstance(module, MCDropout) for module in model.modules()),
        "MC dropout draws for every example, so there is no one function to hold; leave held or "
        "coherent out",
    )
    usage = Usage(None, reused=True)
    drawn = {layer: layer.fresh(estimator, usage, layer.op) for _, layer in random_maps(model)}
    require(
        not any(draws_anew(each) for each in drawn.values()),
        "local draws noise for every output, so there is no one function to hold; use "
        "held(model, lb.estimators.weights)",
    )
    with set_estimators({layer: Held(each, layer.op) for layer, each in drawn.items()}):
        yield
