"""Sections of a run that predicts classes: calibration, OOD detection, images, members."""

from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor

from leanbayes import plots as draw
from leanbayes.lab import plots
from leanbayes.lab.data import Dataset
from leanbayes.lab.evaluation import foreign_auroc, is_images, raw_images
from leanbayes.lab.report.html import Html, element, figure, grid, section
from leanbayes.lab.report.numbers import number
from leanbayes.lab.report.study import MOST_OUTSIDE, Study, register_section
from leanbayes.lab.runs import Run
from leanbayes.metrics import (
    calibration_bins,
    disagreements,
    member_log_probs,
    rejection_curve,
)
from leanbayes.models.random_maps import members

_IMAGES = 12
_LEAST_FOR_DENSITY = 20


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
    """Return what was predicted where every example has one class; else None."""
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
    groups = {"correct": entropy[right], "incorrect": entropy[~right]}
    if min(map(len, groups.values())) < _LEAST_FOR_DENSITY:
        return []
    means = " and ".join(f"{number(float(e.mean()))} if {name}" for name, e in groups.items())
    return [
        figure(
            plots.histograms(groups, "entropy (nats)"),
            f"Entropy of correct and incorrect predictions, on average {means}. It should be "
            "higher where predictions are incorrect.",
        )
    ]


@register_section
def out_of_distribution(run: Run, study: Study) -> Html | None:
    """Return the entropy on test images and on images that no network has been trained on."""
    if study.test is None or not study.outside:
        return None
    inside = study.test.entropy[:MOST_OUTSIDE]
    groups = {name: prediction.entropy for name, prediction in study.outside.items()}
    shown = "; ".join(f"{name} {number(foreign_auroc(inside, e))}" for name, e in groups.items())
    entropies = figure(
        plots.histograms({"test images": inside, **groups}, "entropy (nats)"),
        f"Entropy of predictions on {len(inside)} test images and on the same images inverted or "
        f"with their pixels shuffled. AUROC of entropy: {shown} (0.5 is chance, 1 is perfect).",
    )
    return section("OOD detection", grid([entropies]))


@register_section
def certain_images(run: Run, study: Study) -> Html | None:
    """Return the test images with least and with most entropy."""
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
    """Return test images between 0 and 1."""
    x, _ = dataset.test.take(index)
    raw = raw_images(x, dataset).float()
    low, high = raw.amin(), raw.amax()
    return ((raw - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)


def class_name(dataset: Dataset, label: int) -> str:
    """Return what a class is called, or its number."""
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
        f"{which}: {len(titles)} test images with their predictions; {sum(wrong)} are "
        "incorrect, in bold with the true class.",
    )


@register_section
def disagreeing_members(run: Run, study: Study) -> Html | None:
    """Return how often two members take an example for different classes, and which examples."""
    count = 1 if study.model is None else members(study.model)
    if count == 1 or study.test is None or study.dataset is None:
        return None
    if not study.test.has_classes or study.test.samples.ndim != 3:
        return None
    log_probs = member_log_probs(study.test.sample_log_probs, count)
    pairs, labels = disagreements(log_probs), log_probs.argmax(-1)
    united = float((pairs == 0).double().mean())
    agreement = element(
        "p",
        f"Two of the {count} members take {number(float(pairs.mean()))} of the test examples for "
        f"different classes, on average; on {number(united)} of them all agree.",
    )
    order = pairs.argsort(descending=True, stable=True)[:_IMAGES]
    order = order[pairs[order] > 0]
    if not len(order) or not is_images(study.dataset):
        return section("Members", agreement)
    return section("Members", agreement, grid([_disputed_images(study.dataset, labels, order)]))


def votes(labels: Tensor, dataset: Dataset) -> str:
    """Return predictions of the members for one example, as ``3 coat, 1 shirt``."""
    counted = Counter(labels.tolist()).most_common()
    return ", ".join(f"{count} {class_name(dataset, label)}" for label, count in counted)


def _disputed_images(dataset: Dataset, labels: Tensor, index: Tensor) -> Html:
    truth = dataset.test[index].y.flatten()
    titles = [votes(labels[:, i], dataset) for i in index.tolist()]
    wrong = (labels[:, index] != truth).all(0).tolist()
    return figure(
        plots.image_grid(shown_images(dataset, index), titles, wrong),
        f"The {len(titles)} test images on which members disagree most, with their votes; those in "
        "bold no member has right.",
    )
