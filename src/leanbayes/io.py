"""Saving and loading: one safetensors file whose header holds the specs as JSON. No pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor, nn

from leanbayes.convert import convert, topmost
from leanbayes.errors import require
from leanbayes.estimators import ESTIMATORS
from leanbayes.layers import RandomMap, is_bayesian, is_convertible
from leanbayes.likelihoods import Likelihood
from leanbayes.model import random_maps
from leanbayes.posteriors import POSTERIORS, Posterior
from leanbayes.priors import PRIORS, Prior
from leanbayes.spec import Spec

__all__ = ["load", "load_likelihood", "save"]

FORMAT = 1
_KEY = "leanbayes"
_LIKELIHOOD = ".likelihood."
"""Before the names of a likelihood's tensors; no name in a model begins with a dot."""


def save(
    model: nn.Module, path: str | os.PathLike[str], likelihood: Likelihood | None = None
) -> Path:
    """Write a converted model to ``path.safetensors``, whole or not at all; returns the path.

    Args:
        model: the model.
        path: the file.
        likelihood: what its outputs mean, to be stored beside it for :func:`load_likelihood`.

    Example:
        >>> import tempfile, torch, leanbayes as lb
        >>> net = nn.Linear(3, 2)
        >>> model = lb.convert(net, lb.KTied(2), lb.Normal(1.0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = save(model, f"{folder}/m")
        ...     same = load(net, f"{folder}/m")
        >>> torch.equal(lb.kl(same), lb.kl(model))
        True
    """
    target = _with_suffix(path)
    header = {"format": FORMAT, "layers": _describe(model)}
    tensors = _unique(model)
    if likelihood is not None:
        header["likelihood"] = likelihood.to_dict()
        tensors |= {f"{_LIKELIHOOD}{name}": t for name, t in likelihood.state_dict().items()}
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    partial = target.with_name(f"{target.name}.partial")
    try:
        partial.write_bytes(serialize(tensors, metadata={_KEY: json.dumps(header)}))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def load(net: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Convert a copy of ``net`` as the saved model was, and load its numbers.

    Args:
        net: the deterministic network that was converted, with any weights.
        path: what :func:`save` was given.
    """
    source = _with_suffix(path)
    header, tensors, _ = _read(source)
    names = {name for places in topmost(net, is_convertible).values() for name in places}
    absent = [name for name in header["layers"] if name not in names]
    if absent:
        raise ValueError(
            f"{source} was saved from another architecture: it has a layer {absent[0]!r} that the "
            "given network has not"
        )
    model = _rebuild(net, header["layers"])
    expected, given = _shapes(_unique(model)), _shapes(tensors)
    for name in sorted(expected.keys() | given.keys()):
        if expected.get(name) != given.get(name):
            raise ValueError(
                f"{source} was saved from another architecture: tensor {name!r} has shape "
                f"{given.get(name, 'nothing')} in the file and {expected.get(name, 'nothing')} in "
                "the given network"
            )
    model.load_state_dict(tensors, strict=False)
    return model


def load_likelihood(path: str | os.PathLike[str]) -> Likelihood:
    """The likelihood that was saved with a model, with its trained parameters.

    Args:
        path: what :func:`save` was given.

    Example:
        >>> import tempfile, leanbayes as lb
        >>> model = lb.convert(nn.Linear(3, 1), lb.KTied(2), lb.Normal(1.0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = save(model, f"{folder}/m", lb.Gaussian(0.5, "learnt"))
        ...     load_likelihood(f"{folder}/m")
        Gaussian(scale=0.5, noise='learnt')
    """
    source = _with_suffix(path)
    header, _, tensors = _read(source)
    require(
        "likelihood" in header,
        f"{source} was saved without a likelihood; give it to save(model, path, likelihood)",
    )
    likelihood = Likelihood.from_dict(header["likelihood"])
    require(
        _shapes(likelihood.state_dict()) == _shapes(tensors),
        f"{source} has other tensors than a {type(likelihood).__name__} of this version needs",
    )
    likelihood.load_state_dict(tensors, assign=True)
    return likelihood


def _with_suffix(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    return path if path.suffix == ".safetensors" else path.with_name(f"{path.name}.safetensors")


def _unique(model: nn.Module) -> dict[str, Tensor]:
    """The state dict, with tensors that several names share under their first name only."""
    tensors = model.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in reversed(tensors.items())}
    return {name: tensor for name, tensor in tensors.items() if first[id(tensor)] == name}


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _describe_map(layer: RandomMap) -> dict[str, Any]:
    estimators = [name for name, known in ESTIMATORS.items() if known is layer.estimator]
    require(
        bool(estimators),
        f"{layer.estimator!r} is an estimator of your own, which a file cannot hold; save under "
        "using(model, lb.auto)",
    )
    for learned in (layer.posterior, layer.prior):
        if not isinstance(learned.spec, Spec):
            raise ValueError("a layer was made without a spec, which a file needs")
    return {
        "posterior": layer.posterior.spec.to_dict(),
        "prior": layer.prior.spec.to_dict(),
        "estimator": estimators[0],
    }


def _describe(model: nn.Module) -> dict[str, dict[str, Any]]:
    """For every converted layer: its random maps, by their names inside the layer."""
    layers = {
        name: {inner: _describe_map(part) for inner, part in random_maps(layer)}
        for layer, names in topmost(model, is_bayesian).items()
        for name in names
    }
    if not layers:
        raise ValueError("the model has no Bayesian layer; call lb.convert(model, …) first")
    return layers


def _read(source: Path) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """The header of a file, the tensors of its model and those of its likelihood."""
    if not source.is_file():
        raise FileNotFoundError(f"{source} does not exist; save(model, path) writes it")
    try:
        with safe_open(source, framework="pt") as file:
            metadata = file.metadata() or {}
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{source} is damaged or no safetensors file ({error})") from error
    require(
        _KEY in metadata,
        f"{source} was not written by leanbayes; load weights into the net instead",
    )
    try:
        header = json.loads(metadata[_KEY])
    except json.JSONDecodeError as error:
        raise ValueError(f"{source} has a damaged header ({error})") from error
    require(
        header.get("format") == FORMAT,
        f"{source} has format {header.get('format')}, and this version reads {FORMAT}; "
        "upgrade leanbayes",
    )
    tensors = {name: t for name, t in stored.items() if not name.startswith(_LIKELIHOOD)}
    others = {name.removeprefix(_LIKELIHOOD): stored[name] for name in stored.keys() - tensors}
    return header, tensors, others


def _specs(values: Mapping[str, Any]) -> tuple[Posterior, Prior]:
    posterior = Spec.from_dict(values["posterior"], POSTERIORS)
    prior = Spec.from_dict(values["prior"], PRIORS)
    assert isinstance(posterior, Posterior)
    assert isinstance(prior, Prior)
    return posterior, prior


def _rebuild(net: nn.Module, layers: Mapping[str, Mapping[str, Any]]) -> nn.Module:
    """Convert layer by layer as described; then give single maps what differs in them."""
    overrides: dict[str, dict[str, Any]] = {}
    for name, maps in layers.items():
        choice: dict[str, Any] = {}
        for inner, values in maps.items():
            keys = ("bias", "bias_prior") if "bias" in inner else ("posterior", "prior")
            choice = dict(zip(keys, _specs(values), strict=True)) | choice  # the first decides
        overrides[name] = choice
    first = next(iter(overrides.values()))
    model = convert(
        net, first["posterior"], first["prior"], include=tuple(overrides), overrides=overrides
    )
    for name, maps in layers.items():
        layer = model.get_submodule(name)
        for inner, values in maps.items():
            part = layer.get_submodule(inner)
            assert isinstance(part, RandomMap)
            part.estimator = ESTIMATORS[values["estimator"]]
            posterior, prior = _specs(values)
            if part.posterior.spec != posterior:
                part.posterior = posterior(part.weight, part.op)
            if part.prior.spec != prior:
                part.prior = prior.of(part.weight, part.op)
    return model
