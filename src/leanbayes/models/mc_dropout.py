"""MC dropout: dropout layers that draw in every mode."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from leanbayes.errors import require

__all__ = ["MCDropout", "mc_dropout"]

M = TypeVar("M", bound=nn.Module)

_FUNCTIONS: Mapping[type[nn.Module], Callable[..., Tensor]] = {
    nn.Dropout: F.dropout,
    nn.Dropout1d: F.dropout1d,
    nn.Dropout2d: F.dropout2d,
    nn.Dropout3d: F.dropout3d,
    nn.AlphaDropout: F.alpha_dropout,
    nn.FeatureAlphaDropout: F.feature_alpha_dropout,
}


class MCDropout(nn.Module):
    """A dropout layer that draws in training and in eval mode alike.

    Args:
        layer: the dropout layer that it stands for.

    Example:
        >>> MCDropout(nn.Dropout(0.3))
        MCDropout(Dropout, p=0.3)
    """

    def __init__(self, layer: _DropoutNd) -> None:
        super().__init__()
        self.kind = type(layer)
        self.p = layer.p

    def forward(self, x: Tensor) -> Tensor:
        return _FUNCTIONS[self.kind](x, self.p, training=True)

    def extra_repr(self) -> str:
        return f"{self.kind.__name__}, p={self.p}"


def mc_dropout(model: M, *, inplace: bool = False) -> M:
    """Predictions with dropout: every pass draws other units (Gal and Ghahramani, 2016).

    The result is a model as any other: ``predict`` draws samples of it, reports and metrics follow.
    It has the parameters and names of the given one, so trained weights go from one to the other.
    Every example has a draw of its own, so there is no one function to hold.

    Args:
        model: a network with dropout layers, trained or not.
        inplace: change the given model instead of a copy.

    Example:
        >>> import torch, leanbayes as lb
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
        >>> bool((lb.predict(mc_dropout(net), torch.ones(5, 3)).mutual_information > 0).all())
        True
    """
    names = _dropout_layers(model)
    if names == [""]:
        return MCDropout(model)  # type: ignore[arg-type, return-value]
    if not inplace:
        model = copy.deepcopy(model)
    made: dict[nn.Module, MCDropout] = {}
    for name in names:
        layer = model.get_submodule(name)
        assert isinstance(layer, _DropoutNd)
        model.set_submodule(name, made.setdefault(layer, MCDropout(layer)))
    return model


def _dropout_layers(model: nn.Module) -> list[str]:
    """Where layers are that drop something; raises if none does, or one that cannot be reached."""
    names = []
    for name, module in model.named_modules(remove_duplicate=False):
        inner = module.dropout if isinstance(module, nn.RNNBase | nn.MultiheadAttention) else 0.0
        require(
            inner == 0,
            f"layer {name!r} ({type(module).__name__}) has dropout={inner} inside itself, which "
            "would stay off; set it to 0 and put nn.Dropout layers around it",
        )
        if isinstance(module, _DropoutNd) and module.p > 0:
            require(
                type(module) in _FUNCTIONS,
                f"layer {name!r} is a {type(module).__name__}, none of torch's dropout layers; use "
                f"one of {', '.join(kind.__name__ for kind in _FUNCTIONS)}",
            )
            names.append(name)
    require(
        bool(names),
        "the model has no dropout layer that drops anything, so all samples would be equal; put "
        "nn.Dropout layers into it",
    )
    return names
