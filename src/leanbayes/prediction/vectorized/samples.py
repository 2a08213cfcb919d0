"""Shared noise: all samples of a prediction in one pass, with noise that examples share.

A prediction needs the law of each example's own outputs and nothing of how two examples vary
together. So a number of noise may serve several examples, and the moments of the first random
layer, which no noise has reached, are computed once for all samples.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from leanbayes.distributions import Factor, Map, Moments, NoiseSource, WeightDistribution
from leanbayes.distributions.base import dispatch
from leanbayes.kernels import Sharing, windows
from leanbayes.ops import LinearOp
from leanbayes.prediction.vectorized.batch_independence import RowsApart
from leanbayes.torch_private import outside_vmap

SHARED_BY = 10
"""How many examples use one number of noise."""


def shared_draws(examples: int) -> int:
    """Return how many draws serve so many examples, each about ten of them."""
    return -(-examples // SHARED_BY)


def repeated(draws: Tensor, examples: int) -> Tensor:
    """Return draws in dimension 1, each for the examples that share it."""
    return draws.repeat_interleave(SHARED_BY, 1)[:, :examples]


class SharedNoise(NoiseSource):
    """Noise of the samples that one pass runs at once, as the vmapped axis of tensors behind it."""

    question = "samples"

    def __init__(self, index: Tensor, apart: RowsApart) -> None:
        self.index = index
        self.apart = apart

    def outputs(
        self, q: WeightDistribution, x: Tensor, op: LinearOp, bias: Tensor | None = None
    ) -> Tensor:
        self.apart.expect(x, op.batch_dim)
        with self.apart.paused():
            y = outside_vmap(x, partial(_outputs, q, op, bias))
        return self.apart.follow(y, op.batch_dim)

    def draw(self, law: Moments, op: LinearOp) -> Tensor:
        raise TypeError("a law is of one sample; draw outputs, which know all of them")

    def per_example(self, draw: Callable[[tuple[int, ...]], Tensor], examples: int) -> Tensor:
        """Draw ``[examples, …]`` for every sample, each shared by about ten examples."""

        def draws(samples: int, place: int | None, index: Tensor) -> tuple[Tensor, int]:
            return repeated(draw((samples, shared_draws(examples))), examples), 0

        return outside_vmap(self.index, draws)

    def seen(self, drawn: Map, op: LinearOp) -> Map:
        return ApartMap(drawn, op.batch_dim, self.apart)


@dataclass(frozen=True, eq=False)
class ApartMap:
    """A map with separate noise for every row, as a pass that follows rows sees it."""

    drawn: Callable[[Tensor], Tensor]
    batch_dim: int
    apart: RowsApart

    def __call__(self, x: Tensor, /) -> Tensor:
        self.apart.expect(x, self.batch_dim)
        with self.apart.paused():
            y = self.drawn(x)
        return self.apart.follow(y, self.batch_dim)


def _outputs(
    q: WeightDistribution,
    op: LinearOp,
    bias: Tensor | None,
    samples: int,
    place: int | None,
    x: Tensor,
) -> tuple[Tensor, int]:
    """Return one draw for each sample: samples become rows where the input differs between them."""
    dim = op.batch_dim
    x = x.unsqueeze(dim) if place is None else x.movedim(place, dim)
    given, rows = (x.shape[dim], x.shape[dim + 1]), x.flatten(dim, dim + 1)
    sharing = Sharing(samples, given[1], SHARED_BY)
    drawn: Tensor | None = dispatch("samples", q, op, rows, bias, sharing) if dim == 0 else None
    if drawn is not None:
        return op.silence(x, drawn.unflatten(0, (samples, given[1]))), 0
    moments = q.moments(rows, op)
    y = op.silence(x, moments.rsample(op, _Windows(sharing, given[0])))
    if bias is None:
        return y, dim
    bias = op.spread(bias.unsqueeze(0), y.ndim - 1).unsqueeze(dim)
    is_noisy = moments.variance is not None or moments.common is not None
    return y.add_(bias) if is_noisy else y + bias, dim


class _Windows(SharedNoise):
    """Noise of all samples around a law that is known for all of them, or for one."""

    def __init__(self, sharing: Sharing, given: int) -> None:
        self.sharing, self.given = sharing, (given, sharing.examples)

    def draw(self, law: Moments, op: LinearOp) -> Tensor:
        dim, given, samples = op.batch_dim, self.given, self.sharing.samples
        y = law.mean.unflatten(dim, given) if law.mean.ndim else law.mean
        if law.variance is not None:
            std = _root(law.variance).unflatten(dim, given)
            sizes = std.shape[:dim] + std.shape[dim + 2 :]
            e = windows(self.sharing, sizes.numel(), std).unflatten(-1, sizes)
            e = e.movedim((0, 1), (dim, dim + 1))
            is_room = given[0] == samples and y.shape in ((), std.shape)
            y = torch.addcmul(y, std, e, out=std) if is_room else torch.addcmul(y, std, e)
        if law.common is not None and law.rows is not None:
            std = _root(law.common).movedim(op.channel_dim, -1).unflatten(dim, given)
            noise = std * _colored(std, law.rows, dim, samples)
            y = y + noise.movedim(-1, op.channel_dim + (op.channel_dim >= 0))
        return y


def _root(variance: Tensor) -> Tensor:
    """Return the square root, in separate memory."""
    return variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt_()


def _colored(std: Tensor, rows: Factor, dim: int, samples: int) -> Tensor:
    """Return correlated noise that groups of examples share up to a random sign of each of them."""
    examples = std.shape[dim + 1]
    positions = std.shape[:dim] + std.shape[dim + 2 : -1]
    white = std.new_empty(samples, shared_draws(examples), *positions, rows.width).normal_()
    shared = repeated(rows.color(white), examples)
    signs = torch.randint(2, (samples, examples), device=std.device).to(std.dtype) * 2 - 1
    signs = signs.reshape(samples, examples, *(1,) * (shared.ndim - 2))
    return (shared * signs).movedim((0, 1), (dim, dim + 1))
