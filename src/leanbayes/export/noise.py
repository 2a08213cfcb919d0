"""Noise as an input: the draws of a traced pass become parts of tensors that it is given.

All draws are made of unit normals: a sign is theirs, a uniform number is their distribution
function. So two tensors feed a pass, whatever is random in it: ``noise [examples, n]`` for what
every example draws, and ``weight_noise [m]`` for what a batch shares.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from leanbayes.errors import require
from leanbayes.torch_private import schema_of

aten = torch.ops.aten


@dataclass(frozen=True)
class Lifted:
    """A pass without separate randomness.

    Args:
        module: a function of the inputs, and then of the noise there is.
        numbers: number of normals per example; ``noise`` comes first, if any.
        shared: number of normals that the whole batch shares; ``weight_noise`` comes last, if any.
        dtype: dtype of both.
    """

    module: fx.GraphModule
    numbers: int
    shared: int
    dtype: torch.dtype


def lift_noise(program: torch.export.ExportedProgram, batch_dim: int) -> Lifted:
    """Replace every draw of an exported pass by a part of tensors that it is given.

    Args:
        program: the pass, without mutation, with a number of examples that may change.
        batch_dim: dimension of its first input that counts them.
    """
    module = program.module(check_guards=False)
    graph = module.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    size = inputs[0].meta["val"].shape[batch_dim]
    _check_size(graph, size)
    draws = list(_draws(graph))
    dtype = _widest(draws)
    with graph.inserting_after(inputs[-1]):
        shared = _Source(graph.placeholder("weight_noise"), 0, dtype)
    with graph.inserting_after(inputs[-1]):
        own = _Source(graph.placeholder("noise"), 1, dtype)
    for node, law in draws:
        with graph.inserting_before(node):
            _replace(node, law, own, shared, size)
    for source in (own, shared):
        if not source.taken:
            graph.erase_node(source.node)
    _spell_out(graph)
    graph.eliminate_dead_code()
    graph.set_codegen(fx.graph.CodeGen())
    return Lifted(fx.GraphModule(module, graph), own.taken, shared.taken, dtype)


def _check_size(graph: fx.Graph, size: Any) -> None:
    """Raise if the pass ``[members, examples, …]`` has one number of examples only."""
    (outputs,) = (_arguments(node)[0] for node in graph.nodes if node.op == "output")
    rows = outputs[0].meta["val"].shape[1]
    fixed = next((n for n in (size, rows) if isinstance(n, int)), None)
    require(
        fixed is None,
        f"the forward pass works for {fixed} examples only; let it read their number from "
        "x.shape, so that batches of every size can be predicted",
    )


class _Source:
    """A tensor of unit normals, and how many numbers of it are taken (of every example)."""

    def __init__(self, node: fx.Node, dim: int, dtype: torch.dtype) -> None:
        self.node, self.dim, self.dtype, self.taken = node, dim, dtype, 0

    def take(self, count: int, shape: list[int], dtype: torch.dtype) -> fx.Node:
        """Return the next numbers, in a shape in which −1 is what examples make of it."""
        graph, start = self.node.graph, self.taken
        self.taken += count
        part = graph.call_function(aten.slice.Tensor, (self.node, self.dim, start, self.taken))
        e = graph.call_function(aten.reshape.default, (part, shape))
        if dtype == self.dtype:
            return e
        return graph.call_function(aten._to_copy.default, (e,), {"dtype": dtype})


Law = Callable[[fx.Graph, fx.Node, fx.Node], fx.Node]
"""Makes of unit normals what a node draws."""


def _call(graph: fx.Graph, op: Any, *args: Any) -> fx.Node:
    return graph.call_function(op, args)


def _arguments(node: fx.Node) -> tuple[Any, ...]:
    """Return what a node is called with: nodes, numbers, and lists of them."""
    return node.args


def _normal(graph: fx.Graph, node: fx.Node, e: fx.Node) -> fx.Node:
    return e


def _moved_normal(graph: fx.Graph, node: fx.Node, e: fx.Node) -> fx.Node:
    mean, std = (*_arguments(node)[1:3], *(0.0, 1.0)[len(node.args) - 1 :])[:2]
    if (mean, std) == (0.0, 1.0):
        return e
    return _call(graph, aten.add.Scalar, _call(graph, aten.mul.Scalar, e, std), mean)


def _uniform(graph: fx.Graph, node: fx.Node, e: fx.Node) -> fx.Node:
    """Return Φ(e): uniform between 0 and 1."""
    half = _call(graph, aten.mul.Scalar, e, math.sqrt(0.5))
    erf = _call(graph, aten.erf.default, half)
    return _call(graph, aten.mul.Scalar, _call(graph, aten.add.Scalar, erf, 1.0), 0.5)


def _cauchy(graph: fx.Graph, node: fx.Node, e: fx.Node) -> fx.Node:
    centered = _call(graph, aten.sub.Scalar, _uniform(graph, node, e), 0.5)
    return _call(graph, aten.tan.default, _call(graph, aten.mul.Scalar, centered, math.pi))


def _on(graph: fx.Graph, e: fx.Node, probability: float) -> fx.Node:
    """Ones with a probability, else zeros."""
    place = math.sqrt(2) * float(torch.erfinv(torch.tensor(2.0 * probability - 1).double()))
    below = _call(graph, aten.lt.Scalar, e, place)
    dtype = e.meta["dtype"]
    return graph.call_function(aten._to_copy.default, (below,), {"dtype": dtype})


def _coin(graph: fx.Graph, node: fx.Node, e: fx.Node) -> fx.Node:
    drawn = _on(graph, e, 0.5)
    dtype = node.meta["val"].dtype
    return graph.call_function(aten._to_copy.default, (drawn,), {"dtype": dtype})


def _bernoulli(graph: fx.Graph, node: fx.Node, e: fx.Node) -> fx.Node:
    return _on(graph, e, float(_arguments(node)[1]))


def _dropout(graph: fx.Graph, node: fx.Node, e: fx.Node) -> fx.Node:
    """Return what is kept, stretched; the mask, of which nobody asks, is left out."""
    x, rate = _arguments(node)[:2]
    kept = 1 - float(rate)
    mask = _call(graph, aten.mul.Scalar, _on(graph, e, kept), 1 / kept if kept else 0.0)
    return _call(graph, aten.mul.Tensor, x, mask)


_LAWS: Mapping[Any, Law] = {
    aten.randn.default: _normal,
    aten.randn_like.default: _normal,
    aten.normal_functional.default: _moved_normal,
    aten.rand.default: _uniform,
    aten.rand_like.default: _uniform,
    aten.cauchy.default: _cauchy,
    aten.randint.default: _coin,
    aten.randint_like.default: _coin,
    aten.bernoulli.p: _bernoulli,
    aten.native_dropout.default: _dropout,
}


def _draws(graph: fx.Graph) -> Iterator[tuple[fx.Node, Law]]:
    """Nodes that draw, with the laws of what they draw; raises where one is not known."""
    for node in graph.nodes:
        tags = getattr(node.target, "tags", ())
        if node.op != "call_function" or torch.Tag.nondeterministic_seeded not in tags:
            continue
        if _is_still(node):
            continue
        law = _LAWS.get(node.target)
        coin = node.target in (aten.randint.default, aten.randint_like.default)
        if law is None or (coin and _faces(node) != 2):
            raise ValueError(
                f"the model draws by {node.target}, which cannot be made of normal noise; draw "
                "by torch.randn, torch.rand or torch.bernoulli, or export the mean network with "
                "samples=None"
            )
        yield node, law


def _faces(node: fx.Node) -> Any:
    """Return the number below which a node draws whole numbers."""
    return _arguments(node)[0 if node.target is aten.randint.default else 1]


def _is_still(node: fx.Node) -> bool:
    """Return whether an operation that may drop something drops nothing here."""
    target: Any = node.target
    schema = schema_of(target).arguments
    given = dict(zip((a.name for a in schema), node.args, strict=False)) | dict(node.kwargs)
    rates = [given.get(a.name, a.default_value) for a in schema if a.name in ("dropout_p", "p")]
    if given.get("train", True) is False:
        return True
    return node.target is not aten.bernoulli.p and rates == [0.0]


def _value(node: fx.Node) -> torch.Tensor:
    value: Any = node.meta["val"]
    return value[0] if isinstance(value, tuple | list) else value


def _widest(draws: list[tuple[fx.Node, Law]]) -> torch.dtype:
    kinds = {_value(node).dtype for node, _ in draws}
    return torch.float64 if torch.float64 in kinds else torch.float32


def _replace(node: fx.Node, law: Law, own: _Source, shared: _Source, size: torch.SymInt) -> None:
    like = _value(node)
    dtype = like.dtype if like.dtype.is_floating_point else own.dtype
    total = math.prod(like.shape)
    shape = [d if isinstance(d, int) else -1 for d in like.shape]
    if isinstance(total, int):
        e = shared.take(total, shape, dtype)
    else:
        e = own.take(_per_example(total, size, like.shape), shape, dtype)
    e.meta["dtype"] = dtype
    drawn = law(node.graph, node, e)
    if node.target is not aten.native_dropout.default:
        node.replace_all_uses_with(drawn)
    for user in list(node.users):  # parts of what a dropout gives: values, and a mask
        require(
            _arguments(user)[1] == 0 or not user.users,
            "the model reads the mask of a dropout layer; export the mean network with "
            "samples=None",
        )
        user.replace_all_uses_with(drawn)
        node.graph.erase_node(user)
    node.graph.erase_node(node)


def _per_example(total: Any, size: Any, shape: torch.Size) -> int:
    """Return how many numbers an example draws of so many in all."""
    share = (total.node.expr / size.node.expr).cancel()
    unknown = sum(not isinstance(d, int) for d in shape)
    require(
        bool(share.is_Integer) and unknown == 1,
        f"the model draws noise of shape {tuple(shape)}, which is not a whole number for each of "
        f"{size} examples; export the mean network with samples=None",
    )
    return int(share)


def _spell_out(graph: fx.Graph) -> None:
    """Write what ONNX knows for fixed sizes only so that it knows it for batches of any size."""
    for node in list(graph.nodes):
        if node.target is aten.repeat_interleave.self_int and isinstance(node.args[2], int):
            _spell_out_repeats(graph, node)
        elif node.target is aten.split.Tensor and isinstance(node.args[1], fx.Node):
            _spell_out_split(graph, node)


def _spell_out_repeats(graph: fx.Graph, node: fx.Node) -> None:
    tensor, repeats, dim = _arguments(node)[:3]
    sizes = [-1] * (_value(node).ndim + 1)
    sizes[dim + 1] = repeats
    with graph.inserting_before(node):
        apart = _call(graph, aten.unsqueeze.default, tensor, dim + 1)
        wide = _call(graph, aten.expand.default, apart, sizes)
        rows = _call(graph, aten.flatten.using_ints, wide, dim, dim + 1)
    node.replace_all_uses_with(rows)
    graph.erase_node(node)


def _spell_out_split(graph: fx.Graph, node: fx.Node) -> None:
    """Equal parts as entries of a new dimension."""
    tensor, size, dim = (*_arguments(node), 0)[:3]
    parts = node.meta["val"]
    if len({str(part.shape[dim]) for part in parts}) > 1:
        return
    with graph.inserting_before(node):
        blocks = _call(graph, aten.unflatten.int, tensor, dim, [len(parts), size])
    for user in list(node.users):
        with graph.inserting_before(user):
            part = _call(graph, aten.select.int, blocks, dim, user.args[1])
        user.replace_all_uses_with(part)
        graph.erase_node(user)
    graph.erase_node(node)
