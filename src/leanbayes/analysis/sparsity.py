"""Sparsity of a network: weights, rows, columns and multiply-adds that remain, by layer."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from leanbayes.analysis.log_alpha import biases_of
from leanbayes.display import DisplayTable, shown_as_table
from leanbayes.errors import choose, require
from leanbayes.estimators import mean
from leanbayes.layers import Affine, RandomMap
from leanbayes.layers.matrix_layers import Convolution, TransposedConvolution
from leanbayes.models.random_maps import using
from leanbayes.ops import Conv, ConvTranspose, Linear, LinearOp
from leanbayes.prediction.eval_mode import evaluating

_PLAIN: dict[type[nn.Module], type[Affine]] = {
    nn.Linear: Affine,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), Convolution),
    **dict.fromkeys(
        (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), TransposedConvolution
    ),
}


def plain_op(module: nn.Module) -> LinearOp | None:
    """Return the op of a plain torch layer of exactly one of the classes with a weight matrix."""
    kind = _PLAIN.get(type(module))
    return None if kind is None else kind.op_of(module)


class Remaining(NamedTuple):
    """How many there are, and how many are left."""

    left: int
    of: int

    @property
    def dropped(self) -> float:
        """The share that is gone."""
        return (self.of - self.left) / self.of

    def __str__(self) -> str:
        return f"{thousands(self.left)} of {thousands(self.of)}"


class SparseLayer(NamedTuple):
    """What is left of the matrix of one layer.

    Attributes:
        name: name as in ``named_kl``; the empty name is the model itself.
        weights: those that are not zero for good.
        rows: outputs with any weight left; the paper, which writes the transpose, calls them
            columns.
        columns: inputs (of a convolution, channels at one place of the kernel) with any weight
            left.
        multiply_adds: count per example as computed, zeros or not; ``None`` if not counted.
    """

    name: str
    weights: Remaining
    rows: Remaining
    columns: Remaining
    multiply_adds: int | None = None


@shown_as_table
@dataclass(frozen=True)
class SparsityReport:
    """Remaining weights of every layer, in the network's order; ``print`` shows a table.

    Attributes:
        layers: one entry per weight matrix.
    """

    layers: tuple[SparseLayer, ...]

    @property
    def total(self) -> SparseLayer:
        """All layers together."""
        counts = [row.multiply_adds for row in self.layers]
        known = [count for count in counts if count is not None]
        weights, rows, columns = (_sum(getattr(r, kind) for r in self.layers) for kind in _KINDS)
        return SparseLayer("all", weights, rows, columns, sum(known) if known else None)

    def dropped(self, kind: Literal["weights", "rows", "columns"] = "weights") -> str:
        """Return the percentages removed, as in the paper [matrix normal, tables 1–2].

        Example:
            >>> first, second = (SparseLayer("", *3 * [Remaining(left, 100)]) for left in (70, 39))
            >>> SparsityReport((first, second)).dropped("rows")
            '30-61'
        """
        shares = (choose("kind", kind, row._asdict()).dropped for row in self.layers)
        return "-".join(f"{100 * share:.0f}" for share in shares)

    def __getitem__(self, name: str) -> SparseLayer:
        return choose("layer", name, {row.name: row for row in self.layers})

    def table(self) -> DisplayTable:
        """Return a row for every layer, and one for all together."""
        head = ["layer", *(cell for kind in _KINDS for cell in (kind, "dropped")), "multiply-adds"]
        return DisplayTable(head, [*map(_cells, (*self.layers, self.total))])


_KINDS = ("weights", "rows", "columns")


def _sum(parts: Iterable[Remaining]) -> Remaining:
    left, of = zip(*parts, strict=True)
    return Remaining(sum(left), sum(of))


def _cells(row: SparseLayer) -> list[str]:
    shares = [
        cell
        for left in (row.weights, row.rows, row.columns)
        for cell in (str(left), f"{100 * left.dropped:.0f}%")
    ]
    return [row.name or "(the model)", *shares, thousands(row.multiply_adds)]


def thousands(count: int | None) -> str:
    """Return a count with commas between thousands, or a dash."""
    return "–" if count is None else f"{count:,}"


@torch.no_grad()
def sparsity_report(model: nn.Module, example: Tensor | None = None) -> SparsityReport:
    """Count what is left of every weight matrix [matrix normal, tables 1–2].

    A weight is gone if it is zero without noise: pruned, or zero in a plain layer. Biases are not
    counted. A row or column is left if any weight of it is. Multiply-adds are those that the
    network performs: pruning changes none of them, :func:`~leanbayes.compact` does.

    Args:
        model: a model, converted or not.
        example: a batch, to count multiply-adds with.

    Returns:
        The report, which prints as a table.

    Raises:
        ValueError: If the model has no weight matrix.
    """
    counts = {} if example is None else multiply_adds(model, example)
    layers = tuple(
        SparseLayer(
            name,
            Remaining(int(used.sum()), used.numel()),
            Remaining(int(used.any(1).sum()), used.shape[0]),
            Remaining(int(used.any(0).sum()), used.shape[1]),
            counts.get(name),
        )
        for name, used in _used(model)
    )
    require(bool(layers), "the model has no weight matrix; give one with linear layers")
    return SparsityReport(layers)


def _used(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Which weights are not zero for good, of every matrix that is not a bias."""
    biases = biases_of(model)
    for name, module in model.named_modules():
        op = plain_op(module)
        if isinstance(module, RandomMap) and module not in biases:
            q = module.posterior()
            used = (q.mean != 0) | (q.variance != 0)
            yield name, used.any(0) if used.ndim == 3 else used
        elif op is not None:
            assert isinstance(module.weight, Tensor)
            yield name, op.matrix(module.weight) != 0


@torch.no_grad()
def multiply_adds(model: nn.Module, example: Tensor) -> dict[str, int]:
    """Count multiply-adds per example, by layer: linear layers and convolutions."""
    counts: dict[str, int] = {}

    def count(name: str, op: LinearOp, size: int) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], y: Tensor) -> None:
            positions = _positions(op, inputs[0], y)
            counts[name] = counts.get(name, 0) + size * positions

        return hook

    handles = []
    for name, module in model.named_modules():
        op = module.op if isinstance(module, Affine) else plain_op(module)
        if type(op) in (Linear, Conv, ConvTranspose) and op is not None:
            size = _size(module)
            handles.append(module.register_forward_hook(count(name, op, size)))
    try:
        with evaluating(model), using(model, mean):
            model(example)
    finally:
        for handle in handles:
            handle.remove()
    return counts


def _size(module: nn.Module) -> int:
    """Return how many weights a layer has."""
    if isinstance(module, Affine):
        return module.posterior().event_shape.numel()
    return module.get_parameter("weight").numel()


def _positions(op: LinearOp, x: Tensor, y: Tensor) -> int:
    """Return how often one example meets every weight."""
    source = x if isinstance(op, ConvTranspose) else y
    examples = source.shape[op.batch_dim] if op.is_batched(x) else 1
    return source.numel() // (source.shape[op.channel_dim] * max(examples, 1))
