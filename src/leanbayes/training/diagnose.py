"""Diagnosis of a training in words: underfitting, a stuck KL, and what to try."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leanbayes.analysis.log_alpha import has_scales, layer_alpha
from leanbayes.errors import require
from leanbayes.likelihoods import Categorical, Likelihood
from leanbayes.models.random_maps import kl, random_maps
from leanbayes.posteriors import ZeroMean
from leanbayes.prediction.predict import Method
from leanbayes.training.goodness import Goodness, goodness_of_fit, scale_ratios
from leanbayes.training.history import (
    ERRORS,
    FEWEST,
    Curves,
    Log,
    ends,
    last_share,
    read_history,
    rise,
)

_STILL_FALLING = 0.04
"""The share of all progress that the last quarter may bring; converged trainings stay below."""
_HARDLY = 0.05
_ALL_NOISE, _NATS_OF_PRIOR = 0.98, 0.02
"""The share of weights with less signal than noise, and the nats per weight, of a prior's copy."""
_NATS_TOO_FAR = 2.0
_NO_NOISE = 100.0
_COSTLY = 0.02
"""The share of the NLL that noise may cost."""
_ENOUGH = 0.5
"""The share of the uncertainty of the targets that a model should explain."""


class Finding(NamedTuple):
    """Something that is wrong with a training."""

    name: str
    says: str
    advice: str

    def __str__(self) -> str:
        return f"{self.says} {self.advice}"


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of a training; ``print`` shows it in words.

    Attributes:
        summary: first and last NLL and KL, and what the data showed.
        findings: the problems found.
        unjudged: aspects that the data cannot decide.
    """

    summary: str
    findings: tuple[Finding, ...]
    unjudged: tuple[str, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """Whether nothing wrong was found."""
        return not self.findings

    def _lines(self) -> list[str]:
        found = [str(finding) for finding in self.findings] or ["No problem in what was judged."]
        return [*found, *(f"Not judged: {each}" for each in self.unjudged)]

    def __repr__(self) -> str:
        return "\n".join([self.summary, *(f"- {line}" for line in self._lines())])

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{escape(line)}</li>" for line in self._lines())
        return f"<p>{escape(self.summary)}</p><ul>{items}</ul>"


def diagnose(
    model: nn.Module,
    history: Log,
    data: Any = None,
    validation: Any = None,
    *,
    likelihood: Likelihood | None = None,
    target: str = "labels",
    output: Callable[[Any], Tensor] | None = None,
    method: Method = "samples",
) -> Diagnosis:
    """Describe in plain words what a training did, what is wrong, what to try, and what is open.

    With data it also compares samples with the mean network, and training with validation data.

    Args:
        model: the trained model.
        history: record of a loop: a sequence of what :func:`~leanbayes.elbo` gives or of
            dictionaries with ``nll``, ``kl`` (per example) and ``weight``, or a dictionary of
            sequences; the ``metrics.csv`` of a run or of Lightning, or its path; or ``{"loss":
            estimator.loss_curve_}``.
        data: training data: a pair ``(x, y)``, a Dataset or a DataLoader; 2,000 examples are used.
        validation: the same for held-out data.
        likelihood: likelihood of the outputs; that of :func:`leanbayes.fit`, or classes,
            if not given.
        target: key of the targets in batches that are dictionaries.
        output: chooses the tensor that the likelihood describes.
        method: ``"samples"`` or ``"moments"``, as in :func:`leanbayes.predict`.

    Returns:
        Summary and findings.

    Raises:
        ValueError: If the model has no Bayesian layer or the history lacks a column.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(nn.Linear(3, 2), lb.MeanField(1e-6), lb.priors.Normal(1.0))
        >>> falls = [2.0 * 0.5**step for step in range(20)]
        >>> print(diagnose(model, {"nll": falls, "kl": falls, "weight": [1.0] * 20}))
        In 20 entries the NLL went from 2 to 3.8e-06 and the KL from 2 to 3.8e-06 nats per example.
        Standard deviations are 1 times their start and 1e-06 times their prior's.
        - The noise has collapsed: in every layer half of the weights are more than 100 times larger
        than their standard deviation, so that all samples are the same network. Start from larger
        scales, such as lb.MeanField(0.05), and let the KL count.
        - Not judged: the fit. Give data=(x, y).
        - Not judged: new data. Give validation=(x, y).
    """
    require(any(True for _ in random_maps(model)), "the model is plain; call lb.convert first")
    numbers = read_history(history)
    training = Curves.of(numbers)
    if broken := _is_broken(training):
        return Diagnosis(training.summary, (broken,))
    entries, judged = len(training.objective), data is not None or validation is not None
    require(
        training.is_long or judged,
        f"history has {entries} entries; give at least {FEWEST} of them, or data=(x, y)",
    )
    law = likelihood or getattr(history, "likelihood", None) or Categorical()
    on_train, on_new = (
        None if given is None else goodness_of_fit(model, given, law, target, output, method)
        for given in (data, validation)
    )
    weights = _Weights.of(model)
    candidates = [
        *(_of_the_course(training, weights) if training.is_long else ()),
        _has_collapsed(weights) or _is_light(training),
        _overfits(numbers.get("validation")) or _generalizes_badly(on_train, on_new),
        _is_noisy(on_new or on_train),
        _explains_little(on_train or on_new),
    ]
    summary = " ".join([training.summary, *_seen(model, on_train, on_new)])
    findings = tuple(found for found in candidates if found)
    unjudged = list(_open(on_train, on_new))
    if not training.is_long:
        unjudged.append(f"the course of the training. {entries} entries are fewer than {FEWEST}.")
    return Diagnosis(summary, findings, tuple(unjudged))


def _of_the_course(training: Curves, weights: _Weights | None) -> Iterator[Finding | None]:
    """Yield what curves of enough entries show."""
    unmoved = _has_not_moved(training)
    yield unmoved or _is_rising(training) or _has_not_converged(training)
    yield None if unmoved else _is_stuck(training, weights)
    yield _underfits(training, weights) or _is_heavy(training)


def _seen(model: nn.Module, on_train: Goodness | None, on_new: Goodness | None) -> Iterator[str]:
    """Yield what data and scales show."""
    for name, fit in (("Training", on_train), ("Validation", on_new)):
        if fit is not None:
            yield f"{name} data: {fit}."
    ratios = scale_ratios(model)
    if ratios is not None:
        start, prior = ratios
        beside = "" if math.isnan(prior) else f" and {prior:.2g} times their prior's"
        yield f"Standard deviations are {start:.2g} times their start{beside}."


def _open(on_train: Goodness | None, on_new: Goodness | None) -> Iterator[str]:
    """Yield what was not judged."""
    if on_train is None and on_new is None:
        yield "the fit. Give data=(x, y)."
    else:
        yield (
            "whether this network could do better. Train it without noise for the same epochs: "
            "lb.fit takes the plain network too."
        )
    if on_new is None:
        yield "new data. Give validation=(x, y)."


class _Weights(NamedTuple):
    """What single weights look like."""

    noise: float
    nats: float
    least_signal: float

    @classmethod
    @torch.no_grad()
    def of(cls, model: nn.Module) -> _Weights | None:
        """Of layers with means and standard deviations of single weights, if there are any."""
        layers = {
            name: layer
            for name, layer in random_maps(model)
            if has_scales(layer) and not isinstance(layer.posterior.spec, ZeroMean)
        }
        if not layers:
            return None
        rows = [layer_alpha(name, layer, (0.0,)) for name, layer in layers.items()]
        count = sum(row.weights for row in rows)
        noise = sum(row.weights * row.above[0] for row in rows) / count
        signal = min(math.exp(-row.log_alpha.median / 2) for row in rows)
        return cls(noise, float(kl(model)) / count, signal)


def _is_broken(training: Curves) -> Finding | None:
    bad = (~training.objective.isfinite()).nonzero().flatten()
    if not len(bad):
        return None
    return Finding(
        "not finite",
        f"The loss is {float(training.objective[bad[0]])} from entry {int(bad[0])} on.",
        "Lower the learning rate, clip gradients or start with smaller scales.",
    )


def _has_not_moved(training: Curves) -> Finding | None:
    curves = [training.objective if training.nll is None else training.nll]
    if training.nll is not None and training.kl is not None:
        curves.append(training.kl)
    for begin, end in map(ends, curves):
        if abs(begin - end) > _HARDLY * max(abs(begin), abs(end)):
            return None
    return Finding(
        "not moved",
        "Nothing has moved: the optimizer has hardly changed NLL and KL.",
        "If this is the beginning of the training, raise the learning rate (1e-3 to 1e-2 for Adam) "
        "and look whether the optimizer was given model.parameters().",
    )


def _is_rising(training: Curves) -> Finding | None:
    best, last, risen = rise(training.objective)
    if risen <= 0.25 * (ends(training.objective)[0] - best):
        return None
    return Finding(
        "rising",
        f"The loss rises: it was {best:.3g} and ended at {last:.3g}.",
        "Lower the learning rate, or let it fall to zero toward the end.",
    )


def _has_not_converged(training: Curves) -> Finding | None:
    share = last_share(training.objective)
    if share <= _STILL_FALLING:
        return None
    return Finding(
        "not converged",
        f"The optimizer has not converged: the last quarter still brought {share:.0%} of all "
        "progress.",
        "Train longer, or raise the learning rate and let it fall to zero.",
    )


def _is_stuck(training: Curves, weights: _Weights | None) -> Finding | None:
    if training.kl is None or weights is None or not training.weight:
        return None
    begin, end = ends(training.kl)
    moves = 1 - end / begin > 1 - 0.8
    if moves or weights.nats < _NATS_TOO_FAR or last_share(training.kl) <= _STILL_FALLING:
        return None
    return Finding(
        "stuck",
        f"The KL is stuck: it went from {begin:.3g} to {end:.3g} and is still {weights.nats:.2g} "
        "nats per weight, because scales move slowly from where they start.",
        "Give scales a higher learning rate (parameter_groups), start them nearer to the prior, or "
        "take a prior with a smaller or learned scale.",
    )


def _underfits(training: Curves, weights: _Weights | None) -> Finding | None:
    if training.nll is None or weights is None:
        return None
    begin, end = ends(training.nll)
    learned = end < 0.8 * begin
    if learned or weights.noise < _ALL_NOISE or weights.nats > _NATS_OF_PRIOR:
        return None
    counts = f" The KL counts {training.weight:g} times." if training.weight != 1 else ""
    return Finding(
        "underfits",
        f"The network underfits: {weights.noise:.0%} of its weights are more noise than signal, "
        f"and the NLL is where it began. The KL has pushed the posterior to the prior.{counts}",
        "Give the KL less weight (0.1 of this), or take fewer weights, more examples, a prior with "
        "a learned scale; and see that data_size counts all examples.",
    )


def _is_heavy(training: Curves) -> Finding | None:
    if training.weight <= 1:
        return None
    return Finding(
        "heavy KL",
        f"The KL counts {training.weight:g} times, so that the network underfits.",
        "Let the weight end at 1, which is the ELBO, or below.",
    )


def _has_collapsed(weights: _Weights | None) -> Finding | None:
    if weights is None or weights.least_signal < _NO_NOISE:
        return None
    return Finding(
        "collapsed",
        f"The noise has collapsed: in every layer half of the weights are more than "
        f"{_NO_NOISE:.0f} times larger than their standard deviation, so that all samples are the "
        "same network.",
        "Start from larger scales, such as lb.MeanField(0.05), and let the KL count.",
    )


def _is_light(training: Curves) -> Finding | None:
    if training.kl is None or training.weight >= 0.01:
        return None
    return Finding(
        "light KL",
        f"The KL counts {training.weight:g} times, which is next to nothing: standard deviations "
        "shrink for as long as training goes on, and predictions become overconfident.",
        "Let the weight end between 0.1 and 1.",
    )


def _overfits(validation: Tensor | None) -> Finding | None:
    if validation is None or len(validation) < FEWEST:
        return None
    best, last, risen = rise(validation)
    if risen <= 0.1 * abs(best):
        return None
    return Finding(
        "overfits",
        f"The network overfits: the validation NLL was {best:.3g} and ended at {last:.3g}.",
        "Stop earlier, or give the KL more weight.",
    )


def _is_noisy(fit: Goodness | None) -> Finding | None:
    """Compare samples with the mean network on the same examples."""
    if fit is None or fit.cost <= max(ERRORS * fit.cost_error / 2, _COSTLY * abs(fit.nll)):
        return None
    return Finding(
        "noise costs",
        f"The noise costs more than it gains: the NLL of samples is {fit.nll:.3g}, that of the "
        f"mean network {fit.nll - fit.cost:.3g}.",
        "Give the KL less weight (lb.training.recommended_kl_weight), or train longer.",
    )


def _explains_little(fit: Goodness | None) -> Finding | None:
    if fit is None or fit.explained >= _ENOUGH:
        return None
    what = "entropy" if fit.accuracy is not None else "variance"
    return Finding(
        "explains little",
        f"The model explains {max(fit.explained, 0.0):.0%} of the {what} of these targets.",
        "Train the plain network to see whether more is possible. If it is, give the KL less "
        "weight, train longer or raise the learning rate.",
    )


def _generalizes_badly(on_train: Goodness | None, on_new: Goodness | None) -> Finding | None:
    if on_train is None or on_new is None:
        return None
    gap, error = on_new.nll - on_train.nll, math.hypot(on_new.error, on_train.error)
    if gap <= max(ERRORS * error, 0.5 * abs(on_train.nll)):
        return None
    return Finding(
        "overfits",
        f"The network overfits: the NLL is {on_train.nll:.3g} on training data and "
        f"{on_new.nll:.3g} on validation data.",
        "Give the KL more weight, stop earlier (validation=… of lb.fit keeps the best epoch), or "
        "get more examples.",
    )
