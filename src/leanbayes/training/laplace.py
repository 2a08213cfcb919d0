"""Laplace approximation: a posterior for a trained network from one pass over its data."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leanbayes.conversion.convert import convert
from leanbayes.errors import require, require_choice, require_positive
from leanbayes.layers.base import is_convertible
from leanbayes.likelihoods import Categorical, Likelihood
from leanbayes.metrics import average
from leanbayes.models.random_maps import random_maps
from leanbayes.parameters.learned import Learned
from leanbayes.posteriors import MatrixNormal, MeanField, Posterior
from leanbayes.prediction.eval_mode import evaluating
from leanbayes.priors import Normal
from leanbayes.training.batches import batches_of
from leanbayes.training.curvature import LayerCurvature, curvature, is_supported
from leanbayes.training.objective import BatchObjective

Kind = Literal["kfac", "diagonal", "last-layer"]
_ROUNDS = 100
_TOLERANCE = 1e-6
_OF_EVIDENCE = {"kfac": 10.0, "diagonal": 10.0, "last-layer": 1.0}
"""Prior precision of classes, in units of the one with the largest evidence, which makes all layers
too uncertain; held-out rows of image networks chose it."""
_TRIED = tuple(10 ** (power / 2) for power in range(-5, 6))
_SAMPLES, _VALIDATED = 30, 250


def laplace(
    model: nn.Module,
    data: Any,
    posterior: Kind = "last-layer",
    *,
    likelihood: Likelihood | None = None,
    prior_precision: float | None = None,
    validation: Any = None,
    batch_size: int = 128,
    target: str = "labels",
    output: Callable[[Any], Tensor] | None = None,
) -> nn.Module:
    """Convert a trained network with a posterior from the curvature of its loss, without training.

    A Kronecker-factored Laplace approximation is a matrix-normal posterior, a diagonal one is mean
    field: the result is an ordinary converted model with ``predict``, ``save``, ``kl`` and further
    training. Biases get independent noise.

    Args:
        model: Trained plain network; it stays as it is.
        data: Its training data: a pair ``(x, y)``, a Dataset or a DataLoader.
        posterior: ``"last-layer"`` for a matrix normal of the last layer alone, ``"kfac"`` for one
            of every layer, ``"diagonal"`` for independent weights of every layer. Predict with
            ``linearized=True`` where more than the last layer is random.
        likelihood: Likelihood of the outputs; classes if not given.
        prior_precision: Precision of the normal prior of every weight. By default the marginal
            likelihood of the training data sets it; for classes with every layer random, 10 times
            that, because the marginal likelihood makes them too uncertain.
        validation: Held-out rows, in the form of ``data``. If given, the smallest precision whose
            NLL is within one standard error of the best is chosen, because OOD detection grows
            with the variance.
        batch_size: Number of examples per pass, for arrays and Datasets.
        target: Key of the targets in batches that are dictionaries.
        output: Chooses the tensor that the likelihood describes.

    Returns:
        A converted copy of the model with the prior ``Normal(1/√precision)``.

    Raises:
        ValueError: No layer has a curvature that is known, or the model is converted already.

    Example:
        >>> x, y = torch.randn(100, 3), torch.randint(2, (100,))
        >>> import leanbayes as lb
        >>> bayesian = lb.laplace(nn.Linear(3, 2), (x, y))
        >>> lb.predict(bayesian, x[:5], samples=10).probs.shape
        torch.Size([5, 2])
    """
    require_choice("posterior", posterior, ("kfac", "diagonal", "last-layer"))
    if prior_precision is not None:
        require_positive(prior_precision=prior_precision)
    layers = _layers(model)
    if posterior == "last-layer":
        layers = dict([list(layers.items())[-1]])
    batches = batches_of(data, batch_size, data_size=1)  # the sums need no number of examples
    with evaluating(model), torch.enable_grad():
        sums, _ = curvature(
            model, layers, batches.epoch(None), likelihood or Categorical(),
            diagonal=posterior == "diagonal", target=target, output=output,
        )  # fmt: skip
    blocks = {name: _Block(layers[name], sums[name], posterior) for name in layers}
    made = partial(_converted, model, blocks, posterior)
    evidence = prior_precision or best_precision(list(blocks.values()))
    if prior_precision is not None or validation is None:
        likely = prior_precision is not None or not isinstance(likelihood, Categorical | None)
        return made(evidence if likely else evidence * _OF_EVIDENCE[posterior])
    linearized = posterior != "last-layer"
    judged = partial(_losses, target=target, output=output, linearized=linearized)
    losses = {factor: judged(made(evidence * factor), validation, likelihood) for factor in _TRIED}
    return made(evidence * _widest(losses))


def _converted(
    model: nn.Module, blocks: Mapping[str, "_Block"], posterior: Kind, precision: float
) -> nn.Module:
    spec: Posterior = MeanField() if posterior == "diagonal" else MatrixNormal()
    prior, names = Normal(1 / math.sqrt(precision)), list(blocks)
    converted = convert(model, spec, prior, bias=MeanField(), include=names)
    for name, layer in random_maps(converted):
        owner = name if name in blocks else name.rpartition(".")[0]
        blocks[owner].assign(layer.posterior, precision, is_bias=owner != name)
    return converted


def _losses(
    model: nn.Module,
    data: Any,
    likelihood: Likelihood | None,
    *,
    target: str,
    output: Callable[[Any], Tensor] | None,
    linearized: bool,
) -> Tensor:
    """Return the NLL of every held-out example."""
    objective = BatchObjective(model, likelihood or Categorical(), 1, target=target, output=output)
    batches = batches_of(data, _VALIDATED, data_size=1).epoch(None)
    return torch.cat([
        -objective.predict(batch, _SAMPLES, seed=0, linearized=linearized).log_likelihood(
            objective.targets(batch)
        )
        for batch in batches
    ])  # fmt: skip


def _widest(losses: Mapping[float, Tensor]) -> float:
    """Return the smallest factor whose losses are within one standard error of the lowest."""
    best = min(losses.values(), key=lambda each: float(each.mean()))
    gaps = {factor: average(each - best) for factor, each in losses.items()}
    return min(factor for factor, gap in gaps.items() if gap.value <= gap.error)


class _Block:
    """The curvature of one layer and the size of its weights."""

    def __init__(self, layer: nn.Module, sums: LayerCurvature, kind: Kind) -> None:
        self.sums, self.kind = sums, kind
        self.bias_curvature = sums.bias
        weights = [p.detach().double() for p in layer.parameters(recurse=False)]
        self.square = float(sum(w.square().sum() for w in weights))
        has_bias = getattr(layer, "bias", None) is not None
        if kind == "diagonal":
            self.eigenvalues = sums.diagonal
        else:
            g, a = sums.kronecker
            (self.row_values, self.row_vectors) = torch.linalg.eigh(g)
            (self.column_values, self.column_vectors) = torch.linalg.eigh(a)
            self.row_values, self.column_values = (
                values.clamp_min(0) for values in (self.row_values, self.column_values)
            )
            self.eigenvalues = torch.outer(self.row_values, self.column_values)
        flat = self.eigenvalues.flatten()
        self.all_eigenvalues = torch.cat([flat, sums.bias]) if has_bias else flat

    def assign(self, posterior: Learned[Any], precision: float, *, is_bias: bool) -> None:
        """Set a posterior to the one of this curvature and a prior."""
        if is_bias:
            std = (self.bias_curvature + precision).rsqrt()
            posterior.assign(scale=std.unsqueeze(-1).expand_as(posterior.value("scale")))
        elif self.kind == "diagonal":
            posterior.assign(scale=(self.eigenvalues + precision).rsqrt())
        else:
            if self.kind == "kfac":
                rows, columns = damped(self.row_values, self.column_values, precision)
            else:
                rows, columns = nearest_kronecker(self.eigenvalues + precision)
            values = _triangle("row", self.row_vectors, rows)
            posterior.assign(**values, **_triangle("column", self.column_vectors, columns))


def nearest_kronecker(precision: Tensor) -> tuple[Tensor, Tensor]:
    """Variances ``r [out]`` and ``c [in]`` whose product is nearest to a matrix of precisions.

    ``q = N(0, r_i c_j)`` minimizes ``KL(q ‖ N(0, 1/precision_ij))``: alternately
    ``r_i = in / Σ_j c_j precision_ij`` and ``c_j = out / Σ_i r_i precision_ij``.
    """
    out, columns = precision.shape
    c = 1 / precision.mean(0)
    for _ in range(_ROUNDS):
        r = columns / (precision @ c)
        after = out / (r @ precision)
        done = bool(((after / c).log().abs() < _TOLERANCE).all())
        c = after
        if done:
            break
    return columns / (precision @ c), c


def damped(rows: Tensor, columns: Tensor, precision: float) -> tuple[Tensor, Tensor]:
    """Variances of rows and columns, from eigenvalues of the curvature and a prior precision.

    The prior is split between both factors (Martens and Grosse 2015): the precision of a product is
    ``(λ_i + π√δ)(μ_j + √δ/π)`` with ``π² = mean(λ) / mean(μ)``. This is never wider than the exact
    one, whose tangent underfits where every layer is random. One row or column is exact.
    """
    if 1 in (len(rows), len(columns)):
        return nearest_kronecker(torch.outer(rows, columns) + precision)
    ratio = (rows.mean() / columns.mean()).sqrt().nan_to_num(1.0).clamp(1e-6, 1e6)
    root = math.sqrt(precision)
    return 1 / (rows + ratio * root), 1 / (columns + root / ratio)


def best_precision(blocks: list[_Block]) -> float:
    """Return the prior precision with the largest Laplace evidence, by MacKay's fixed point.

    ``δ = γ / ‖w‖²`` with the number of determined weights ``γ = Σ λ / (λ + δ)``.
    """
    values = torch.cat([block.all_eigenvalues for block in blocks])
    square = sum(block.square for block in blocks)
    require(square > 0, "all weights are zero; train the network first")
    precision = len(values) / square
    for _ in range(_ROUNDS):
        after = float((values / (values + precision)).sum()) / square
        after = max(after, 1e-10)
        if abs(math.log(after / precision)) < _TOLERANCE:
            break
        precision = after
    return precision


def _triangle(name: str, vectors: Tensor, variances: Tensor) -> dict[str, Tensor]:
    """Return the lower-triangular factor of ``V diag(variances) Vᵀ``, as a posterior stores it."""
    upper = torch.linalg.qr((vectors * variances.sqrt()).mT, mode="r").R
    lower = (upper * upper.diagonal().sign().unsqueeze(1)).mT
    row, column = torch.tril_indices(len(lower), len(lower), -1)
    return {f"{name}_scale": lower.diagonal(), f"{name}_factor": lower[row, column]}


def _layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers whose curvature is known, in order."""
    require(
        not any(True for _ in random_maps(model)),
        "the model has random weights already; give the plain network, lb.deterministic(model)",
    )
    layers: Mapping[str, nn.Module] = dict(model.named_modules())
    found = {name: layer for name, layer in layers.items() if is_supported(layer)}
    others = [
        f"{name} ({type(layer).__name__})"
        for name, layer in layers.items()
        if is_convertible(layer) and name not in found
    ]
    require(
        bool(found),
        "the model has no linear layer or ungrouped 2-D convolution"
        + (f", only {', '.join(others)}" if others else "")
        + "; a Laplace approximation needs one",
    )
    return found
