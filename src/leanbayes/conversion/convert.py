"""Deterministic -> Bayesian and back: plan completely, then apply."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, TypeGuard, TypeVar, cast

import torch
from torch import nn

from leanbayes.conversion.external_references import (
    copy_model,
    forbid_tied_weights,
    parents,
    replaceable,
    separate,
)
from leanbayes.conversion.plan_report import (
    KeptLayer,
    added_bytes,
    kept_layers,
    lines_of,
    rank1_advice,
    size_of,
    warn_of_unknown,
)
from leanbayes.display import DisplayTable, shown_as_table
from leanbayes.errors import explained_as, nearest, require
from leanbayes.estimators import Estimator, auto
from leanbayes.layers.base import check_convertible, is_bayesian, is_convertible, to_bayesian
from leanbayes.layers.layer_spec import (
    LayerSpec,
    SharedPriors,
    prior_or_default,
    recommended_posterior,
)
from leanbayes.layers.transformers import settle_fused_path, with_own_saving
from leanbayes.posteriors import Posterior
from leanbayes.priors import Prior

M = TypeVar("M", bound=nn.Module)
L = TypeVar("L", bound=nn.Module)


class PlannedLayer(NamedTuple):
    """One layer of a plan.

    Attributes:
        names: all its dotted names in the model; the empty name is the model itself.
        kind: the name of its class.
        choice: its spec.
    """

    names: tuple[str, ...]
    kind: str
    choice: LayerSpec


@shown_as_table
@dataclass(frozen=True)
class Plan:
    """What a conversion will do: the names of every layer, and what it is made of.

    ``print(plan(…))`` shows it, :meth:`apply` does it.

    Attributes:
        layers: those that become random.
        kept: those with parameters that stay as they are, and their shares of all parameters.
        memory: bytes that the converted model takes beyond those of the model.
    """

    layers: tuple[PlannedLayer, ...]
    kept: tuple[KeptLayer, ...] = ()
    memory: int = 0

    def table(self) -> DisplayTable:
        """Return a row for every layer that becomes random, and notes on the others."""
        rows = [
            [
                ", ".join(n or "(the model)" for n in names),
                kind,
                repr(choice.posterior),
                repr(choice.prior),
            ]
            for names, kind, choice in self.layers
        ]
        notes = [
            "A layer with several names draws at every call, except in predict; "
            "lb.held(model) makes it one draw."
        ] * any(len(layer.names) > 1 for layer in self.layers)
        notes += rank1_advice(layer.choice.posterior for layer in self.layers)
        notes += [*lines_of(self.kept), f"Memory added: {size_of(self.memory)}."]
        return DisplayTable(
            ["layer", "kind", "posterior", "prior"], rows, notes=notes, left=range(4)
        )

    def apply(self, model: M) -> M:
        """Convert the model in place and return it; if one layer cannot be converted, none is."""
        modules = dict(model.named_modules(remove_duplicate=False))
        for names, kind, _ in self.layers:
            for name in names:
                require(
                    name in modules and modules[name] is modules[names[0]],
                    f"the plan has a layer {name!r} ({kind}) that the model does not have; make a "
                    "plan of this model",
                )
            with _naming(names[0], modules[names[0]]):
                check_convertible(modules[names[0]])
        return self.apply_checked(model)

    def apply_checked(self, model: M) -> M:
        """Convert the model that the plan was made of, or a copy of it."""
        shared: SharedPriors = {}
        built: list[tuple[Sequence[str], nn.Module]] = []
        for names, _, choice in self.layers:
            layer = model.get_submodule(names[0])
            with _naming(names[0], layer):
                built.append((names, to_bayesian(layer, choice, shared)))
        return _exchange(model, built)


def plan(  # noqa: D417 -- names that share a line
    model: nn.Module,
    posterior: Posterior | None = None,
    prior: Prior | None = None,
    estimator: Estimator = auto,
    *,
    bias: Posterior | None = None,
    bias_prior: Prior | None = None,
    include: Sequence[str] = ("**",),
    exclude: Sequence[str] = (),
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> Plan:
    """Return what :func:`convert` would do with the same arguments, without doing it.

    Args:
        model: Model to convert.
        posterior, prior, estimator, bias, bias_prior, include, exclude, overrides: As in
            :func:`convert`.

    Returns:
        The plan, which prints as a table.

    Raises:
        ValueError: Errors as in :func:`convert`.

    Example:
        >>> import leanbayes as lb
        >>> net = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
        >>> lb.plan(net, lb.KTied(1), lb.priors.Normal(1.0))
        layer  kind    posterior      prior
        0      Linear  KTied(rank=1)  Normal(scale=1.0)
        Deterministic, with 33.3% of the parameters:
        1  LayerNorm          4 (33.3%)
        Memory added: 28 B.
    """
    posterior = posterior or recommended_posterior(model)
    default = LayerSpec(posterior, prior_or_default(prior, posterior), estimator, bias, bias_prior)
    planned = choose_layers(model, default, include, exclude, overrides)
    shared: SharedPriors = {}
    memory = 0
    for names, _, choice in planned.layers:
        layer = model.get_submodule(names[0])
        with _naming(names[0], layer):
            memory += added_bytes(layer, choice, shared)
    return replace(planned, memory=memory)


def choose_layers(
    model: nn.Module,
    default: LayerSpec,
    include: Sequence[str] = ("**",),
    exclude: Sequence[str] = (),
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> Plan:
    """Return a plan that does not say how much memory it takes, which has to be tried out."""
    layers = topmost(model, is_convertible)
    known = [name for names in layers.values() for name in names]
    if not known:
        raise ValueError(_nothing_to_convert(model))
    included, excluded = select(include, known), select(exclude, known)
    changes = [(select(pattern, known), change) for pattern, change in (overrides or {}).items()]
    _check_keys(overrides or {})
    chosen: dict[nn.Module, PlannedLayer] = {}
    for module, names in layers.items():
        if not included.isdisjoint(names) and excluded.isdisjoint(names):
            with _naming(names[0], module):
                check_convertible(module)
            batch_dim = _batch_dim(model, names[0])
            choice = replace(default, batch_dim=batch_dim) if batch_dim else default
            for changed, change in changes:
                if not changed.isdisjoint(names):
                    choice = replace(choice, **change)
            chosen[module] = PlannedLayer(tuple(names), type(module).__name__, choice)
    if not chosen:
        raise ValueError("no layer is left to convert; look at include and exclude")
    forbid_tied_weights(model, chosen)
    replaceable(model, {layer: planned.names[0] for layer, planned in chosen.items()})
    return Plan(tuple(chosen.values()), kept_layers(model, chosen, layers))


def convert(
    model: M,
    posterior: Posterior | None = None,
    prior: Prior | None = None,
    estimator: Estimator = auto,
    *,
    bias: Posterior | None = None,
    bias_prior: Prior | None = None,
    include: Sequence[str] = ("**",),
    exclude: Sequence[str] = (),
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    freeze: Literal["rest"] | None = None,
    inplace: bool = False,
) -> M:
    """Convert a copy of a model to a Bayesian one, with random weights.

    Trained weights become the means. Converted are linear and bilinear layers, convolutions (also
    transposed and grouped) and embeddings. So are recurrent layers and cells, multi-head attention
    and registered kinds of layers. Nothing changes if any part cannot be converted. The result has
    the class of the model, unless that is one layer.

    Args:
        model: any module; left as it was unless ``inplace``.
        posterior: spec of the weights' posterior; k-tied with rank 2 if not given, with standard
            deviations that start at 0.1/√fan_in, or at 0.05/√fan_in with batch normalization.
        prior: spec of their prior; if not given, ``lb.priors.He()``, and the published one for
            ``Rank1``, ``ZeroMean`` and ``VariationalDropout``.
        estimator: rule for sharing noise.
        bias: spec of the biases' posterior; deterministic if not given.
        bias_prior: spec of their prior; that of the weights if not given.
        include: patterns of layer names; ``*`` stays within a name's part, ``**`` does not.
        exclude: patterns of layers to leave alone.
        overrides: other choices by pattern, ``{"head": {"prior": lb.priors.He()}}``; the last wins.
        freeze: ``"rest"`` trains the converted layers alone.
        inplace: change the model itself, which saves memory.

    Returns:
        The Bayesian model.

    Raises:
        ValueError: If nothing, or a chosen layer, cannot be converted; the message names the layer.

    Example:
        >>> import leanbayes as lb
        >>> net = nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 10))
        >>> model = lb.convert(net)
        >>> model(torch.randn(5, 784)).shape
        torch.Size([5, 10])
    """
    require(freeze in (None, "rest"), f"freeze is {freeze!r}; it is 'rest' or None")
    posterior = posterior or recommended_posterior(model)
    default = LayerSpec(posterior, prior_or_default(prior, posterior), estimator, bias, bias_prior)
    planned = choose_layers(model, default, include, exclude, overrides)
    warn_of_unknown(planned.kept)
    if not inplace:
        names = [name for layer in planned.layers for name in layer.names]
        given = [p for name in names for p in model.get_submodule(name).parameters()]
        model = copy_model(model, names, "make it a method, or pass inplace=True", shared=given)
    converted = planned.apply_checked(model)
    if hasattr(type(converted), "save_pretrained"):
        with_own_saving(converted)
    if not inplace:
        separate(converted, given)
    return _freeze_rest(converted) if freeze else converted


@torch.no_grad()
def deterministic(model: M, *, member: int | None = None) -> M:
    """Return a copy with plain torch layers and the posterior means as weights.

    Args:
        model: a converted model.
        member: index of the member of a mixture; a mixture has no single mean.

    Returns:
        The plain network.

    Raises:
        ValueError: If a mixture is given without ``member``.

    Example:
        >>> import leanbayes as lb
        >>> net = nn.Linear(3, 2)
        >>> same = deterministic(lb.convert(net, lb.KTied(2), lb.priors.Normal(1.0)))
        >>> torch.equal(same.weight, net.weight)
        True
    """
    names = [name for names in topmost(model, is_bayesian).values() for name in names]
    model = copy_model(model, names, "make it a method")
    layers = topmost(model, is_bayesian)
    vars(model).pop("save_pretrained", None)
    return _exchange(model, [(names, layer.to_torch(member)) for layer, names in layers.items()])


def topmost(model: nn.Module, wanted: Callable[[nn.Module], TypeGuard[L]]) -> dict[L, list[str]]:
    """Return the wanted layers with all their names; what lies inside one of them is part of it."""
    layers: dict[L, list[str]] = {}
    inside: str | None = None  # how the names of parts of the last layer begin; they come next
    for name, module in model.named_modules(remove_duplicate=False):
        if (inside is None or not name.startswith(inside)) and wanted(module):
            layers.setdefault(module, []).append(name)
            inside = f"{name}." if name else ""
    return layers


def select(patterns: str | Iterable[str], names: Iterable[str]) -> set[str]:
    """Return the dotted names that match a pattern: ``*`` is within one part, ``**`` any."""
    selected: set[str] = set()
    for pattern in (patterns,) if isinstance(patterns, str) else patterns:
        matching = _matching(pattern, names)
        if not matching:
            wider = re.sub(r"\*+", "**", f"**{pattern}**")
            found = sorted(_matching(wider, names))
            remedy = f"; {wider!r} matches {len(found)}, such as {found[0]!r}" if found else ""
            raise ValueError(
                f"pattern {pattern!r} matches no layer{remedy or nearest(pattern, names)}"
            )
        selected |= matching
    return selected


def _matching(pattern: str, names: Iterable[str]) -> set[str]:
    regex = re.escape(pattern).replace(r"\*\*", ".*").replace(r"\*", "[^.]*")
    return {name for name in names if re.fullmatch(regex, name)}


def _exchange(model: M, layers: Sequence[tuple[Sequence[str], nn.Module]]) -> M:
    """Put layers at their names, and wherever else a model keeps them; all or none.

    A layer at the empty name is the model then, and stands in for its type.
    """
    before = {model.get_submodule(names[0]): (names[0], layer) for names, layer in layers}
    strays = replaceable(model, {old: name for old, (name, _) in before.items()})
    owners: dict[nn.Module, None] = {}
    for names, layer in layers:
        for name in names:
            if not name:
                return cast(M, layer)
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, layer)
            owners.update(dict.fromkeys(model.get_submodule(above) for above in parents(name)))
    for stray in strays:
        assert stray.put is not None
        stray.put(before[stray.value][1])
    for owner in owners:
        if isinstance(owner, nn.TransformerEncoder | nn.TransformerEncoderLayer):
            settle_fused_path(owner)
    return model


def _batch_dim(model: nn.Module, name: str) -> int:
    """Return the dimension that counts examples: 1 inside a time-first transformer layer."""
    parent = model.get_submodule(name.rpartition(".")[0])
    if not isinstance(parent, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) or not name:
        return 0
    return 0 if getattr(parent.self_attn, "batch_first", True) else 1


def _naming(name: str, module: nn.Module) -> AbstractContextManager[None]:
    """Let an error name the layer."""
    where = f"layer {name!r} ({type(module).__name__})"
    return explained_as(f"{where} cannot be converted: {{reason}}", ValueError, TypeError)


def _nothing_to_convert(model: nn.Module) -> str:
    if any(map(is_bayesian, model.modules())):
        return (
            "the model is converted already; call lb.deterministic(model) first, or "
            "lb.extend.map_posteriors to give its layers other posteriors"
        )
    return "the model has no layer that can be converted"


def _check_keys(overrides: Mapping[str, Mapping[str, Any]]) -> None:
    known = [field.name for field in fields(LayerSpec)]
    for pattern, changes in overrides.items():
        for key in changes:
            require(key in known, f"override {pattern!r} sets {key!r}{nearest(key, known)}")


def _freeze_rest(model: M) -> M:
    """Train what belongs to random layers alone."""
    trained = {p for layer in topmost(model, is_bayesian) for p in layer.parameters()}
    for parameter in model.parameters():
        if parameter not in trained:
            parameter.requires_grad_(False)
    return model
