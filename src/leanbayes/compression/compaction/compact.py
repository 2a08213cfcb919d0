"""compact: what is switched off is removed, and the network is smaller; with a report of it."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from leanbayes.analysis.sparsity import multiply_adds, thousands
from leanbayes.compression.compaction.channel_rules import BatchNorm
from leanbayes.compression.compaction.channels import UntraceableError, ensure
from leanbayes.compression.compaction.cut_layers import LayerWithWeights
from leanbayes.compression.compaction.graph import IN_USE, Graph, Visit
from leanbayes.conversion.convert import topmost
from leanbayes.display import DisplayTable, shown_as_table
from leanbayes.distributions import Masked
from leanbayes.errors import require
from leanbayes.estimators import mean
from leanbayes.layers import Layer, is_bayesian
from leanbayes.models.random_maps import random_maps, using
from leanbayes.precision import wide_dtype
from leanbayes.prediction.eval_mode import evaluating


class CompactLayer(NamedTuple):
    """The matrix of one layer, ``[outputs, inputs · kernel]``, before and after."""

    name: str
    before: tuple[int, int]
    after: tuple[int, int]
    multiply_adds_before: int | None = None
    multiply_adds_after: int | None = None


class StillMasked(NamedTuple):
    """Something that stays as it was."""

    name: str
    units: int
    why: str

    def __str__(self) -> str:
        count = f", {self.units} of its units" if self.units else ""
        return f"kept: {self.name or '(the model)'}{count}: {self.why}"


@shown_as_table
@dataclass(frozen=True)
class CompactionReport:
    """Report of :func:`~leanbayes.compact`; ``print`` shows a table.

    Attributes:
        layers: every layer with weights that was followed.
        kept: units that are switched off but could not be removed, with reasons.
    """

    layers: tuple[CompactLayer, ...]
    kept: tuple[StillMasked, ...]

    @property
    def multiply_adds(self) -> tuple[int, int] | None:
        """Of one example in all these layers, before and after; ``None`` without an example."""
        pairs = [(row.multiply_adds_before, row.multiply_adds_after) for row in self.layers]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        if len(known) < len(pairs) or not known:
            return None
        before, after = zip(*known, strict=True)
        return sum(before), sum(after)

    def table(self) -> DisplayTable:
        """Return a row for every layer, one for all together, and what was kept."""
        table = []
        for row in self.layers:
            counts = (row.multiply_adds_before, row.multiply_adds_after)
            shapes = (f"{rows} × {columns}" for rows, columns in (row.before, row.after))
            table.append([row.name or "(the model)", *shapes, *map(thousands, counts)])
        totals = self.multiply_adds
        if totals is not None:
            table.append(["all", "", "", *map(thousands, totals)])
        head = ["layer", "before", "after", "multiply-adds", "after"]
        return DisplayTable(head, table, notes=[*map(str, self.kept)])


M = TypeVar("M", bound=nn.Module)
Size = tuple[int, int]


class Compacted(NamedTuple, Generic[M]):
    """A smaller network, and a report of the changes.

    Attributes:
        model: the network.
        report: sizes before and after, and what was kept and why.
    """

    model: M
    report: CompactionReport

    def __repr__(self) -> str:
        return f"{type(self.model).__name__}, compacted\n{self.report}"

    def _repr_html_(self) -> str:
        return self.report.table().html()


def compact(model: M, example: Tensor | None = None, *, exact: bool = True) -> Compacted[M]:
    """Remove pruned units: return a smaller network that computes the same.

    A unit goes if nothing reads it, or if it is a constant that the next layers can take over. That
    is followed through linear layers, convolutions, batch norm, activations, pooling, flattening
    and sums, on a traced graph. What is not in that table keeps the channels it meets, and the
    report names it. In eval mode the outputs are the same up to rounding, and the weights that are
    left have the same law: a Bayesian network stays one, and its KL counts what is left. What is
    kept of units that are off, and why, is in ``docs/sparsity.md``.

    Args:
        model: a pruned model (:func:`~leanbayes.prune`), or a plain one some of whose weights are
            zero, such as ``lb.deterministic(model)``; left as it is.
        example: a batch. It tells where channels are if a batch norm follows a linear layer; with
            it, multiply-adds are counted and the result is compared with the model.
        exact: ``False`` folds constants by the means of random weights as well; the noise of these
            weights is lost, and only outputs on means are the same.

    Returns:
        The smaller network and a report of what was removed.

    Raises:
        ValueError: If ``model`` is not a module.

    Example:
        >>> import leanbayes as lb
        >>> net = nn.Sequential(nn.Linear(9, 30), nn.ReLU(), nn.Linear(30, 2))
        >>> model = lb.convert(net, lb.MeanField(), lb.priors.GroupARD())
        >>> pruned = lb.prune(model, by="snr", groups="row", keep=0.2, include=["0"])
        >>> small, report = lb.compact(lb.deterministic(pruned), torch.randn(5, 9))
        >>> small[0].weight.shape, small[2].weight.shape, report.multiply_adds
        (torch.Size([6, 9]), torch.Size([2, 6]), (330, 66))
    """
    require(isinstance(model, nn.Module), f"{model!r} is not a model; give an nn.Module")
    small = copy.deepcopy(model)
    counts = {} if example is None else multiply_adds(small, example)
    try:
        layers, kept = _shrink(small, example, exact=exact)
        if example is not None:
            _check(model, small, example)
    except UntraceableError as reason:
        whole = CompactionReport((), (StillMasked("", 0, str(reason)),))
        return Compacted(copy.deepcopy(model), whole)
    after = {} if example is None else multiply_adds(small, example)
    rows = (CompactLayer(n, *sizes, counts.get(n), after.get(n)) for n, sizes in layers.items())
    return Compacted(small, CompactionReport(tuple(rows), kept))


def _shrink(
    model: nn.Module, example: Tensor | None, *, exact: bool
) -> tuple[dict[str, tuple[Size, Size]], tuple[StillMasked, ...]]:
    """Make a model smaller; returns the sizes of its layers before and after, and what stays."""
    one_layer = isinstance(model, Layer) or not any(True for _ in model.children())
    ensure(not one_layer, "it is one layer, whose inputs and outputs stay")
    with torch.no_grad(), evaluating(model), using(model, mean):
        graph = Graph(model, example, exact=exact)
    graph.settle()
    layers, kept = _sizes(graph), tuple(_kept(graph, model))
    _cut(graph)
    with torch.no_grad(), evaluating(model), using(model, mean):
        graph.check_code()
    return layers, kept


def _sizes(graph: Graph) -> dict[str, tuple[Size, Size]]:
    """Return rows and columns of every matrix before and after, by name of the layer."""
    sizes = {}
    for step in graph.steps:
        if isinstance(layer := step.module, LayerWithWeights):
            kept, inputs, groups = _remaining(step, layer)
            before = (layer.outputs, layer.inputs // layer.op.groups * layer.kernel)
            sizes[step.name] = (before, (len(kept), len(inputs) // groups * layer.kernel))
    return sizes


def _remaining(step: Visit, layer: LayerWithWeights) -> tuple[Tensor, Tensor, int]:
    """Return the outputs, the inputs and the number of groups that are left of a layer."""
    rows = step.made.space.root.kept
    every = torch.ones(layer.inputs, dtype=torch.bool)
    inputs = every if step.read is None else step.read.kept_features()
    groups = int(rows.sum()) * layer.op.groups // layer.outputs if layer.op.groups > 1 else 1
    return rows.nonzero().flatten(), inputs.nonzero().flatten(), groups


def _cut(graph: Graph) -> None:
    """Make every layer as small as it can be; those that lose nothing are not touched."""
    for step in graph.steps:
        layer = step.module
        if isinstance(layer, BatchNorm):
            _cut_norm(layer, step.made.kept_features())
        elif isinstance(layer, LayerWithWeights):
            rows, inputs, groups = _remaining(step, layer)
            if (len(rows), len(inputs)) == (layer.outputs, layer.inputs):
                continue
            layer.cut(rows, inputs, groups, _fold(step, layer)[rows])


def _fold(step: Visit, layer: LayerWithWeights) -> Tensor:
    """Return what removed constants add to the biases of a layer; others go into its weights."""
    read = step.read
    if read is None:
        return torch.zeros_like(layer.bias)
    gone = ~read.kept_features() & read.constant
    if layer.op.groups == 1:
        lost = step.lost()
        gone = gone & ~lost
        carrier = layer.carrier(read, lost) if bool(lost.any()) else None
        if carrier is not None:
            layer.carry(read.values, lost.nonzero().flatten(), carrier)
    return layer.shift(read.values, gone.expand_as(layer.used))


@torch.no_grad()
def _cut_norm(norm: BatchNorm, features: Tensor) -> None:
    if bool(features.all()):
        return
    norm.num_features = int(features.sum())
    for name, tensor in (*norm.named_parameters(), *norm.named_buffers()):
        if tensor.ndim:
            left = tensor.detach()[features.to(tensor.device)]
            trained = isinstance(tensor, nn.Parameter)
            made = nn.Parameter(left, requires_grad=tensor.requires_grad) if trained else left
            setattr(norm, name, made)


def _kept(graph: Graph, model: nn.Module) -> Iterator[StillMasked]:
    """What is switched off and stays, and the operations that channels are not followed through."""
    for step in graph.steps:
        layer, space = step.module, step.made.space.root
        if not isinstance(layer, LayerWithWeights):
            continue
        off = layer.off(step.read) & space.kept
        reasons = [_reason(space.cause(int(i)), layer) for i in off.nonzero()]
        for why in dict.fromkeys(reasons):
            yield StillMasked(step.name, reasons.count(why), why)
    yield from (StillMasked(name, 0, why) for name, why in graph.barriers.items())
    followed = {step.name for step in graph.steps} | graph.barriers.keys()
    for layer, names in topmost(model, is_bayesian).items():
        laws = [part.posterior() for _, part in random_maps(layer)]
        if followed.isdisjoint(names) and any(isinstance(q, Masked) for q in laws):
            why = f"{type(layer).__name__}, or a parent of it, is not in the table of operations"
            yield StillMasked(names[0], 0, why)


def _reason(cause: str, layer: LayerWithWeights) -> str:
    if cause != IN_USE:
        return cause
    if layer.random_bias:
        return "their biases are random"
    return "what reads them meets more than constants: another summand, or a padded pooling"


@torch.no_grad()
def _check(model: nn.Module, small: nn.Module, example: Tensor) -> None:
    """Raise unless both give the same outputs, up to rounding."""
    outputs = []
    for each in (model, small):
        with evaluating(each), using(each, mean):
            outputs.append(list(_tensors(each(example))))
    for theirs, ours in zip(*outputs, strict=True):
        tolerance = 1e-4 if theirs.dtype == wide_dtype(theirs.dtype) else 0.05
        size = 1 + theirs.nan_to_num().abs().max()
        close = torch.allclose(ours, theirs, 0.0, float(tolerance * size), equal_nan=True)
        ensure(close, "the smaller network did not give the same outputs for the example")


def _tensors(output: Any) -> Iterator[Tensor]:
    """The tensors of an output, which may be a tuple or a mapping of them."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, tuple | list | Mapping):
        for part in output.values() if isinstance(output, Mapping) else output:
            yield from _tensors(part)
