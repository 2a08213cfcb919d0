"""Deterministic -> Bayesian: plan completely, then apply."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import nn

from leanbayes.build import CONVERTIBLE, Builder, Choice, check_layer
from leanbayes.errors import nearest
from leanbayes.estimators import Estimator, auto
from leanbayes.layers import RandomMap
from leanbayes.places import matches, put, topmost
from leanbayes.posteriors import Posterior
from leanbayes.priors import Prior

__all__ = ["Plan", "convert", "plan"]


@dataclass(frozen=True)
class Plan:
    """What a conversion will do: every layer, its places in the model, what it is made of.

    ``print(plan(…))`` shows it.
    """

    layers: tuple[tuple[tuple[str, ...], nn.Module, Choice], ...]

    def __str__(self) -> str:
        rows = [
            (", ".join(n or "(the model)" for n in names), type(module).__name__, choice)
            for names, module, choice in self.layers
        ]
        width = max((len(name) for name, _, _ in rows), default=0)
        return "\n".join(
            f"{name:<{width}}  {kind:<18} {choice.posterior}  prior {choice.prior}"
            for name, kind, choice in rows
        )


def plan(
    model: nn.Module,
    posterior: Posterior,
    prior: Prior,
    estimator: Estimator = auto,
    *,
    bias: Posterior | None = None,
    bias_prior: Prior | None = None,
    include: Sequence[str] = ("**",),
    exclude: Sequence[str] = (),
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> Plan:
    """Say what :func:`convert` would do with the same arguments, without doing it."""
    default = Choice(posterior, prior, estimator, bias, bias_prior)
    include, exclude = (
        (patterns,) if isinstance(patterns, str) else patterns for patterns in (include, exclude)
    )
    found = topmost(model, CONVERTIBLE)
    names = [name for places in found.values() for name in places]
    for pattern in (*include, *exclude, *(overrides or {})):
        if not any(matches(pattern, name) for name in names):
            raise ValueError(
                f"pattern {pattern!r} matches no layer{nearest(pattern, names)}"
                if names
                else "the model has no layer that can be converted"
            )
    chosen = []
    for module, places in found.items():
        included = any(matches(p, n) for p in include for n in places)
        if included and not any(matches(p, n) for p in exclude for n in places):
            with _naming(places[0], module):
                check_layer(module)
            chosen.append((tuple(places), module, _override(default, places, overrides or {})))
    if not chosen:
        raise ValueError("no layer is left to convert; look at include and exclude")
    _forbid_tied_weights(model, [module for _, module, _ in chosen])
    return Plan(tuple(chosen))


def convert(
    model: nn.Module,
    posterior: Posterior,
    prior: Prior,
    estimator: Estimator = auto,
    *,
    bias: Posterior | None = None,
    bias_prior: Prior | None = None,
    include: Sequence[str] = ("**",),
    exclude: Sequence[str] = (),
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    inplace: bool = False,
) -> nn.Module:
    """Make a model Bayesian: a copy whose linear layers are random maps.

    Trained weights become the means. Linear layers, convolutions (also transposed and grouped),
    embeddings, LSTM, GRU, RNN and multi-head attention are converted; everything else stays.
    Nothing changes if any part cannot be converted.

    Args:
        model: any module; left as it was unless ``inplace``.
        posterior: recipe of the weights' posterior, such as ``lb.KTied(rank=2)``.
        prior: recipe of their prior, such as ``lb.Normal(0.2)``.
        estimator: how far noise is shared.
        bias: recipe of the biases' posterior; deterministic if not given.
        bias_prior: recipe of their prior; that of the weights if not given.
        include: patterns of layer names; ``*`` stays within a name's part, ``**`` does not.
        exclude: patterns of layers to leave alone.
        overrides: other choices for layers that match a pattern, for example
            ``{"head": {"posterior": lb.MeanField()}}``; later ones win.
        inplace: change the model itself, which saves memory.

    Example:
        >>> import leanbayes as lb
        >>> net = nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 10))
        >>> model = lb.convert(net, lb.KTied(rank=2), lb.Normal(0.2))
        >>> model(torch.randn(5, 784)).shape
        torch.Size([5, 10])
    """
    choices: dict[str, Any] = {
        "bias": bias,
        "bias_prior": bias_prior,
        "include": include,
        "exclude": exclude,
        "overrides": overrides,
    }
    planned = plan(model, posterior, prior, estimator, **choices)
    if not inplace:
        model = copy.deepcopy(model)
        planned = plan(model, posterior, prior, estimator, **choices)
    builder, built = Builder(), []
    for names, module, choice in planned.layers:
        with _naming(names[0], module):
            built.append((names, builder.build(module, choice)))
    for names, layer in built:
        for name in names:
            model = put(model, name, layer)
    _leave_fused_paths(model)
    return model


@contextmanager
def _naming(name: str, module: nn.Module) -> Iterator[None]:
    """Let an error name the layer."""
    try:
        yield
    except (ValueError, TypeError) as error:
        where = f"layer {name!r} ({type(module).__name__})"
        raise ValueError(f"{where} cannot be converted: {error}") from error


def _override(
    choice: Choice, names: Sequence[str], overrides: Mapping[str, Mapping[str, Any]]
) -> Choice:
    known = [field.name for field in fields(Choice)]
    for pattern, changes in overrides.items():
        for key in changes:
            if key not in known:
                raise ValueError(f"override {pattern!r} sets {key!r}{nearest(key, known)}")
        if any(matches(pattern, name) for name in names):
            choice = replace(choice, **changes)
    return choice


def _forbid_tied_weights(model: nn.Module, chosen: Sequence[nn.Module]) -> None:
    """A parameter that two layers share would become two posteriors."""
    owners: dict[nn.Parameter, str] = {}
    converted = set(chosen)
    inside = {part for layer in chosen for part in layer.modules()}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            other = owners.setdefault(parameter, name)
            both = (model.get_submodule(other), module)
            if other != name and any(m in converted or m in inside for m in both):
                raise ValueError(
                    f"layers {other!r} and {name!r} share one weight, which cannot be converted "
                    "on one side only; exclude both, or give each a weight of its own"
                )


def _leave_fused_paths(model: nn.Module) -> None:
    """Transformer layers in eval mode would read weights past the posterior; make them call."""
    for module in model.modules():
        random = any(isinstance(part, RandomMap) for part in module.modules())
        if isinstance(module, nn.TransformerEncoderLayer) and random:
            module.activation_relu_or_gelu = 0
        if isinstance(module, nn.TransformerEncoder) and random and module.use_nested_tensor:
            module.use_nested_tensor = False
            vars(module)["nested_before_conversion"] = True
