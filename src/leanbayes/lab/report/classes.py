"""Sections of a run that predicts classes: calibration, foreign images, certain ones."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from leanbayes import plots as draw
from leanbayes.lab import plots
from leanbayes.lab.data import Dataset
from leanbayes.lab.evaluation import foreign_auroc, is_images, raw_images
from leanbayes.lab.report.html import Html, figure, grid, section
from leanbayes.lab.report.numbers import number
from leanbayes.lab.report.study import MOST_OUTSIDE, Study, register_section
from leanbayes.lab.runs import Run
from leanbayes.metrics import calibration_bins, rejection_curve

_IMAGES = 12


class _Judged(NamedTuple):
    """Test examples: the predicted class, its probability, the entropy, and the truth."""

    labels: Tensor
    confidence: Tensor
    entropy: Tensor
    truth: Tensor

    @property
    def right(self) -> Tensor:
        return self.labels == self.truth


def _judged(study: Study) -> _Judged | None:
    """What was predicted where every example has one class; else None."""
    if study.test is None or study.dataset is None or not study.test.has_classes:
        return None
    y = study.dataset.test[: study.test.samples.shape[1]].y
    if y.numel() != len(y):
        return None
    probs = study.test.log_probs.exp().flatten(0, -2)
    confidence, labels = probs.max(-1)
    return _Judged(labels, confidence, torch.special.entr(probs).sum(-1), y.flatten().long())


@register_section
def calibration(run: Run, study: Study) -> Html | None:
    """Reliability diagram, accuracy-rejection curve, and entropy of right and wrong predictions."""
    judged = _judged(study)
    if judged is None:
        return None
    confidence, entropy, right = judged.confidence, judged.entropy, judged.right
    bins = calibration_bins(confidence, right)
    curve = rejection_curve(entropy, right)
    accuracy = curve.kept
    half = float(accuracy[len(accuracy) // 2])
    figures = [
        figure(
            plots.png(draw.reliability, bins),
            f"Reliability diagram of {len(right)} test examples in 15 bins; expected calibration "
            f"error {number(bins.calibration_error)}. Below the diagonal the model is "
            "overconfident, above it underconfident.",
        ),
        figure(
            plots.png(draw.rejection, curve),
            "Accuracy-rejection curve: the most uncertain examples (by entropy) are rejected "
            f"first. Accuracy is {number(float(accuracy[0]))} on all examples and {number(half)} "
            "on the more certain half.",
        ),
    ]
    return section("Calibration", grid([*figures, *_entropies(entropy, right)]))


def _entropies(entropy: Tensor, right: Tensor) -> list[Html]:
    groups = {"right": entropy[right], "wrong": entropy[~right]}
    if not all(len(group) for group in groups.values()):
        return []
    means = " and ".join(f"{number(float(e.mean()))} where {name}" for name, e in groups.items())
    return [
        figure(
            plots.histograms(groups, "entropy (nats)"),
            f"Entropy of right and of wrong predictions, on average {means}: a model that knows "
            "what it does not know has more of it where it is wrong.",
        )
    ]


@register_section
def out_of_distribution(run: Run, study: Study) -> Html | None:
    """Entropy on test images and on images that no network has been trained on."""
    if study.test is None or not study.outside:
        return None
    inside = study.test.entropy[:MOST_OUTSIDE]
    groups = {name: prediction.entropy for name, prediction in study.outside.items()}
    told = "; ".join(f"{name} {number(foreign_auroc(inside, e))}" for name, e in groups.items())
    shown = figure(
        plots.histograms({"test images": inside, **groups}, "entropy (nats)"),
        f"Entropy of predictions on {len(inside)} test images and on the same images inverted or "
        f"with their pixels shuffled. AUROC of entropy: {told} (0.5 is chance, 1 tells all apart).",
    )
    return section("In and out of distribution", grid([shown]))


@register_section
def certain_images(run: Run, study: Study) -> Html | None:
    """The test images with least and with most entropy."""
    judged = _judged(study)
    if judged is None or study.dataset is None or not is_images(study.dataset):
        return None
    order = judged.entropy.argsort(stable=True)
    figures = [
        _images(study.dataset, judged, order[:_IMAGES], "Most certain"),
        _images(study.dataset, judged, order.flip(0)[:_IMAGES], "Least certain"),
    ]
    return section("Most and least certain images", grid(figures))


def shown_images(dataset: Dataset, index: Tensor) -> Tensor:
    """Test images between 0 and 1."""
    x, _ = dataset.test.take(index)
    raw = raw_images(x, dataset).float()
    low, high = raw.amin(), raw.amax()
    return ((raw - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)


def class_name(dataset: Dataset, label: int) -> str:
    """What a class is called, or its number."""
    return dataset.classes[label] if label < len(dataset.classes) else str(label)


def _images(dataset: Dataset, judged: _Judged, index: Tensor, which: str) -> Html:
    images = shown_images(dataset, index)
    wrong = (~judged.right[index]).tolist()
    guesses, truths = (
        [class_name(dataset, label) for label in labels[index].tolist()]
        for labels in (judged.labels, judged.truth)
    )
    titles = [
        f"{guess}, not {truth}" if bad else guess
        for guess, truth, bad in zip(guesses, truths, wrong, strict=True)
    ]
    return figure(
        plots.image_grid(images, titles, wrong),
        f"{which}: {len(titles)} test images and what the model takes them for; {sum(wrong)} "
        "of the predictions are wrong, in bold with the true class.",
    )
