"""Where layers are in a model, by dotted name."""

from __future__ import annotations

import re

from torch import nn

__all__ = ["matches", "put", "topmost"]


def topmost(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> dict[nn.Module, list[str]]:
    """Layers of some kinds with all their names; what lies inside one of them is part of it.

    Example:
        >>> shared = nn.Linear(2, 2)
        >>> topmost(nn.Sequential(shared, nn.ReLU(), shared), (nn.Linear,))[shared]
        ['0', '2']
    """
    found: dict[nn.Module, list[str]] = {}
    taken: set[str] = set()
    for name, module in model.named_modules(remove_duplicate=False):
        parts = name.split(".")
        inside = any(".".join(parts[:i]) in taken for i in range(1, len(parts)))
        if isinstance(module, kinds) and not inside and "" not in taken:
            found.setdefault(module, []).append(name)
            taken.add(name)
    return found


def put(model: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    """Put a layer at a dotted name; the empty name is the model itself."""
    if not name:
        return layer
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, layer)
    return model


def matches(pattern: str, name: str) -> bool:
    """Glob over dotted names: ``*`` stays within one part, ``**`` crosses dots.

    Example:
        >>> matches("block*.conv", "block1.conv"), matches("*", "block1.conv")
        (True, False)
    """
    regex = re.escape(pattern).replace(r"\*\*", ".*").replace(r"\*", "[^.]*")
    return re.fullmatch(regex, name) is not None
