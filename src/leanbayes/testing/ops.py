"""The contract of an op."""

import torch
from torch import Tensor

from leanbayes.ops import LinearOp
from leanbayes.testing.assertions import assert_close, seeded


def check_op(op: LinearOp, x: Tensor, columns: int, rows: int = 4) -> None:
    """Check that an op acts linearly and row by row, and that squares give variances.

    Args:
        op: the op.
        x: an input of it, float64 (or indices).
        columns: number of columns of a matrix for this input.
        rows: number of rows to try, a multiple of the op's groups.

    Raises:
        AssertionError: If a part of the contract does not hold.
    """
    with seeded(0):
        a = torch.randn(rows, columns, dtype=torch.float64)
        s = torch.randn(x.shape[0], op.input_channels(columns), dtype=torch.float64)
    basis = [torch.zeros_like(a).index_fill(1, torch.tensor([j]), 1.0) for j in range(columns)]
    patches = torch.stack([op(x, e) for e in basis], -1).movedim(
        op.channel_dim - (op.channel_dim < 0), -2
    )
    # patches [batch, …, rows, columns]: what each row reads
    y = op(x, a).movedim(op.channel_dim, -1)
    assert y.shape[-1] == rows, f"{op} gives {y.shape[-1]} output channels for {rows} rows"
    assert_close(y, (patches * a).sum(-1), "the op is not the matrix times the patch")
    half = op(x, a[: rows // 2].repeat_interleave(2, 0)).movedim(op.channel_dim, -1)
    if op.groups == 1:
        expected = y[..., : rows // 2].repeat_interleave(2, -1)
        assert_close(half, expected, "the op does not act row by row")
    variance = op(op.square(x), a.square()).movedim(op.channel_dim, -1)
    assert_close(
        variance, (patches.square() * a.square()).sum(-1), "square(x) does not give variances"
    )
    assert_close(op.matrix(op.unmatrix(a)), a, "unmatrix does not undo matrix")
    scaled = op.scaled(x, s, a).movedim(op.channel_dim, -1)
    factor = op.column_factor(s, rows)
    explicit = torch.stack(
        [op(x[i : i + 1], a * factor[i]).movedim(op.channel_dim, -1)[0] for i in range(len(x))]
    )
    assert_close(scaled, explicit, "scaled(x, s, a) is not op(x ∘ s, a)")
