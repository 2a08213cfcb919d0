"""MC dropout: dropout layers that draw in every mode."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import nn
from torch.overrides import TorchFunctionMode

from leanbayes.errors import require
from leanbayes.layers.attention import settle_fused_path
from leanbayes.layers.dropout import DROPOUT, FUNCTIONS, MCDropout

M = TypeVar("M", bound=nn.Module)


def mc_dropout(model: M, *, inplace: bool = False) -> M:
    """Return predictions with dropout: every pass draws other units (Gal and Ghahramani, 2016).

    The result is a model as any other: ``predict`` draws samples of it, reports and metrics follow.
    It has the parameters and names of the given one, so trained weights go from one to the other.
    Every example has a separate draw, so there is no one function to hold.

    Args:
        model: a network with dropout layers, trained or not.
        inplace: change the given model instead of a copy.

    Returns:
        The network with random dropout.

    Raises:
        ValueError: If the network has no dropout.

    Example:
        >>> import torch, leanbayes as lb
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
        >>> bool((lb.predict(mc_dropout(net), torch.ones(5, 3)).mutual_information > 0).all())
        True
    """
    names = _dropout_layers(model)
    if names == [""]:
        return MCDropout(model)  # type: ignore[return-value]
    if not inplace:
        model = copy.deepcopy(model)
    made: dict[nn.Module, MCDropout] = {}
    for name in names:
        layer = model.get_submodule(name)
        model.set_submodule(name, made.setdefault(layer, MCDropout(layer)))
    for module in model.modules():
        settle_fused_path(module)
    return model


class FunctionalDropout(TorchFunctionMode):
    """Raise if a block calls a dropout function that is off, which no layer can turn on."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in FUNCTIONS.values():
            named = dict(zip(("p", "training"), args[1:3], strict=False)) | dict(kwargs)
            p, training = named.get("p", 0.5), named.get("training", True)
            require(
                bool(training) or p == 0,
                f"the model calls F.{func.__name__} with p={p} and training={training}, so MC "
                "dropout is off there in eval mode; use an nn.Dropout layer and call "
                "lb.mc_dropout again, or set p to 0",
            )
        return func(*args, **kwargs)


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
        if isinstance(module, DROPOUT) and module.p > 0:
            require(
                type(module) in FUNCTIONS,
                f"layer {name!r} is a {type(module).__name__}, none of torch's dropout layers; use "
                f"one of {', '.join(kind.__name__ for kind in FUNCTIONS)}",
            )
            names.append(name)
    require(
        bool(names),
        "the model has no dropout layer that drops anything, so all samples would be equal; put "
        "nn.Dropout layers into it",
    )
    return names
