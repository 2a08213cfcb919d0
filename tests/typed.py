"""Conversions return the type that they were given; ``make lint`` checks this file with mypy."""

from pathlib import Path
from typing import assert_type

from torch import nn

import leanbayes as lb


class Net(nn.Module):
    """A network with a method of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def embed(self) -> str:
        """What only this class has."""
        return "embedded"


def types_are_kept(net: Net, path: Path) -> None:
    """Every function that gives a model back gives one of the same class."""
    model = assert_type(lb.convert(net, lb.KTied(2), lb.priors.Normal(1.0)), Net)
    assert_type(model.embed(), str)
    assert_type(lb.plan(net, lb.KTied(2), lb.priors.Normal(1.0)).apply(net), Net)
    assert_type(lb.deterministic(model), Net)
    assert_type(lb.load(net, path), Net)
    assert_type(lb.mc_dropout(net), Net)
    assert_type(lb.convert(nn.Sequential(net), lb.Rank1(2)), nn.Sequential)
