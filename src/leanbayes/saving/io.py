"""Saving and loading: one safetensors file whose header holds the specs as JSON. No pickle."""

import copy
import json
import math
import os
import reprlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from safetensors.torch import save as serialize
from torch import Tensor, nn

from leanbayes.conversion.convert import Plan, choose_layers, topmost
from leanbayes.errors import LoadError, require
from leanbayes.estimators import ESTIMATORS, Estimator
from leanbayes.layers import LayerSpec, RandomMap, is_bayesian, is_convertible
from leanbayes.layers.forward_pass import estimator_for
from leanbayes.layers.transformers import WRITERS
from leanbayes.likelihoods import Likelihood
from leanbayes.models.random_maps import random_maps
from leanbayes.parameters.learned import from_version_1
from leanbayes.posteriors import POSTERIORS, Posterior
from leanbayes.priors import PRIORS, Prior
from leanbayes.saving.adapters import fingerprint, random_names, trained_names, unwrapped
from leanbayes.saving.files import replace_file
from leanbayes.saving.header import (
    KEY,
    NO_CHECKSUM,
    AllocationLimit,
    Header,
    TensorInfo,
    load_errors,
    read_header,
    read_tensors,
    with_checksum,
)
from leanbayes.spec import Spec

FORMAT = 3
"""Of a file that holds a whole model."""

ADAPTER_FORMAT = 4
"""Of one that holds the trained part of it."""

_RELATIVE = "relative"
"""How logarithms of scales are stored: relative to their start; in formats 1 and 2 they are not."""

M = TypeVar("M", bound=nn.Module)
_LIKELIHOOD = ".likelihood."
"""Before the names of a likelihood's tensors; no name in a model begins with a dot."""


def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    likelihood: Likelihood | None = None,
    *,
    trainable_only: bool = False,
) -> Path:
    """Write a converted model to ``path.safetensors``, whole or not at all, and return the path.

    Args:
        model: the model; what compiles it, averages it or runs it in parallel is left out.
        path: the file.
        likelihood: likelihood of the outputs, to be stored beside it for :func:`load_likelihood`.
        trainable_only: leave out frozen weights, which :func:`load` then takes from the network
            that it is given: an adapter of a large model is a small file.

    Returns:
        The path of the file.

    Raises:
        ValueError: If the model has no Bayesian layer.

    Example:
        >>> import tempfile, torch, leanbayes as lb
        >>> net = nn.Linear(3, 2)
        >>> model = lb.convert(net, lb.KTied(2), lb.priors.Normal(1.0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = save(model, f"{folder}/m")
        ...     same = load(net, f"{folder}/m")
        >>> torch.equal(lb.kl(same), lb.kl(model))
        True
    """
    target, model = _with_suffix(path), unwrapped(model)
    header = {"format": FORMAT, "checksum": NO_CHECKSUM, "scales": _RELATIVE}
    header["layers"] = _describe(model)
    tensors = _unique(model)
    if trainable_only:
        kept = trained_names(model)
        header |= {"format": ADAPTER_FORMAT, "rest": fingerprint(tensors, kept)}
        tensors = {name: tensor for name, tensor in tensors.items() if name in kept}
    if likelihood is not None:
        header["likelihood"] = likelihood.to_dict()
        tensors |= {f"{_LIKELIHOOD}{name}": t for name, t in likelihood.state_dict().items()}
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    return replace_file(
        target, with_checksum(serialize(tensors, metadata={KEY: json.dumps(header)}))
    )


WRITERS.append(save)


def load(net: M, path: str | os.PathLike[str]) -> M:
    """Convert a copy of ``net`` as the saved model was, and load its numbers.

    The file must have the tensors of the network and the stored specs: names, dtypes and shapes.
    Otherwise it raises an error before it takes more memory than its size allows for.

    Args:
        net: the deterministic network that was converted, with any weights, in the dtype of the
            saved model. If the trainable part alone was saved, it has the frozen weights, and they
            are frozen in the result.
        path: the path given to :func:`save`.

    Returns:
        The Bayesian model.

    Raises:
        leanbayes.errors.LoadError: If the file does not fit the network.
    """
    source = _with_suffix(path)
    header = _read(source)
    given = {n: k for n, k in header.tensors.items() if not n.startswith(_LIKELIHOOD)}
    with load_errors(source, "give the network that was saved, or save the model again"):
        layers = _described(header.description)
        _check_names(source, net, layers)
        planned = _plan(net, layers)
        with AllocationLimit(_enough(given, net)):
            model = _build(planned, copy.deepcopy(net), layers)
        rest = header.description.get("rest")
        _compare(source, given, model, whole=rest is None)
        if rest is not None:
            _compare_rest(source, rest, given, model)
        stored = read_tensors(source)
        state = {name: stored[name] for name in given}
        if "scales" not in header.description:
            state = from_version_1(model, state)
        model.load_state_dict(state, strict=False)
    return model


def load_likelihood(path: str | os.PathLike[str]) -> Likelihood:
    """Return the likelihood that was saved with a model, with its trained parameters."""
    source = _with_suffix(path)
    header = _read(source)
    if "likelihood" not in header.description:
        raise LoadError(
            f"{source} was saved without a likelihood; give it to save(model, path, likelihood)"
        )
    given = {
        name.removeprefix(_LIKELIHOOD): kind
        for name, kind in header.tensors.items()
        if name.startswith(_LIKELIHOOD)
    }
    with load_errors(source, "its likelihood is not one of this version; save it again"):
        described = _object(header.description["likelihood"], "the likelihood")
        with AllocationLimit(_enough(given)):
            likelihood = Likelihood.from_dict(described)
        expected = {name: TensorInfo.of(tensor) for name, tensor in likelihood.state_dict().items()}
        alike = {name: (kind.shape, kind.is_float) for name, kind in expected.items()}
        if alike != {name: (kind.shape, kind.is_float) for name, kind in given.items()}:
            raise ValueError(f"it has other tensors than a {type(likelihood).__name__} needs")
        stored = read_tensors(source)
        tensors = {name: stored[f"{_LIKELIHOOD}{name}"] for name in given}
        likelihood.load_state_dict(tensors, assign=True)
    return likelihood


def described(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return how every random layer of a model was made, as JSON can hold it."""
    return _describe(unwrapped(model))


def rebuilt(net: M, layers: Mapping[str, Any]) -> M:
    """Return a copy of a network, converted as :func:`described` says, with first numbers."""
    made = _described({"layers": layers})
    _check_names(Path("the checkpoint"), net, made)
    return _build(_plan(net, made), copy.deepcopy(net), made)


def _with_suffix(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    return path if path.suffix == ".safetensors" else path.with_name(f"{path.name}.safetensors")


def _unique(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict, with tensors that several names share under their first name only."""
    tensors = model.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in reversed(tensors.items())}
    return {name: tensor for name, tensor in tensors.items() if first[id(tensor)] == name}


def _describe_map(layer: RandomMap) -> dict[str, Any]:
    estimator = layer.estimator if layer.held else estimator_for(layer) or layer.estimator
    estimators = [name for name, known in ESTIMATORS.items() if known is estimator]
    require(
        bool(estimators),
        f"{estimator!r} is an estimator of your own, which a file cannot hold; save under "
        "using(model, lb.estimators.auto)",
    )
    for learned in (layer.posterior, layer.prior):
        if not isinstance(learned.spec, Spec):
            raise ValueError("a layer was made without a spec, which a file needs")
    return {
        "posterior": layer.posterior.spec.to_dict(),
        "prior": layer.prior.spec.to_dict(),
        "estimator": estimators[0],
    } | ({"batch_dim": layer.op.batch_dim} if layer.op.batch_dim else {})


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


def _read(source: Path) -> Header:
    """Return the header of a file in the format that this version reads."""
    header = read_header(source)
    number = header.description.get("format")
    if type(number) is not int or not 1 <= number <= ADAPTER_FORMAT:
        raise LoadError(
            f"{source} has format {reprlib.repr(number)}, and this version reads 1 to "
            f"{ADAPTER_FORMAT}; upgrade leanbayes"
        )
    is_adapter, is_relative = number % 2 == 0, number >= FORMAT
    if ("rest" in header.description) != is_adapter or (
        header.description.get("scales") != (_RELATIVE if is_relative else None)
    ):
        raise LoadError(
            f"{source} has format {number}, which does not suit what it holds; save the model again"
        )
    return header


class _Made(NamedTuple):
    """What a random map is made of."""

    posterior: Posterior
    prior: Prior
    estimator: Estimator
    batch_dim: int | None = None


_Layers = dict[str, dict[str, _Made]]
"""The random maps of every converted layer, by their names inside it."""


def _described(description: Mapping[str, Any]) -> _Layers:
    layers = _object(description.get("layers"), "layers")
    require(bool(layers), "it describes no layer")
    made: _Layers = {}
    for name, maps in layers.items():
        maps = _object(maps, f"layer {name!r}")
        require(not all(map(_is_bias, maps)), f"layer {name!r} has no weights")
        made[name] = {i: _made(_object(v, f"map {i!r} of {name!r}")) for i, v in maps.items()}
    return made


def _made(values: Mapping[str, Any]) -> _Made:
    posterior = Spec.from_dict(_object(values.get("posterior"), "posterior"), POSTERIORS)
    prior = Spec.from_dict(_object(values.get("prior"), "prior"), PRIORS)
    if not isinstance(posterior, Posterior) or not isinstance(prior, Prior):
        raise ValueError(f"{posterior!r} and {prior!r} are not a posterior and a prior")
    estimator = values.get("estimator")
    if not isinstance(estimator, str):
        raise ValueError(f"estimator is {reprlib.repr(estimator)}, not a name")
    dim = values.get("batch_dim")
    require(dim is None or type(dim) is int, f"batch_dim is {reprlib.repr(dim)}, not 0 or 1")
    return _Made(posterior, prior, ESTIMATORS[estimator], dim)


def _object(value: Any, name: str) -> Mapping[str, Any]:
    require(isinstance(value, dict), f"{name} is {reprlib.repr(value)}, not an object")
    mapping: Mapping[str, Any] = value
    return mapping


def _is_bias(inner: str) -> bool:
    """Return a kind of layer calls its random biases so."""
    return "bias" in inner


def _check_names(source: Path, net: nn.Module, layers: _Layers) -> None:
    places = list(topmost(net, is_convertible).values())
    known = {name for names in places for name in names}
    for name in layers:
        if name not in known:
            raise LoadError(
                f"{source} was saved from another architecture: it has a layer "
                f"{reprlib.repr(name)} that the given network does not have"
            )
    for first, *others in places:
        for name in others:
            require(layers.get(name) == layers.get(first), f"{first!r} and {name!r} are one layer")


def _plan(net: nn.Module, layers: _Layers) -> Plan:
    """Return every layer as its first map and its first bias are."""
    overrides: dict[str, dict[str, Any]] = {}
    for name, maps in layers.items():
        choice: dict[str, Any] = {}
        for inner, made in maps.items():
            keys = ("bias", "bias_prior") if _is_bias(inner) else ("posterior", "prior")
            choice = dict(zip(keys, made[:2], strict=True)) | choice  # the first decides
            if made.batch_dim is not None:
                choice["batch_dim"] = made.batch_dim
        overrides[name] = choice
    first = next(iter(overrides.values()))
    default = LayerSpec(first["posterior"], first["prior"])
    return choose_layers(net, default, tuple(overrides), overrides=overrides)


def _build(planned: Plan, net: M, layers: _Layers) -> M:
    """Convert the network itself; then give single maps what differs in them."""
    model = planned.apply(net)
    for name, maps in layers.items():
        parts = dict(random_maps(model.get_submodule(name)))
        require(parts.keys() == maps.keys(), f"layer {name!r} has other random maps in the network")
        for inner, made in maps.items():
            part = parts[inner]
            part.estimator = made.estimator
            if part.posterior.spec != made.posterior:
                part.posterior = made.posterior(part.mean_weight, part.op)
            if part.prior.spec != made.prior:
                part.prior = made.prior.of(part.mean_weight, part.op)
    return model


def _enough(given: Mapping[str, TensorInfo], *nets: nn.Module) -> int:
    """More elements than anything needs on the way to a model with these tensors."""
    sizes = [math.prod(kind.shape) for kind in given.values()]
    sizes += [tensor.numel() for net in nets for tensor in net.state_dict().values()]
    return 2 * sum(sizes) + 2**20


def _compare(
    source: Path, given: Mapping[str, TensorInfo], model: nn.Module, *, whole: bool = True
) -> None:
    """Raise unless a file has the tensors that a model needs: all, or those of random layers."""
    expected = {name: TensorInfo.of(tensor) for name, tensor in _unique(model).items()}
    if not whole:
        wanted = random_names(model) | given.keys()
        expected = {name: kind for name, kind in expected.items() if name in wanted}
    shapes, needed = ({n: k.shape for n, k in kinds.items()} for kinds in (given, expected))
    for name in sorted(needed.keys() | shapes.keys()):
        if shapes.get(name) != needed.get(name):
            raise LoadError(
                f"{source} was saved from another architecture: tensor {reprlib.repr(name)} has "
                f"shape {shapes.get(name, 'nothing')} in the file and "
                f"{needed.get(name, 'nothing')} in the given network"
            )
    for name, kind in expected.items():
        if given[name].dtype != kind.dtype:
            raise LoadError(
                f"{source} was saved in another precision: tensor {name!r} is {given[name].dtype} "
                f"in the file and {kind.dtype} in the given network; convert that with net.to(…)"
            )


def _compare_rest(source: Path, rest: Any, given: Collection[str], model: nn.Module) -> None:
    """Raise unless a network has the frozen weights that a file was trained with; freeze them."""
    if rest != fingerprint(_unique(model), given):
        raise LoadError(
            f"{source} holds the trained part of a model whose other weights are not those of the "
            "given network; give the pretrained network that it was trained on"
        )
    for name, parameter in model.named_parameters():
        if name not in given:
            parameter.requires_grad_(False)
