"""Equally weighted mixtures of torch's distributions: quantiles, scores, entropies."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Normal,
    TransformedDistribution,
    biject_to,
    constraints,
)

from leanbayes import metrics
from leanbayes.errors import require
from leanbayes.metrics import Score, average
from leanbayes.metrics.numbers import of_examples

_DOUBLINGS, _HALVINGS = 1100, 128
_ROUNDING = 1e-10
"""The relative error with which a distribution function of counts reaches a level."""
_DRAWS = 400
"""How many random targets an example gets at least where a score has no closed form."""

Cdf = Callable[[Tensor], Tensor]


def is_finite(law: Distribution) -> bool:
    """Return whether the values of a target can be listed."""
    return bool(law.has_enumerate_support) and not law.event_shape


def is_binary(law: Distribution) -> bool:
    """Return whether a target is on or off."""
    return is_finite(law) and law.support is constraints.boolean


def has_mean(law: Distribution) -> bool:
    """Return whether targets are numbers that have a mean; torch gives NaN for those without."""
    try:
        return not bool(law.mean.isnan().all())
    except NotImplementedError:
        return False


def value_log_probs(law: Distribution) -> Tensor:
    """Return the log probabilities of every value that a target can take, along a new last axis."""
    return law.log_prob(law.enumerate_support(expand=False)).movedim(0, -1)


def cdf(law: Distribution) -> Cdf | None:
    """Return the cdf of a distribution: torch's, a finite sum, or ``None``."""
    base = law
    while isinstance(base, TransformedDistribution):
        base = base.base_dist
    if type(base).cdf is not Distribution.cdf:
        return law.cdf
    if not (is_finite(law) and has_mean(law)):
        return None
    values, probs = law.enumerate_support(expand=False), value_log_probs(law).exp().unbind(-1)
    pairs = list(zip(values, probs, strict=True))
    return lambda y: torch.stack([p * (value <= y) for value, p in pairs]).sum(0)


def aligned(law: Distribution, y: Tensor) -> Tensor:
    """Return targets in the shape that a distribution describes; none is broadcast.

    One number per example may be a column or flat.
    """
    shape = tuple(law.batch_shape + law.event_shape)
    for form in (y, y.unsqueeze(-1), y.squeeze(-1)):
        if shape[len(shape) - form.ndim :] == tuple(form.shape):
            return form
    raise ValueError(
        f"targets must have the last dimensions of the outputs, {shape}, got {tuple(y.shape)}. "
        "Reshape one of them"
    )


def example_log_prob(law: Distribution, y: Tensor) -> Tensor:
    """Return the log density of ``y`` summed over all but the batch dimension."""
    y = aligned(law, y)
    value: Tensor = law.log_prob(y)
    kept = len(law.batch_shape + law.event_shape) - y.ndim + 1
    return value if value.ndim <= kept else value.flatten(kept).sum(-1)


def log_mean(log_probs: Tensor) -> Tensor:
    """Return the log of probabilities averaged over the first axis."""
    return torch.logsumexp(log_probs, 0) - math.log(len(log_probs))


def entropy(log_probs: Tensor) -> Tensor:
    """Return the entropy over the last axis, in nats."""
    return torch.special.entr(log_probs.exp()).sum(-1)


def quantiles(cdf: Cdf, levels: Sequence[float], law: Distribution, like: Tensor) -> Tensor:
    """Return the least value whose cdf reaches each level, ``[levels, *like.shape]``.

    Bisection, to the last bit or whole number, in a bracket that is doubled until it holds every
    level. It runs on the real line, which ``biject_to`` maps to the support of ``law``. The
    distribution function is evaluated in double precision.
    """
    for level in levels:
        require(0 < level < 1, f"quantile {level} does not lie between 0 and 1")
    whole = law.support is not None and bool(law.support.is_discrete)
    values: Cdf = torch.floor if whole else biject_to(law.support)

    def reached(x: Tensor) -> Tensor:
        return cdf(values(x).double())

    target = like.new_tensor(list(levels), dtype=torch.float64).reshape(-1, *(1,) * like.ndim)
    target = target * (1 - _ROUNDING) if whole else target
    low, high = (like.new_full((len(levels), *like.shape), end) for end in (-1.0, 1.0))
    for _ in range(_DOUBLINGS):
        too_high, too_low = reached(low) >= target, reached(high) < target
        if not bool((too_high | too_low).any()):
            break
        low, high = torch.where(too_high, 2 * low, low), torch.where(too_low, 2 * high, high)
    high = torch.where(low.isneginf(), low, high)
    for _ in range(_HALVINGS):
        middle = ((low + high) / 2).floor() if whole else (low + high) / 2
        if not bool(((low < middle) & (middle < high)).any()):
            break
        below = reached(middle) < target
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return torch.where(reached(high).isnan(), torch.nan, values(high))


def sample_quantiles(samples: Tensor, levels: Sequence[float]) -> Tensor:
    """Return quantiles over the first axis, ``[levels, …]``, between neighbors along a line.

    Torch's function takes no more than 16 million numbers.
    """
    ordered = samples.sort(0).values
    places = torch.tensor(levels, dtype=torch.float64) * (len(samples) - 1)
    below, share = places.floor().long(), places.frac().to(samples)
    above = (below + 1).clamp_max(len(samples) - 1)
    share = share.reshape(-1, *(1,) * (samples.ndim - 1))
    return torch.lerp(ordered[below], ordered[above], share)


def mixture_crps(law: Distribution, y: Tensor) -> Score:
    """Return the continuous ranked probability score of the mixture of a law's first axis.

    Normal samples have a closed form [Grimit and others, 2006, eq. 3–5]: with
    ``A(m, s) = 2 s φ(m / s) + m (2 Φ(m / s) − 1)``, it is ``E A(y − mᵢ, sᵢ) −
    ½ E A(mᵢ − mⱼ, √(sᵢ² + sⱼ²))``. Of other laws it is that of random targets, by a fixed seed.
    """
    y = aligned(law, y)
    if not isinstance(law, Normal):
        devices = [] if y.device.type == "cpu" else [y.device]
        with torch.random.fork_rng(devices, device_type=y.device.type if devices else "cuda"):
            torch.manual_seed(0)
            return metrics.crps(law.sample((-(-_DRAWS // len(law.mean)),)).flatten(0, 1), y)
    means, scales = law.mean.detach().double(), law.stddev.detach().double()
    off = _expected_distance(y - means, scales).mean(0)
    spread = torch.zeros_like(off)
    for mean, scale in zip(means, scales, strict=True):  # one after another, to spare memory
        spread += _expected_distance(means - mean, torch.hypot(scales, scale)).mean(0)
    return average(of_examples(off - spread / (2 * len(means))))


def _expected_distance(mean: Tensor, scale: Tensor) -> Tensor:
    """Return the expectation of ``|X|`` where ``X`` is normal."""
    ratio = mean / scale
    density = torch.exp(-ratio.square() / 2) / math.sqrt(2 * math.pi)
    return 2 * scale * density + mean * torch.erf(ratio / math.sqrt(2))


def scores_of_classes(log_probs: Tensor, y: Tensor) -> dict[str, Score]:
    """Score classes ``y [examples]`` by log probabilities ``[samples, examples, classes]``."""
    mixed = log_mean(log_probs)
    probs, total = mixed.exp(), entropy(mixed)
    values = {
        "accuracy": metrics.accuracy(probs, y),
        "brier": metrics.brier(probs, y),
        "ece": metrics.calibration_error(probs, y),
        "adaptive_ece": metrics.adaptive_calibration_error(probs, y),
        "aurc": metrics.aurc(total, probs.argmax(-1) != y),
        "entropy": average(total),
        "mutual_information": average((total - entropy(log_probs).mean(0)).clamp_min(0)),
    }
    if len(log_probs) > 1:
        values["disagreement"] = metrics.disagreement(log_probs)
        values["kl_diversity"] = metrics.kl_diversity(log_probs)
        if bool((log_probs.argmax(-1) != y).any()):
            values["diversity"] = metrics.diversity(log_probs, y)
    return values


def scores_of_binary(probs: Tensor, labels: Tensor, y: Tensor) -> dict[str, Score]:
    """Score binary targets; calibration where there is one per example, and areas where
    both occur.
    """
    values = {"accuracy": average((labels == y).double().reshape(len(y), -1).mean(-1))}
    truth, on = y.flatten().bool(), probs.flatten()
    if len(truth) != len(y):
        return values
    values["ece"] = metrics.calibration_error(torch.stack([1 - on, on], -1), truth.long())
    if bool(truth.any()) and not bool(truth.all()):
        values["auc_pr"] = metrics.average_precision(on, truth)
        values["auroc"] = metrics.auroc(on, truth)
    return values


def scores_of_numbers(law: Distribution, mean: Tensor, y: Tensor) -> dict[str, Score]:
    """Score numbers by the distributions of all samples and the predictive mean."""
    root = metrics.rmse(mean, y)
    values = {"squared_error": average(of_examples((mean - y).square())), "rmse": root}
    return values | ({"crps": mixture_crps(law, y)} if y.numel() == len(y) else {})
