"""Customized torch layers: hooks, parametrizations and overridden methods."""

from collections.abc import Iterator

from torch import nn
from torch.nn.utils import parametrize

from leanbayes.errors import require
from leanbayes.torch_private import gradient_hooks, hooks

_HOOKS = {
    "forward": "forward hooks (as pruning and spectral_norm set them)",
    "backward": "backward hooks",
    "state_dict": "state-dict hooks",
    "load": "hooks on loading a state dict",
}
_HARMLESS = {"extra_repr", "reset_parameters", "get_name"}
_CALLS = {"__call__", "__getattr__", "__getattribute__"}


def refuse_custom(module: nn.Module, base: type[nn.Module], subject: str = "it") -> None:
    """Raise a sentence if a layer does anything that its registered class does not.

    Args:
        module: the layer, or a part of one.
        base: the class whose behaviour its Bayesian counterpart has.
        subject: what the sentence calls it.
    """
    require(
        not parametrize.is_parametrized(module),
        f"{subject} has parametrizations; remove them with "
        "torch.nn.utils.parametrize.remove_parametrizations first, or exclude it",
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
    """The hooks of a module and of its own parameters, in words."""
    for found in hooks(module):
        yield from (words for kind, words in _HOOKS.items() if found.startswith(kind))
    for name, parameter in module.named_parameters(recurse=False):
        if gradient_hooks(parameter):
            yield f"gradient hooks on its {name}"


def _overridden(owner: type, base: type) -> Iterator[str]:
    """The methods and attributes of a base that a subclass defines anew, where that may matter."""
    known = set(dir(base)).union(*(vars(c).get("__annotations__", ()) for c in base.__mro__))
    for subclass in owner.__mro__[: owner.__mro__.index(base)]:
        for name, value in vars(subclass).items():
            special = name.startswith("__") and name not in _CALLS
            acts = callable(value) or isinstance(value, property | classmethod | staticmethod)
            if name in known and acts and not special and name.lstrip("_") not in _HARMLESS:
                yield name
