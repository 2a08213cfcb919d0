"""One pass of a model over means and variances, and draws of the outputs."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from leanbayes.layers.dropout import FUNCTIONS
from leanbayes.layers.forward_pass import forward_pass
from leanbayes.models.random_maps import members, tile
from leanbayes.precision import full_precision
from leanbayes.prediction.eval_mode import evaluating, is_compiled
from leanbayes.prediction.inputs import Inputs
from leanbayes.prediction.one_pass.arithmetic import as_gaussian
from leanbayes.prediction.one_pass.gaussian import RULES, Uncertain, named, need
from leanbayes.prediction.one_pass.weights import MomentDraws

_DRAWS = {
    *named("rand randn rand_like randn_like randint randint_like randperm bernoulli multinomial"),
    *named("normal normal_ uniform_ bernoulli_ exponential_ poisson"),
}
"""Functions of torch that draw."""

_CORRELATED = 32
"""Maximum number of outputs whose correlations are computed."""
_TINY = torch.finfo(torch.float32).tiny


class _NoDraws(TorchFunctionMode):
    """Keep functions that draw out of a block; dropout gets its rule for inputs without noise."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        need(func not in _DRAWS, f"the network calls {func.__name__} and so draws noise itself")
        if func in FUNCTIONS.values() and isinstance(args[0], Tensor):
            given = as_gaussian(args[0])
            dropped = RULES[func](given, *args[1:], **kwargs)
            return args[0] if dropped is given else dropped
        return func(*args, **kwargs)


@torch.no_grad()
def propagate(model: nn.Module, inputs: Inputs, batch_size: int | None = None) -> list[Uncertain]:
    """Return the mean and variance of every output, ``[members, examples, …]``, by batch.

    Args:
        model: The model; it runs in eval mode, in full precision and not compiled.
        inputs: All examples.
        batch_size: Maximum number of examples that run at once.

    Raises:
        NoRuleError: If a function or a posterior has no rule for means and variances.
    """
    total = max(inputs.sizes[0], 1)
    step = batch_size or total
    eager = torch.compiler.set_stance("force_eager") if is_compiled(model) else nullcontext()
    with evaluating(model), eager:
        return [moments_of(model, inputs.cut(start, step)) for start in range(0, total, step)]


def moments_of(model: nn.Module, inputs: Inputs) -> Uncertain:
    """Return mean and variance of every output of a model in eval mode."""
    count, dim = members(model), inputs.dims[0]
    batch = [tile(t, count, d) for t, d in zip(inputs.tensors, inputs.dims, strict=True)]
    rows = batch[0].shape[dim]
    with (
        full_precision(batch[0].device),
        forward_pass(rows, draws=MomentDraws(frozenset())),
        _NoDraws(),
    ):
        y = inputs.run(model, batch)
    need(isinstance(y, Uncertain | Tensor), "the output is not one tensor; choose it by output=")
    y = as_gaussian(y)
    places = [d for d in {0, dim} if d < y.ndim and y.shape[d] == rows]
    need(len(places) == 1, "the output has no dimension that certainly counts examples")
    found: Uncertain = y.movedim(places[0], 0).unflatten(0, (count, rows // count))
    if y.mixed is not None and y.ndim == 2 and places == [0] and 1 < y.shape[-1] <= _CORRELATED:
        weight, variance = y.mixed
        found.mixed = weight, variance.unflatten(0, (count, rows // count))
    return found


_SOBOL_LIMIT = torch.quasirandom.SobolEngine.MAXDIM


def output_noise(moments: Uncertain, draws: int, seed: int | None = None) -> Tensor:
    """Return normal noise ``[draws, 1, …, 1, size]`` for outputs, by a scrambled Sobol sequence.

    All examples share the points, one dimension for each entry of the last dimension, so the same
    moments and seed give the same draws.

    Args:
        moments: Mean and variance of the outputs, ``[members, examples, …]``.
        draws: Number of draws for each member.
        seed: Seed of the scrambling; 0 if not given.
    """
    size = moments.shape[-1] if moments.ndim > 2 else 1
    if size <= _SOBOL_LIMIT:
        sobol = torch.quasirandom.SobolEngine(size, scramble=True, seed=(seed or 0) % 2**31)
        points = sobol.draw(draws, dtype=torch.float64)
        noise = torch.special.ndtri(points.clamp(1e-9, 1 - 1e-9))
    else:
        generator = torch.Generator().manual_seed(seed or 0)
        noise = torch.randn(draws, size, generator=generator, dtype=torch.float64)
    return noise.to(moments.loc).view(draws, *(1,) * (moments.ndim - 1), size)


@torch.no_grad()
def draw_outputs(moments: Uncertain, noise: Tensor) -> Tensor:
    """Draw normal outputs ``[draws · members, examples, …]``, correlated where that is known.

    Args:
        moments: Mean and variance of the outputs, ``[members, examples, …]``.
        noise: The result of :func:`output_noise`.
    """
    if moments.mixed is None:
        return torch.addcmul(moments.loc, moments.variance.sqrt(), noise).flatten(0, 1)
    root = _root(moments.variance, *moments.mixed)
    apart = (noise.view(len(noise), -1) @ root.mT).movedim(-2, 0)
    return (moments.loc + apart).flatten(0, 1)


def _root(variance: Tensor, weight: Tensor, inputs: Tensor) -> Tensor:
    """Return ``L`` with ``L Lᵀ = W diag(inputs) Wᵀ``, whose diagonal is replaced by ``variance``.

    Outputs that earlier ones determine get a zero, where a Cholesky factorization would fail.
    """
    size = len(weight)
    shared = inputs @ (weight.unsqueeze(1) * weight).flatten(0, 1).mT
    places = torch.arange(size, device=weight.device)
    own = places == places.unsqueeze(1)
    left = torch.where(own, variance.unsqueeze(-1), shared.unflatten(-1, (size, size)))
    columns = []
    for i in range(size):
        diagonal = left[..., i, i].unsqueeze(-1)
        is_new = (diagonal > 1e-5 * variance[..., i : i + 1]) & (places >= i)
        column = torch.where(is_new, left[..., i] * diagonal.clamp_min(_TINY).rsqrt(), 0.0)
        left = left - column.unsqueeze(-1) * column.unsqueeze(-2)
        columns.append(column)
    return torch.stack(columns, -1)
