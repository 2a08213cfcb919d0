"""Baselines that need no conversion: deep ensembles, and dropout that draws in every mode."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from leanbayes.errors import require, require_count
from leanbayes.layers.dropout import DROPOUT, FUNCTIONS, MCDropout
from leanbayes.layers.forward_pass import batch_rows, set_batch_rows, warn_untiled
from leanbayes.layers.transformers import settle_fused_path


class DeepEnsemble(nn.Module):
    """Several networks of one kind as the members of one model (Lakshminarayanan et al., 2017).

    It is used as any mixture is: ``predict`` gives samples of every member, and training takes
    ``tile(x, members)``, of which each network gets its own block. Members that are trained
    together learn as each would alone on these batches, although a loss is averaged over all:
    the gradient of an output is multiplied by the number of networks, and its value is not. So with
    ``lb.kl`` of converted networks the sum of all ELBOs is trained.

    Args:
        networks: the members, which share nothing; trained already or not, converted or not.
        batch_dim: dimension of inputs and outputs that counts examples.

    Raises:
        ValueError: If there are no networks, or they share parameters.

    Example:
        >>> import leanbayes as lb
        >>> model = DeepEnsemble.of(lambda: nn.Linear(3, 2), members=4)
        >>> lb.predict(model, torch.randn(5, 3), samples=1).samples.shape
        torch.Size([4, 5, 2])
    """

    def __init__(self, networks: Sequence[nn.Module], batch_dim: int = 0) -> None:
        super().__init__()
        require(len(networks) > 0, "an ensemble of no networks predicts nothing; give some")
        parameters = [id(p) for network in networks for p in network.parameters()]
        require(
            len({id(network) for network in networks}) == len(networks)
            and len(set(parameters)) == len(parameters),
            "two members of the ensemble share weights, so they are not two; make each one "
            "separately, as DeepEnsemble.of(make, members) does",
        )
        self.networks = nn.ModuleList(networks)
        self.batch_dim = batch_dim

    @classmethod
    def of(cls, make: Callable[[], nn.Module], members: int, batch_dim: int = 0) -> Self:
        """Make every network by a separate call.

        Args:
            make: function that returns a new network, with other first weights every time.
            members: number of networks.
            batch_dim: dimension of inputs and outputs that counts examples.
        """
        require_count("members", members, 1)
        return cls([make() for _ in range(members)], batch_dim)

    def forward(self, *inputs: Tensor) -> Tensor:
        count, dim = len(self.networks), self.batch_dim
        for x in inputs:
            require(
                x.shape[dim] % count == 0,
                f"batch {x.shape[dim]} is not a multiple of {count} members; call tile(x, members)",
            )
        if self.training and inputs:
            warn_untiled(inputs[0], dim, count)
        rows = batch_rows()
        blocks = zip(*(x.chunk(count, dim) for x in inputs), strict=True)
        with set_batch_rows(None if rows is None else rows // count):
            outputs = [net(*block) for net, block in zip(self.networks, blocks, strict=True)]
        y = torch.cat(outputs, dim)
        return y + (count - 1) * (y - y.detach()) if y.requires_grad else y


M = TypeVar("M", bound=nn.Module)


def mc_dropout(model: M, *, inplace: bool = False) -> M:
    """Return a copy whose dropout layers also draw in eval mode (Gal and Ghahramani, 2016).

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
