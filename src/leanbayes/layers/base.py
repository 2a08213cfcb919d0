"""Layer kinds: made from a torch layer, converted back to it, and found in a registry."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from leanbayes.errors import require
from leanbayes.layers.layer_spec import LayerSpec, Maker, SharedPriors
from leanbayes.parameters.learned import Learned
from leanbayes.posteriors import Point
from leanbayes.priors import Flat
from leanbayes.torch_private import gradient_hooks, hooks


@torch.no_grad()
def take_plain(layer: Any, state: MutableMapping[str, Tensor], prefix: str) -> None:
    """Put a layer's own tensors where a state dict has those of its torch layer.

    Weights become means, and everything else that is learned stays as it is. A state dict that has
    a posterior of this layer, or not all tensors of the torch layer, is left alone.
    """
    if layer.template is None:
        return
    own, names = layer.state_dict(), layer.template.names
    begun = any(name.startswith(prefix) and ".posterior." in f".{name}" for name in state)
    if begun or not all(f"{prefix}{name}" in state for name in names):
        return
    tensors = {name: state.pop(f"{prefix}{name}") for name in names}
    given = _means(layer, tensors)
    for name, tensor in own.items():
        state[f"{prefix}{name}"] = given.get(name, tensor)


def _means(layer: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The means and plain biases that a layer would have, were it made from these tensors."""
    maps = _maps(layer)
    bias = Point() if any("bias" in name for name in maps) else None
    plain = layer.template.filled({n: nn.Parameter(t, False) for n, t in tensors.items()})
    choice = LayerSpec(Point(), Flat(), bias=bias, bias_prior=Flat())
    made = type(layer).from_torch(plain, Maker(choice, {}))
    found: dict[str, Tensor] = {}
    for name, part in maps.items():
        means, (value,) = part.posterior.tensors("means"), _maps(made)[name].posterior.parameters()
        require(
            len(means) == 1 and next(iter(means.values())).shape == value.shape,
            f"{part.posterior.spec!r} has no means of weights, so a plain state dict cannot be "
            "loaded into it; load that into the network and convert it",
        )
        found[".".join(filter(None, (name, "posterior", *means)))] = value
    for name, value in made.named_parameters():
        if ".posterior." not in f".{name}":  # a plain bias, of which every member has a copy
            found[name] = value.expand_as(layer.get_parameter(name))
    return found


def _maps(layer: nn.Module) -> dict[str, Any]:
    """The random maps of a layer, by name."""
    parts = layer.named_modules()
    return {n: part for n, part in parts if isinstance(getattr(part, "posterior", None), Learned)}


_HOOKS = {
    "forward": "forward hooks (as pruning and spectral_norm set them)",
    "backward": "backward hooks",
    "state_dict": "state-dict hooks",
    "load": "hooks on loading a state dict",
}
_HARMLESS = {"extra_repr", "reset_parameters", "get_name"}
_CALLS = {"__call__", "__getattr__", "__getattribute__"}


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
        """Return a new torch layer with copies of these tensors, by torch's names."""
        module = copy.deepcopy(self._module)
        for name, tensor in tensors.items():
            owner, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(owner), attribute, copy.deepcopy(tensor))
        return module


class Layer(nn.Module, ABC):
    """The Bayesian counterpart of a torch layer; a subclass is a kind of layer.

    A kind defines its construction (:meth:`from_torch`), its inputs (``forward``), the tensors of
    the torch layer (:meth:`torch_tensors`) and its unsupported options (:meth:`refuse`). It
    is made of random maps; the name of one that is a bias contains ``bias``. The public options of
    the torch layer (``in_features``, ``batch_first``, …) become its attributes.
    """

    template: Template | None = None

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(_load_plain)  # type: ignore[no-untyped-call]

    @classmethod
    def refuse(cls, module: Any) -> None:
        """Raise an error if the torch layer has an option that would be lost."""

    @classmethod
    @abstractmethod
    def from_torch(cls, module: Any, make: Maker) -> Layer:
        """Make the layer from torch's, with its weights as means."""

    @abstractmethod
    def torch_tensors(self, member: int | None) -> Mapping[str, Tensor | None]:
        """Return the mean of every tensor of the torch layer, by torch's name.

        A parameter is an ``nn.Parameter``, frozen where the means are; the caller makes copies.
        """

    def to_torch(self, member: int | None = None) -> nn.Module:
        """Return the torch layer with the means (of one member of a mixture) as weights."""
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
    """Register a kind of layer for some torch layers and their subclasses.

    :func:`leanbayes.testing.check_layer` tells whether it does.

    Args:
        *torch_layers: classes; or qualified names (``"package.module.Class"``), which need no
            import. A later registration of the same class wins.

    Returns:
        A decorator of a subclass of :class:`Layer`; ``register_layer(MyLinear)(lb.extend.Affine)``
        will do where an existing kind fits.

    ``docs/extending/layer.py`` is one to copy.

    Raises:
        TypeError: If a class is neither a kind nor a torch layer.
    """

    def register(kind: K) -> K:
        if not (isinstance(kind, type) and issubclass(kind, Layer)):
            raise TypeError(f"{kind!r} is not a kind of layer; write a subclass of lb.extend.Layer")
        KINDS.update(dict.fromkeys(torch_layers, kind))
        return kind

    for given in torch_layers:
        if not isinstance(given, str | type):
            raise TypeError(f"{given!r} is not a torch layer; give a class or its qualified name")
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
    """Return whether a module is the Bayesian counterpart of a torch layer."""
    return isinstance(module, Layer)


def is_convertible(module: nn.Module) -> TypeGuard[nn.Module]:
    """Return whether a module has a Bayesian counterpart."""
    return _registered(module) is not None


def layer_kind(module: nn.Module) -> type[Layer]:
    """Return the kind of a torch layer."""
    registered = _registered(module)
    if registered is None:
        raise ValueError(
            "it has no Bayesian counterpart; write one and call lb.extend.register_layer"
        )
    return registered[1]


def check_convertible(module: nn.Module) -> type[Layer]:
    """Return the kind of a torch layer; raise a sentence if converting it would lose something."""
    kind = layer_kind(module)
    if isinstance(module, nn.modules.lazy.LazyModuleMixin):
        raise ValueError("its shape is not known yet; run one batch through the model first")
    for name, part in module.named_modules():
        own = _registered(part)
        subject = f"its {name}" if name else "it"
        _refuse_custom(part, type(part) if own is None else own[0], subject)
    kind.refuse(module)
    return kind


def _refuse_custom(module: nn.Module, base: type[nn.Module], subject: str = "it") -> None:
    """Raise a sentence if a layer does anything that its registered class does not."""
    if parametrize.is_parametrized(module):
        raise ValueError(
            f"{subject} has parametrizations; remove them with "
            "torch.nn.utils.parametrize.remove_parametrizations first, or exclude it"
        )
    for found in _hooks(module):
        raise ValueError(
            f"{subject} has {found}, which would be lost; remove them first, or exclude it"
        )
    for name, value in vars(module).items():
        if callable(value) and callable(getattr(type(module), name, None)):
            raise ValueError(
                f"{subject} has a {name} that was set on the instance, which would be lost; remove "
                "that, or exclude it"
            )
    kind = type(module).__name__ if subject == "it" else f"{subject} ({type(module).__name__})"
    for name in _overridden(type(module), base):
        raise ValueError(
            f"{kind} overrides the {name} of {base.__name__}, which would be lost; exclude it, or "
            "write a kind of layer for it and call lb.extend.register_layer"
        )


def _hooks(module: nn.Module) -> Iterator[str]:
    """The hooks of a module and its parameters, in words."""
    for found in hooks(module):
        yield from (words for kind, words in _HOOKS.items() if found.startswith(kind))
    for name, parameter in module.named_parameters(recurse=False):
        if gradient_hooks(parameter):
            yield f"gradient hooks on its {name}"


def _overridden(owner: type, base: type) -> Iterator[str]:
    """Yield the methods and attributes of a base that a subclass redefines, if that may matter."""
    known = set(dir(base)).union(*(vars(c).get("__annotations__", ()) for c in base.__mro__))
    for subclass in owner.__mro__[: owner.__mro__.index(base)]:
        for name, value in vars(subclass).items():
            special = name.startswith("__") and name not in _CALLS
            acts = callable(value) or isinstance(value, property | classmethod | staticmethod)
            if name in known and acts and not special and name.lstrip("_") not in _HARMLESS:
                yield name


def to_bayesian(module: nn.Module, choice: LayerSpec, shared: SharedPriors) -> Layer:
    """Make the Bayesian counterpart of a torch layer that :func:`check_convertible` passed."""
    layer = layer_kind(module).from_torch(module, Maker(choice, shared))
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
                f"it has a parameter {name!r} that its Bayesian counterpart does not have, which "
                "would be lost; exclude it, or write a kind of layer for it and call "
                "lb.extend.register_layer"
            )
