"""The sections of a report; each is empty where it does not apply."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from leanbayes.lab import plots
from leanbayes.lab.data import Dataset
from leanbayes.lab.judge import auroc, calibration_bins, is_images, raw_images
from leanbayes.lab.recipe import Recipe
from leanbayes.lab.report.html import Html, element, figure, grid, section, table
from leanbayes.lab.report.study import (
    MOST_OUTSIDE,
    Study,
    class_log_probs,
    explained,
    rejection_curve,
)
from leanbayes.lab.runs import Run
from leanbayes.lab.weights import (
    log_alphas,
    mean_matrices,
    quartiles,
    scale_matrices,
    signal_to_noise,
)
from leanbayes.metrics import Score

__all__ = [
    "METRICS",
    "calibration",
    "certain_images",
    "dropout_rates",
    "number",
    "out_of_distribution",
    "results",
    "scales",
    "what_was_run",
    "with_error",
]

METRICS = {
    "negative_elbo": "−ELBO per example",
    "nll": "negative log likelihood",
    "average_nll": "NLL of single samples, on average",
    "kl": "KL per training example",
    "accuracy": "accuracy",
    "brier": "Brier score",
    "ece": "calibration error (15 bins)",
    "entropy": "predictive entropy",
    "mutual_information": "mutual information",
    "disagreement": "disagreement of samples",
    "diversity": "disagreement over error",
    "kl_diversity": "KL between samples",
    "auroc": "AUROC",
    "auc_pr": "average precision",
    "squared_error": "squared error",
}
_MOST_LAYERS = 12
_IMAGES = 12
_SPARSE = 3.0


def number(value: float) -> str:
    """Four digits that matter, without a long tail of zeros."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:.4f}" if 1e-4 <= abs(value) < 1e3 or value == 0 else f"{value:.4g}"


def with_error(estimate: Score) -> str:
    """A value, with its standard error where it has one."""
    error = f" ± {number(estimate.error)}" if estimate.error else ""
    return number(estimate.value) + error


def what_was_run(run: Run) -> Html:
    """Everything that defines the run, and what it cost."""
    recipe, result = run.recipe, run.result
    rows = [
        ("Data", _described(recipe.data.name, recipe.data.options)),
        ("Network", _described(recipe.architecture.name, recipe.architecture.options)),
        (
            "Posterior",
            "none: a plain network" if recipe.posterior is None else str(recipe.posterior),
        ),
        ("Prior", "none" if recipe.prior is None else str(recipe.prior)),
        ("Estimator", recipe.estimator),
        ("Likelihood", recipe.likelihood.kind),
        ("Training", _training(recipe)),
        ("Evaluation", f"{recipe.evaluation.samples} samples a prediction"),
        ("Seed", str(recipe.seed)),
    ]
    if "parameters" in result:
        counts = {name: f"{count:,}" for name, count in result["parameters"].items()}
        rows.append(("Trained parameters", _described("", counts)))
    if "seconds" in result:
        rows.append(("Training time", f"{result['seconds']:.1f} s"))
    if "versions" in result:
        rows.append(("Versions", _described("", result["versions"])))
    if result.get("revision"):
        rows.append(("Source revision", str(result["revision"])))
    if recipe.cut:
        rows.append(("Cut", recipe.cut))
    whole = element(
        "details",
        element("summary", "The whole recipe"),
        element("pre", recipe.to_yaml()),
    )
    body = table(
        (),
        [(element("b", name), text) for name, text in rows],
        "The recipe and what it took.",
        words=2,
    )
    return section("What was run", body, whole)


def _described(name: str, options: Mapping[str, object]) -> str:
    details = ", ".join(f"{key} {value}" for key, value in options.items())
    return f"{name} ({details})" if name and details else name or details


def _training(recipe: Recipe) -> str:
    training, optimizer = recipe.training, recipe.optimizer
    return (
        f"{training.epochs} epochs in batches of {training.batch_size}, {optimizer.name} with "
        f"learning rate {optimizer.lr:g} ({recipe.learning_rate.kind}), "
        f"KL weight {_described(recipe.kl.kind, recipe.kl.options)}"
    )


def results(run: Run) -> Html:
    """Our test metrics next to the published ones."""
    ours, published = run.metrics, run.recipe.published
    theirs = {} if published is None else dict(published.values)
    counted = theirs.pop("parameters", None)
    if not ours and not theirs:
        return Html()
    names = [n for n in METRICS if n in ours or n in theirs]
    names += [n for n in {**ours, **theirs} if n not in METRICS]
    rows = []
    for name in names:
        row = [METRICS.get(name, name)]
        row.append(with_error(ours[name]) if name in ours else "not measured")
        if published is not None:
            row.append(number(theirs[name]) if name in theirs else "–")
            row.append(_difference(ours.get(name), theirs.get(name)))
        rows.append(row)
    if counted is not None and run.parameters is not None:
        difference = f"{run.parameters - counted:+,.0f}"
        rows.append(["trained parameters", f"{run.parameters:,}", f"{counted:,.0f}", difference])
    header = ["Metric", "Ours", *(() if published is None else ("Published", "Difference"))]
    caption = "On the test set, ± one standard error over examples."
    parts: list[str] = [table(header, rows, caption)]
    if published is not None:
        about = f"Published: paper {published.paper}, row “{published.row}”."
        parts.append(element("p", f"{about} {published.note}".strip()))
    if run.recipe.cut and published is not None:
        text = f"Not the published settings: {run.recipe.cut}"
        parts.append(element("p", text, class_="notice"))
    return section("Results", *parts)


def _difference(ours: Score | None, theirs: float | None) -> str:
    if ours is None or theirs is None:
        return "–"
    gap = ours.value - theirs
    errors = f" ({gap / ours.error:+.1f} s.e.)" if ours.error else ""
    return f"{gap:+.4f}{errors}"


class _Judged(NamedTuple):
    """Test examples: the predicted class, its probability, the entropy, and the truth."""

    labels: Tensor
    confidence: Tensor
    entropy: Tensor
    truth: Tensor

    @property
    def right(self) -> Tensor:
        return self.labels == self.truth


def _judged(found: Study) -> _Judged | None:
    """What was predicted where every example has one class; else None."""
    if found.test is None or found.dataset is None:
        return None
    y = found.dataset.test[: found.test.samples.shape[1]].y
    log_probs = class_log_probs(found.test, y)
    if log_probs is None:
        return None
    probs = log_probs.exp()
    confidence, labels = probs.max(-1)
    return _Judged(labels, confidence, torch.special.entr(probs).sum(-1), y.flatten().long())


def calibration(found: Study) -> Html:
    """Reliability diagram, accuracy-rejection curve, and entropy of right and wrong predictions."""
    judged = _judged(found)
    if judged is None:
        return Html()
    confidence, entropy, right = judged.confidence, judged.entropy, judged.right
    bins = calibration_bins(confidence, right)
    rejected, accuracy = rejection_curve(entropy, right)
    half = float(accuracy[len(accuracy) // 2])
    return section(
        "Calibration",
        grid(
            [
                figure(
                    plots.reliability(bins.confidence, bins.accuracy, bins.examples),
                    f"Reliability diagram of {len(right)} test examples in 15 bins; expected "
                    f"calibration error {number(bins.calibration_error)}. Below the diagonal the "
                    "model is too sure, above it too unsure.",
                ),
                figure(
                    plots.rejection(rejected, accuracy),
                    "Accuracy-rejection curve: the most uncertain examples (by entropy) are "
                    f"rejected first. Accuracy is {number(float(accuracy[0]))} on all examples "
                    f"and {number(half)} on the more certain half.",
                ),
                *_entropies(entropy, right),
            ]
        ),
    )


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


def out_of_distribution(found: Study) -> Html:
    """Entropy on test images and on images that no network has been trained on."""
    if found.test is None or not found.outside:
        return Html()
    inside = found.test.entropy[:MOST_OUTSIDE]
    groups = {name: prediction.entropy for name, prediction in found.outside.items()}
    told = "; ".join(f"{name} {number(auroc(inside, e))}" for name, e in groups.items())
    return section(
        "In and out of distribution",
        grid(
            [
                figure(
                    plots.histograms({"test images": inside, **groups}, "entropy (nats)"),
                    f"Entropy of predictions on {len(inside)} test images and on the same images "
                    f"inverted or with their pixels shuffled. AUROC of entropy: {told} (0.5 is "
                    "chance, 1 tells all apart).",
                )
            ]
        ),
    )


def scales(found: Study) -> Html:
    """Standard deviations of the weights: heat maps and spectra."""
    if found.model is None:
        return Html()
    matrices = scale_matrices(found.model)
    if not matrices:
        return Html()
    shown = dict(list(matrices.items())[:_MOST_LAYERS])
    means = {n: mean for n, mean in mean_matrices(found.model).items() if n in shown}
    figures = [*_spectra(shown, "standard deviations σ"), *_spectra(means, "means μ")]
    figures += [
        figure(plots.heat_map(scale, "σ"), f"σ of {name}, {_shape(scale)}; {_range(scale)}.")
        for name, scale in shown.items()
    ]
    left = len(matrices) - len(shown)
    note = [element("p", f"The first {len(shown)} layers; {left} more are left out.")]
    return section(
        "Standard deviations of the weights",
        _signals(found.model),
        *(note if left else ()),
        grid(figures),
    )


def _signals(model: nn.Module) -> Html:
    """How far weights stand out of their own noise."""
    ratios = signal_to_noise(model)
    if not ratios:
        return Html()
    rows = [
        (
            name,
            f"{ratio.numel():,}",
            number(quartiles(ratio).median),
            f"{float((ratio < 1).float().mean()):.1%}",
        )
        for name, ratio in ratios.items()
    ]
    header = ("Layer", "Weights", "Median SNR", "SNR\u00a0<\u00a01")
    caption = "Signal-to-noise ratios |μ| / σ: weights below 1 are more noise than signal."
    return table(header, rows, caption)


def _spectra(matrices: Mapping[str, Tensor], what: str) -> list[Html]:
    """One picture, unless there is nothing but rank 1."""
    spectra = {name: explained(matrix) for name, matrix in matrices.items()}
    if all(len(shares) < 2 for shares in spectra.values()):
        return []
    caption = f"Spectra of the {what}: the share of the sum of squares in each singular value."
    return [figure(plots.spectra(spectra), caption)]


def _shape(matrix: Tensor) -> str:
    rows, columns = matrix.shape
    return f"{rows} outputs × {columns} inputs"


def _range(scale: Tensor) -> str:
    return (
        f"from {number(float(scale.min()))} to {number(float(scale.max()))}, "
        f"mean {number(float(scale.mean()))}"
    )


def dropout_rates(found: Study) -> Html:
    """Log α of every layer of Gaussian dropout, and how sparse it could be."""
    found_alphas = {} if found.model is None else log_alphas(found.model)
    layers = {name: alpha.flatten().cpu() for name, alpha in found_alphas.items()}
    if not layers:
        return Html()
    rows = [
        (
            name,
            f"{alpha.numel():,}",
            number(float(alpha.median())),
            f"{100 * float((alpha > _SPARSE).float().mean()):.1f} %",
        )
        for name, alpha in layers.items()
    ]
    header = ("Layer", "Weights", "Median log α", f"log\u00a0α\u00a0>\u00a0{_SPARSE:g}")
    shown = dict(list(layers.items())[:_MOST_LAYERS])
    single = all(bool((alpha == alpha[0]).all()) for alpha in shown.values())
    if single:
        png = plots.bars({name: float(alpha[0]) for name, alpha in shown.items()}, "log α")
    else:
        png = plots.histograms(shown, "log α")
    return section(
        "Dropout rates",
        table(header, rows, "Weights with a large α are mostly noise, and can be removed."),
        grid([figure(png, "log α of the weights, by layer.")]),
    )


def certain_images(found: Study) -> Html:
    """The test images with least and with most entropy."""
    judged = _judged(found)
    if judged is None or found.dataset is None or not is_images(found.dataset):
        return Html()
    order = judged.entropy.argsort(stable=True)
    figures = [
        _images(found.dataset, judged, order[:_IMAGES], "Most certain"),
        _images(found.dataset, judged, order.flip(0)[:_IMAGES], "Least certain"),
    ]
    return section("Most and least certain images", grid(figures))


def _images(dataset: Dataset, judged: _Judged, index: Tensor, which: str) -> Html:
    x, _ = dataset.test.take(index)
    raw = raw_images(x, dataset).float()
    low, high = raw.amin(), raw.amax()
    images = ((raw - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
    titles = [
        _name(dataset, guess)
        if guess == truth
        else f"{_name(dataset, guess)}, not {_name(dataset, truth)}"
        for guess, truth in zip(
            judged.labels[index].tolist(), judged.truth[index].tolist(), strict=True
        )
    ]
    wrong = (~judged.right[index]).tolist()
    return figure(
        plots.image_grid(images, titles, wrong),
        f"{which}: {len(titles)} test images and what the model takes them for; {sum(wrong)} "
        "of the predictions are wrong, in bold with the true class.",
    )


def _name(dataset: Dataset, label: int) -> str:
    return dataset.classes[label] if label < len(dataset.classes) else str(label)
