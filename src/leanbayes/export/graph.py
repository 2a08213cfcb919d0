"""The ONNX graph of a prediction: one pass for every sample, and behind them the outputs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from leanbayes.errors import require
from leanbayes.likelihoods import Categorical, Likelihood
from leanbayes.prediction.predict import Prediction

_HALVINGS = 28
"""How often a bracket of a quantile is halved: more often than single precision can tell."""


@dataclass(frozen=True, eq=False)
class OutputSpec:
    """Outputs that an exported network is to have."""

    likelihood: Likelihood = field(default_factory=Categorical)
    levels: tuple[float, ...] = (0.05, 0.5, 0.95)
    shift: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        for level in self.levels:
            require(0 < level < 1, f"quantile {level} does not lie between 0 and 1")


class OutputGraph(nn.Module):
    """Map of samples ``[…, batch, …]`` to a tuple of outputs, whose names are ``names``.

    Classes get their averaged ``probabilities``, the ``entropy`` and the ``mutual_information``;
    numbers get ``mean`` and ``standard_deviation`` of a new target, ``aleatoric`` and ``epistemic``
    variances and, where noise is normal, ``quantiles [levels, batch, …]``.
    """

    def __init__(self, spec: OutputSpec, samples: Tensor, *, stacked: bool) -> None:
        super().__init__()
        likelihood = self.likelihood = spec.likelihood
        self.spec, self.stacked = spec, stacked
        self.names: tuple[str, ...]
        if likelihood.has_classes(samples):
            self.names = ("probabilities", "entropy", "mutual_information")
        elif "mean" in likelihood.answers(samples):
            self.names = ("mean", "standard_deviation", "aleatoric", "epistemic")
            if spec.levels and isinstance(likelihood.distribution(samples), Normal):
                self.names += ("quantiles",)
        else:
            raise ValueError(
                f"{type(likelihood).__name__} has neither classes nor a mean, so there is nothing "
                "to export; give its distribution a mean and a variance"
            )

    def forward(self, outputs: Tensor) -> tuple[Tensor, ...]:
        samples = outputs.flatten(0, 1) if self.stacked else outputs
        return self.of(Prediction(samples, self.likelihood))

    def of(self, prediction: Prediction) -> tuple[Tensor, ...]:
        """Return the outputs of a prediction."""
        if self.names[0] == "probabilities":
            return prediction.probs, prediction.entropy, prediction.mutual_information
        shift, scale = self.spec.shift, self.spec.scale
        mean, aleatoric, epistemic = prediction.mean, prediction.aleatoric, prediction.epistemic
        variance = aleatoric + epistemic
        values = (
            shift + scale * mean,
            scale * variance.sqrt(),
            scale**2 * aleatoric,
            scale**2 * epistemic,
        )
        if "quantiles" not in self.names:
            return values
        return *values, shift + scale * self._quantiles(prediction.law, mean, variance)

    def _quantiles(self, law: Distribution, mean: Tensor, variance: Tensor) -> Tensor:
        """Invert by bisection with a fixed number of steps, between bounds that always hold.

        A quantile of level ``p`` is at least ``mean − std √((1 − p) / p)`` and at most
        ``mean + std √(p / (1 − p))``: Cantelli's inequality.
        """
        level = mean.new_tensor(self.spec.levels).reshape(-1, *(1,) * mean.ndim)
        std = variance.sqrt()
        low = mean - std * ((1 - level) / level).sqrt()
        high = mean + std * (level / (1 - level)).sqrt()
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            below = law.cdf(middle.unsqueeze(1)).mean(1) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2


@dataclass(frozen=True)
class PassNoise:
    """The unit normals of all passes, and where they come from.

    Args:
        samples: number of passes.
        numbers: number of normals per example in one pass.
        shared: number of normals that the whole batch shares.
        dtype: dtype of all.
        given: whether they are inputs of the graph; if not, it draws them.
    """

    samples: int
    numbers: int
    shared: int
    dtype: torch.dtype
    given: bool

    @property
    def of_pass(self) -> dict[str, tuple[int | str, ...]]:
        """The noise that one pass needs, by name."""
        own: tuple[int | str, ...] = ("batch", self.numbers)
        shapes = {"noise_of_pass": own, "weight_noise_of_pass": (self.shared,)}
        return {name: shape for name, shape in shapes.items() if shape[-1]}

    @property
    def of_all(self) -> dict[str, tuple[int | str, ...]]:
        """The same for all passes."""
        shapes = self.of_pass.items()
        return {name.removesuffix("_of_pass"): (self.samples, *shape) for name, shape in shapes}


def scan_passes(model: Any, noise: PassNoise, first: str, batch_dim: int) -> None:
    """Let an ONNX model run a pass for every sample.

    What does not depend on noise is computed once; the rest of the pass is the body of a Scan.

    Args:
        model: from inputs and the noise of one pass to ``outputs``, and from ``samples``, which
            are the outputs of all passes, to answers. It is changed.
        noise: noise of all passes.
        first: the name of the input that counts examples.
        batch_dim: dimension that counts examples.
    """
    from onnx import TensorProto, helper

    kind = TensorProto.DOUBLE if noise.dtype == torch.float64 else TensorProto.FLOAT
    graph = model.graph
    apart = {*noise.of_pass, "samples"}
    before, rest = _parted(graph.node, apart.copy())
    body, after = _parted(rest, {"samples"})
    inputs = [value for value in graph.input if value.name not in apart]
    if noise.given:
        scanned, slices = list(noise.of_all), _values(noise.of_pass, kind)
        inputs += _values(noise.of_all, kind)
    else:
        scanned, slices = ["sample_numbers"], _values({"sample_number": ()}, TensorProto.INT64)
        numbers = helper.make_tensor(
            "numbers", TensorProto.INT64, [noise.samples], range(noise.samples)
        )
        before = [helper.make_node("Constant", [], scanned, value=numbers), *before]
        body = [*_draws(noise, kind, first, batch_dim), *body]
    (output,) = (value for value in graph.output if value.name == "outputs")
    answers = [value for value in graph.output if value.name != "outputs"]
    scan = helper.make_node(
        "Scan",
        scanned,
        ["samples"],
        body=helper.make_graph(body, "one_pass", slices, [output]),
        num_scan_inputs=len(scanned),
    )
    _put(graph.node, [*before, scan, *after])
    _put(graph.input, inputs)
    _put(graph.output, answers)


def rename_values(graph: Any, names: Mapping[str, str]) -> None:
    """Give values of a graph, and of graphs inside of it, other names."""
    other = {name: f"{name}_inside" for name in names.values()} | dict(names)
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = other.get(value.name, value.name)
    for node in graph.node:
        for values in (node.input, node.output):
            values[:] = [other.get(name, name) for name in values]
        for inner in _nested(node):
            rename_values(inner, names)


def _nested(node: Any) -> list[Any]:
    return [graph for a in node.attribute for graph in ([a.g] if a.HasField("g") else a.graphs)]


def _put(field: Any, values: list[Any]) -> None:
    """Refill a repeated field; values may come from it."""
    kept = [type(value).FromString(value.SerializeToString()) for value in values]
    del field[:]
    field.extend(kept)


def _values(shapes: dict[str, Any], kind: int) -> list[Any]:
    from onnx import helper

    return [helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items()]


def _parted(nodes: Iterable[Any], sources: set[str]) -> tuple[list[Any], list[Any]]:
    """Return nodes that do not depend on some values, and nodes that do, or may."""
    apart: tuple[list[Any], list[Any]] = ([], [])
    for node in nodes:
        read = {name for graph in _nested(node) for inner in graph.node for name in inner.input}
        depends = bool(sources & {*node.input, *read})
        if depends:
            sources |= set(node.output)
        apart[depends].append(node)
    return apart


def _draws(noise: PassNoise, kind: int, first: str, batch_dim: int) -> list[Any]:
    """Nodes that draw the unit normals of one pass, for as many examples as the input has."""
    from onnx import TensorProto, helper

    nodes = []
    if noise.shared:
        options: dict[str, Any] = {"dtype": kind, "shape": [noise.shared]}
        nodes.append(helper.make_node("RandomNormal", [], ["weight_noise_of_pass"], **options))
    if noise.numbers:
        count = helper.make_tensor("numbers", TensorProto.INT64, [1], [noise.numbers])
        names = ("noise_rows", "noise_columns", "noise_shape", "noise_zeros")
        rows, columns, shape, zeros = names
        nodes += [
            helper.make_node("Shape", [first], [rows], start=batch_dim, end=batch_dim + 1),
            helper.make_node("Constant", [], [columns], value=count),
            helper.make_node("Concat", [rows, columns], [shape], axis=0),
            helper.make_node("ConstantOfShape", [shape], [zeros]),
            helper.make_node("RandomNormalLike", [zeros], ["noise_of_pass"], dtype=kind),
        ]
    return nodes
