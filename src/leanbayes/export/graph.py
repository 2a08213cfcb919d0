"""The ONNX graph of a prediction: one pass for every sample, and behind them the answers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class PassNoise:
    """The unit normals of all passes, and where they come from.

    Args:
        samples: how many passes there are.
        numbers: how many normals every example needs in one.
        shared: how many the whole batch shares.
        dtype: of all.
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
        noise: of all passes.
        first: the name of the input that counts examples.
        batch_dim: in which dimension.
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
    """Give values of a graph, and of graphs inside of it, other names.

    Args:
        graph: is changed.
        names: the new names by the old ones; a value that has a new name already gets another.
    """
    other = {name: f"{name}_inside" for name in names.values()} | dict(names)
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = other.get(value.name, value.name)
    for node in graph.node:
        for field in (node.input, node.output):
            field[:] = [other.get(name, name) for name in field]
        for inner in _nested(node):
            rename_values(inner, names)


def _nested(node: Any) -> list[Any]:
    return [graph for a in node.attribute for graph in ([a.g] if a.HasField("g") else a.graphs)]


def _put(field: Any, values: list[Any]) -> None:
    """Fill a repeated field anew; values may come from it."""
    kept = [type(value).FromString(value.SerializeToString()) for value in values]
    del field[:]
    field.extend(kept)


def _values(shapes: dict[str, Any], kind: int) -> list[Any]:
    from onnx import helper

    return [helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items()]


def _parted(nodes: Iterable[Any], sources: set[str]) -> tuple[list[Any], list[Any]]:
    """Nodes that do not depend on some values, and nodes that do, or may."""
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
