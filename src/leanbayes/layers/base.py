"""Layer kinds: made from a torch layer, converted back to it, and found in a registry."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from leanbayes.errors import require
from leanbayes.layers.customized_layers import refuse_custom
from leanbayes.layers.layer_spec import LayerSpec, Maker, SharedPriors
from leanbayes.layers.load_plain_state import take_plain


class Template:
    """A torch layer without its numbers: its class and options, to be filled again."""

    def __init__(self, module: nn.Module) -> None:
        empty = {id(p): nn.Parameter(p.detach().to("meta")) for p in module.parameters()}
        self._module = copy.deepcopy(module, empty)

    @property
    def names(self) -> tuple[str, ...]:
        """Torch's names of its tensors."""
        return tuple(self._module.state_dict())

    def filled(self, tensors: Mapping[str, Tensor | None]) -> nn.Module:
        """A new torch layer with copies of these tensors, by torch's names."""
        module = copy.deepcopy(self._module)
        for name, tensor in tensors.items():
            owner, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(owner), attribute, copy.deepcopy(tensor))
        return module


class Layer(nn.Module, ABC):
    """The Bayesian counterpart of a torch layer; a subclass is a kind of layer.

    A kind says how it is made (:meth:`from_torch`), what it is called with (``forward``), which
    tensors go back to torch (:meth:`torch_tensors`) and what it must refuse (:meth:`refuse`). It
    is made of random maps; the name of one that is a bias contains ``bias``. The public options of
    the torch layer (``in_features``, ``batch_first``, …) become its attributes.
    """

    template: Template | None = None

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(_load_plain)  # type: ignore[no-untyped-call]

    @classmethod
    def refuse(cls, module: Any) -> None:
        """Raise a sentence if the torch layer has an option that would be lost."""

    @classmethod
    @abstractmethod
    def from_torch(cls, module: Any, make: Maker) -> Layer:
        """Make the layer from torch's, with its weights as means."""

    @abstractmethod
    def torch_tensors(self, member: int | None) -> Mapping[str, Tensor | None]:
        """The mean of every tensor of the torch layer, by torch's name.

        A parameter is an ``nn.Parameter``, frozen where the means are; the caller makes copies.
        """

    def to_torch(self, member: int | None = None) -> nn.Module:
        """The torch layer with the means (of one member of a mixture) as weights."""
        if self.template is None:
            raise ValueError(
                f"this {type(self).__name__} was not made from a torch layer, so there is none to "
                "go back to; make the model with lb.convert"
            )
        return self.template.filled(self.torch_tensors(member)).train(self.training)


def _load_plain(
    layer: Layer, state_dict: MutableMapping[str, Tensor], prefix: str, *args: Any
) -> None:
    """Replace the tensors of a torch layer in a state dict by those of its Bayesian counterpart."""
    try:
        take_plain(layer, state_dict, prefix)
    except ValueError as error:
        args[-1].append(f"layer {prefix.removesuffix('.')!r}: {error}")


K = TypeVar("K", bound=type[Layer])

KINDS: dict[type[nn.Module] | str, type[Layer]] = {}
"""The kind of every torch layer that can be converted, by its class or its qualified name."""


def register_layer(*torch_layers: type[nn.Module] | str) -> Callable[[K], K]:
    """Say that a kind of layer stands for some torch layers and their subclasses.

    :func:`leanbayes.testing.check_layer` tells whether it does.

    Args:
        *torch_layers: classes; or qualified names (``"package.module.Class"``), which need no
            import. A later registration of the same class wins.

    Returns:
        A decorator of a subclass of :class:`Layer`; ``register_layer(MyLinear)(lb.extend.Affine)``
        will do where an existing kind fits.

    ``docs/extending/layer.py`` is one to copy.
    """

    def register(kind: K) -> K:
        if not (isinstance(kind, type) and issubclass(kind, Layer)):
            raise TypeError(f"{kind!r} is no kind of layer; write a subclass of lb.extend.Layer")
        KINDS.update(dict.fromkeys(torch_layers, kind))
        return kind

    for given in torch_layers:
        if not isinstance(given, str | type):
            raise TypeError(f"{given!r} is no torch layer; give a class or its qualified name")
    return register


def _registered(module: nn.Module) -> tuple[type[nn.Module], type[Layer]] | None:
    """The registered class that a module is an instance of, the nearest one, and its kind."""
    for base in type(module).__mro__:
        if not issubclass(base, nn.Module):
            continue
        kind = KINDS.get(base) or KINDS.get(f"{base.__module__}.{base.__qualname__}")
        if kind is not None:
            return base, kind
    return None


def is_bayesian(module: nn.Module) -> TypeGuard[Layer]:
    """Whether a module is the Bayesian counterpart of a torch layer."""
    return isinstance(module, Layer)


def is_convertible(module: nn.Module) -> TypeGuard[nn.Module]:
    """Whether a module has a Bayesian counterpart."""
    return _registered(module) is not None


def check_convertible(module: nn.Module) -> type[Layer]:
    """The kind of a torch layer; raise a sentence if converting it would lose something."""
    registered = _registered(module)
    if registered is None:
        raise ValueError(
            "it has no Bayesian counterpart; write one and call lb.extend.register_layer"
        )
    _, kind = registered
    require(
        not isinstance(module, nn.modules.lazy.LazyModuleMixin),
        "its shape is not known yet; run one batch through the model first",
    )
    for name, part in module.named_modules():
        own = _registered(part)
        subject = f"its {name}" if name else "it"
        refuse_custom(part, type(part) if own is None else own[0], subject)
    kind.refuse(module)
    return kind


def to_bayesian(module: nn.Module, choice: LayerSpec, shared: SharedPriors) -> Layer:
    """The Bayesian counterpart of a torch layer; raise a sentence if it cannot have one."""
    layer = check_convertible(module).from_torch(module, Maker(choice, shared))
    _refuse_more_parameters(module, layer)
    layer.template = Template(module)
    taken = set(dir(layer))
    for name, value in vars(module).items():
        if not name.startswith("_") and name not in taken:
            setattr(layer, name, value)
    return layer.train(module.training)


@torch.no_grad()
def _refuse_more_parameters(module: nn.Module, layer: Layer) -> None:
    try:
        kept = layer.torch_tensors(0)
    except NotImplementedError:  # an affine map, which has no mean weight
        return
    for name, _ in module.named_parameters():
        if name not in kept:
            raise ValueError(
                f"it has a parameter {name!r} that its Bayesian counterpart has not, which would "
                "be lost; exclude it, or write a kind of layer for it and call "
                "lb.extend.register_layer"
            )
