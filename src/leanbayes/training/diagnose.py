"""Diagnosis of a training in words: underfitting, a stuck KL, and what to try."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

import torch
from torch import Tensor, nn

from leanbayes.analysis.log_alpha import layer_alpha
from leanbayes.analysis.scaled_layers import has_scales
from leanbayes.errors import require
from leanbayes.models.model_kl import kl
from leanbayes.models.random_maps import random_maps
from leanbayes.posteriors import ZeroMean
from leanbayes.training.log_reader import History, read_history

_FEWEST = 8
_BLOCKS = 20

_STILL_FALLING = 0.04
"""The share of all progress that the last quarter may bring; converged trainings stay below."""
_HARDLY = 0.05
_ERRORS = 4.0
_ALL_NOISE, _NATS_OF_PRIOR = 0.98, 0.02
"""The share of weights with less signal than noise, and the nats a weight, of a prior's copy."""
_NATS_TOO_FAR = 2.0
_NO_NOISE = 100.0


class Finding(NamedTuple):
    """Something that is wrong with a training.

    Attributes:
        name: in a word or two.
        says: what shows it.
        advice: what to try.
    """

    name: str
    says: str
    advice: str

    def __str__(self) -> str:
        return f"{self.says} {self.advice}"


@dataclass(frozen=True)
class Diagnosis:
    """What a training did and what is wrong with it; ``print`` tells it in words.

    Attributes:
        summary: where NLL and KL began and ended.
        findings: what is wrong, if anything.
    """

    summary: str
    findings: tuple[Finding, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether nothing wrong was found."""
        return not self.findings

    def __repr__(self) -> str:
        if self.is_healthy:
            return f"{self.summary}\nThese numbers show nothing wrong."
        return "\n".join([self.summary, *(f"- {finding}" for finding in self.findings)])

    def _repr_html_(self) -> str:
        findings = "".join(f"<li>{escape(str(finding))}</li>" for finding in self.findings)
        listed = f"<ul>{findings}</ul>" if findings else "<p>These numbers show nothing wrong.</p>"
        return f"<p>{escape(self.summary)}</p>{listed}"


def diagnose(model: nn.Module, history: History) -> Diagnosis:
    """Say in plain words what NLL and KL did in a training, what is wrong, and what to try.

    Args:
        model: the trained model.
        history: what a loop collected: a sequence of what :func:`~leanbayes.elbo` gives or of
            dictionaries with ``nll``, ``kl`` (per example) and ``weight``, or a dictionary of
            sequences; the ``metrics.csv`` of a run or of Lightning, or its path; or ``{"loss":
            estimator.loss_curve_}``.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(nn.Linear(3, 2), lb.MeanField(1e-6), lb.priors.Normal(1.0))
        >>> falls = [2.0 * 0.5**step for step in range(20)]
        >>> print(diagnose(model, {"nll": falls, "kl": falls, "weight": [1.0] * 20}))
        In 20 entries the NLL went from 2 to 3.8e-06 and the KL from 2 to 3.8e-06 nats per example.
        - The noise has collapsed: in every layer half of the weights are more than 100 times larger
        than their standard deviation, so that all samples are the same network. Start from larger
        scales, such as lb.MeanField(0.05), and let the KL count.
    """
    require(any(True for _ in random_maps(model)), "the model is plain; call lb.convert first")
    numbers = read_history(history)
    training = _Training.of(numbers)
    if training.broken:
        return Diagnosis(training.summary, (training.broken,))
    weights = _Weights.of(model)
    unmoved = _has_not_moved(training)
    candidates = [
        unmoved or _is_rising(training) or _has_not_converged(training),
        None if unmoved else _is_stuck(training, weights),
        _underfits(training, weights) or _is_heavy(training),
        _has_collapsed(weights) or _is_light(training),
        _overfits(numbers.get("validation")),
    ]
    return Diagnosis(training.summary, tuple(found for found in candidates if found))


class _Weights(NamedTuple):
    """What single weights look like.

    Attributes:
        noise: the share with less signal than noise.
        nats: the KL of a weight, on average.
        least_signal: the smallest median of ``|μ| / σ`` of any layer.
    """

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


@dataclass(frozen=True)
class _Training:
    """Curves of a training, averaged over twenty blocks of entries.

    Attributes:
        entries: how many there are.
        objective: the loss, with the KL's last weight throughout.
        nll: the NLL, if it is known.
        kl: the KL per example, if it is known.
        weight: the last weight of the KL.
    """

    entries: int
    objective: Tensor
    nll: Tensor | None
    kl: Tensor | None
    weight: float

    @classmethod
    def of(cls, numbers: Mapping[str, Tensor]) -> _Training:
        """From the numbers of all entries."""
        nll, divergence = numbers.get("nll"), numbers.get("kl")
        weight = float(numbers["weight"][-1]) if "weight" in numbers else 1.0
        if nll is None or divergence is None:
            objective = numbers.get("loss")
            require(
                objective is not None,
                f"history has {', '.join(numbers) or 'no numbers'}; give nll and kl, or loss",
            )
            assert objective is not None
        else:
            objective = nll + weight * divergence
        entries = len(objective)
        require(
            entries >= _FEWEST, f"history has {entries} entries; give at least {_FEWEST} of them"
        )
        return cls(entries, objective, nll, divergence, weight)

    @property
    def broken(self) -> Finding | None:
        """Numbers that are not finite."""
        bad = (~self.objective.isfinite()).nonzero().flatten()
        if not len(bad):
            return None
        return Finding(
            "not finite",
            f"The loss is {float(self.objective[bad[0]])} from entry {int(bad[0])} on.",
            "Lower the learning rate, clip gradients or start with smaller scales.",
        )

    @property
    def summary(self) -> str:
        """Where the curves began and ended."""
        if self.nll is None or self.kl is None:
            begin, end = _ends(self.objective)
            return f"In {self.entries} entries the loss went from {begin:.2g} to {end:.2g}."
        (nll, last_nll), (divergence, last_kl) = _ends(self.nll), _ends(self.kl)
        counts = "" if self.weight == 1 else f", which counts {self.weight:g} times"
        return (
            f"In {self.entries} entries the NLL went from {nll:.2g} to {last_nll:.2g} and the KL "
            f"from {divergence:.2g} to {last_kl:.2g} nats per example{counts}."
        )


def _has_not_moved(training: _Training) -> Finding | None:
    curves = [training.objective] if training.nll is None else [training.nll, training.kl]
    for curve in curves:
        assert curve is not None
        begin, end = _ends(curve)
        if abs(begin - end) > _HARDLY * max(abs(begin), abs(end)):
            return None
    return Finding(
        "not moved",
        "Nothing has moved: the optimiser has hardly changed NLL and KL.",
        "If this is the beginning of the training, raise the learning rate (1e-3 to 1e-2 for Adam) "
        "and look whether the optimiser was given model.parameters().",
    )


def _is_rising(training: _Training) -> Finding | None:
    blocks = _blocks(training.objective)
    best, last = float(blocks.min()), float(blocks[-1])
    if last - best <= 0.25 * (float(blocks[0]) - best) + _ERRORS * _error(training.objective):
        return None
    return Finding(
        "rising",
        f"The loss rises: it was {best:.3g} and ended at {last:.3g}.",
        "Lower the learning rate, or let it fall to zero towards the end.",
    )


def _has_not_converged(training: _Training) -> Finding | None:
    share = _last_share(training.objective)
    if share <= _STILL_FALLING:
        return None
    return Finding(
        "not converged",
        f"The optimiser has not converged: the last quarter still brought {share:.0%} of all "
        "progress.",
        "Train longer, or raise the learning rate and let it fall to zero.",
    )


def _is_stuck(training: _Training, weights: _Weights | None) -> Finding | None:
    if training.kl is None or weights is None or not training.weight:
        return None
    begin, end = _ends(training.kl)
    moves = 1 - end / begin > 1 - 0.8
    if moves or weights.nats < _NATS_TOO_FAR or _last_share(training.kl) <= _STILL_FALLING:
        return None
    return Finding(
        "stuck",
        f"The KL is stuck: it went from {begin:.3g} to {end:.3g} and is still {weights.nats:.2g} "
        "nats a weight, because scales move slowly from where they start.",
        "Give scales a higher learning rate (parameter_groups), start them nearer to the prior, or "
        "take a prior with a smaller or learnt scale.",
    )


def _underfits(training: _Training, weights: _Weights | None) -> Finding | None:
    if training.nll is None or weights is None:
        return None
    begin, end = _ends(training.nll)
    learnt = end < 0.8 * begin
    if learnt or weights.noise < _ALL_NOISE or weights.nats > _NATS_OF_PRIOR:
        return None
    counts = f" The KL counts {training.weight:g} times." if training.weight != 1 else ""
    return Finding(
        "underfits",
        f"The network underfits: {weights.noise:.0%} of its weights are more noise than signal, "
        f"and the NLL is where it began. The KL has pushed the posterior to the prior.{counts}",
        "Give the KL less weight (0.1 of this), or take fewer weights, more examples, a prior with "
        "a learnt scale; and see that data_size counts all examples.",
    )


def _is_heavy(training: _Training) -> Finding | None:
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


def _is_light(training: _Training) -> Finding | None:
    if training.kl is None or training.weight >= 0.01:
        return None
    return Finding(
        "light KL",
        f"The KL counts {training.weight:g} times, which is next to nothing: standard deviations "
        "shrink for as long as training goes on, and predictions become overconfident.",
        "Let the weight end between 0.1 and 1.",
    )


def _overfits(validation: Tensor | None) -> Finding | None:
    if validation is None or len(validation) < _FEWEST:
        return None
    blocks = _blocks(validation)
    best, last = float(blocks.min()), float(blocks[-1])
    if last - best <= 0.1 * abs(best) + _ERRORS * _error(validation):
        return None
    return Finding(
        "overfits",
        f"The network overfits: the validation NLL was {best:.3g} and ended at {last:.3g}.",
        "Stop earlier, or give the KL more weight.",
    )


def _last_share(curve: Tensor) -> float:
    """The share of all progress that the last quarter brought; 0 if that may be chance."""
    third, fourth = curve.tensor_split(4)[2:]
    drop = float(third.mean() - fourth.mean())
    chance = sum(float(part.var()) / len(part) for part in (third, fourth)) ** 0.5
    begin, end = _ends(curve)
    return drop / (begin - end) if drop > _ERRORS * chance and begin > end else 0.0


def _blocks(curve: Tensor) -> Tensor:
    """Averages over twenty blocks, or all entries if there are fewer."""
    return torch.stack([part.mean() for part in curve.tensor_split(min(_BLOCKS, len(curve)))])


def _ends(curve: Tensor) -> tuple[float, float]:
    blocks = _blocks(curve)
    return float(blocks[0]), float(blocks[-1])


def _error(curve: Tensor) -> float:
    """The standard error of the last block, from the differences of neighbours in it."""
    part = curve.tensor_split(min(_BLOCKS, len(curve)))[-1]
    if len(part) < 3:
        return 0.0
    return float(part.diff().square().mean() / 2) ** 0.5 / len(part) ** 0.5
