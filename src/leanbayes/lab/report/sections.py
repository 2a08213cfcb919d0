"""The sections of a report; each is empty where it does not apply."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from leanbayes.lab import plots
from leanbayes.lab.recipe import Recipe
from leanbayes.lab.report.folder import RunFolder
from leanbayes.lab.report.html import Html, element, figure, grid, join, table
from leanbayes.lab.report.study import (
    MOST_OUTSIDE,
    Study,
    auroc,
    calibration_bins,
    explained,
    is_images,
    raw_images,
    rejection_curve,
    scale_matrices,
)
from leanbayes.metrics import Estimate
from leanbayes.model import random_maps
from leanbayes.posteriors import Dropout

__all__ = [
    "METRICS",
    "calibration",
    "certain_images",
    "dropout_rates",
    "learning_curves",
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
    "kl": "KL per training example",
    "accuracy": "accuracy",
    "brier": "Brier score",
    "ece": "calibration error (15 bins)",
    "entropy": "predictive entropy",
    "mutual_information": "mutual information",
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


def with_error(estimate: Estimate) -> str:
    """A value, with its standard error where it has one."""
    error = f" ± {number(estimate.error)}" if estimate.error else ""
    return number(estimate.value) + error


def what_was_run(run: RunFolder) -> Html:
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
    return _section("What was run", body, whole)


def _described(name: str, options: Mapping[str, object]) -> str:
    details = ", ".join(f"{key} {value}" for key, value in options.items())
    return f"{name} ({details})" if name and details else name or details


def _training(recipe: Recipe) -> str:
    training, optimizer = recipe.training, recipe.optimizer
    return (
        f"{training.epochs} epochs in batches of {training.batch_size}, {optimizer.name} with "
        f"learning rate {optimizer.lr:g} ({recipe.learning_rate.kind}), "
        f"KL weight {recipe.kl.kind}"
    )


def results(run: RunFolder) -> Html:
    """Our test metrics next to the published ones."""
    ours, published = run.metrics, run.recipe.published
    theirs = {} if published is None else published.values
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
    header = ["Metric", "Ours", *(() if published is None else ("Published", "Difference"))]
    caption = "On the test set, ± one standard error over examples."
    parts: list[str] = [table(header, rows, caption)]
    if published is not None:
        about = f"Published: paper {published.paper}, row “{published.row}”."
        parts.append(element("p", f"{about} {published.note}".strip()))
    if run.recipe.cut and published is not None:
        text = f"Not the published settings: {run.recipe.cut}"
        parts.append(element("p", text, class_="notice"))
    return _section("Results", *parts)


def _difference(ours: Estimate | None, theirs: float | None) -> str:
    if ours is None or theirs is None:
        return "–"
    gap = ours.value - theirs
    errors = f" ({gap / ours.error:+.1f} s.e.)" if ours.error else ""
    return f"{gap:+.4f}{errors}"


def learning_curves(run: RunFolder) -> Html:
    """−ELBO, NLL, accuracy and the KL of each layer, by epoch."""
    columns = run.columns
    epochs = columns.get("epoch", [])
    if not epochs:
        return Html()
    x = [epoch + 1 for epoch in epochs]
    figures = []
    for key, label in (
        ("negative_elbo", "−ELBO per example"),
        ("nll", "NLL per example"),
        ("accuracy", "accuracy"),
    ):
        lines = {
            part: columns[f"{part}/{key}"]
            for part in ("train", "validation")
            if f"{part}/{key}" in columns
        }
        if lines:
            parts = " and ".join(lines)
            figures.append(
                figure(plots.curves(x, lines, label), f"{label[0].upper()}{label[1:]}: {parts}.")
            )
    layers = _largest(
        {
            name.removeprefix("kl/").removeprefix("model.") or "layer": values
            for name, values in columns.items()
            if name.startswith("kl/")
        }
    )
    if layers:
        caption = "KL from the prior by layer, in nats."
        figures.append(figure(plots.curves(x, layers, "KL (nats)", log=True), caption))
    if "kl_weight" in columns and len(set(columns["kl_weight"])) > 1:
        weight = plots.curves(x, {"weight": columns["kl_weight"]}, "weight of the KL")
        figures.append(figure(weight, "The weight of the KL in the loss, averaged over an epoch."))
    return _section("Learning curves", grid(figures)) if figures else Html()


def _largest(layers: dict[str, list[float]]) -> dict[str, list[float]]:
    """The layers with most KL at the end; the sum of the others as one line."""
    if len(layers) <= _MOST_LAYERS:
        return layers
    kept = sorted(layers, key=lambda name: layers[name][-1])[-_MOST_LAYERS + 1 :]
    others = [values for name, values in layers.items() if name not in kept]
    shown = {name: values for name, values in layers.items() if name in kept}
    return {**shown, f"{len(others)} others": [sum(step) for step in zip(*others, strict=True)]}


def _right(found: Study) -> tuple[Tensor, Tensor, Tensor]:
    """Confidence, entropy and rightness of every test example."""
    assert found.test is not None
    assert found.dataset is not None
    probs, y = found.test.probs, found.dataset.test[: found.test.samples.shape[1]].y
    return probs.amax(-1), found.test.entropy, found.test.labels == y


def calibration(found: Study) -> Html:
    """Reliability diagram and accuracy-rejection curve."""
    if found.test is None:
        return Html()
    confidence, entropy, right = _right(found)
    if right.ndim != 1:
        return Html()
    bins = calibration_bins(confidence, right)
    rejected, accuracy = rejection_curve(entropy, right)
    half = float(accuracy[len(accuracy) // 2])
    return _section(
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
            ]
        ),
    )


def out_of_distribution(found: Study) -> Html:
    """Entropy on test images and on images that no network has been trained on."""
    if found.test is None or not found.outside:
        return Html()
    inside = found.test.entropy[:MOST_OUTSIDE]
    groups = {name: prediction.entropy for name, prediction in found.outside.items()}
    told = "; ".join(f"{name} {number(auroc(inside, e))}" for name, e in groups.items())
    return _section(
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
    matrices = {} if found.model is None else scale_matrices(found.model)
    if not matrices:
        return Html()
    shown = dict(list(matrices.items())[:_MOST_LAYERS])
    spectra = {name: explained(scale) for name, scale in shown.items()}
    figures = [
        figure(
            plots.spectra(spectra),
            "Spectra of the matrices of standard deviations σ: the share of Σσ² that each "
            "singular value explains.",
        )
    ]
    figures += [
        figure(plots.heat_map(scale, "σ"), f"σ of {name}, {_shape(scale)}; {_range(scale)}.")
        for name, scale in shown.items()
    ]
    left = len(matrices) - len(shown)
    note = [element("p", f"The first {len(shown)} layers; {left} more are left out.")]
    return _section("Standard deviations of the weights", *(note if left else ()), grid(figures))


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
    if found.model is None:
        return Html()
    with torch.no_grad():
        layers = {
            name or "layer": -layer.posterior().log_inverse_alpha().flatten().cpu()
            for name, layer in random_maps(found.model)
            if isinstance(layer.posterior.recipe, Dropout)
        }
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
    header = ("Layer", "Weights", "Median log α", f"log α > {_SPARSE:g}")
    shown = dict(list(layers.items())[:_MOST_LAYERS])
    single = all(bool((alpha == alpha[0]).all()) for alpha in shown.values())
    if single:
        png = plots.bars({name: float(alpha[0]) for name, alpha in shown.items()}, "log α")
    else:
        png = plots.histograms(shown, "log α")
    return _section(
        "Dropout rates",
        table(header, rows, "Weights with a large α are mostly noise, and can be removed."),
        grid([figure(png, "log α of the weights, by layer.")]),
    )


def certain_images(found: Study) -> Html:
    """The test images with least and with most entropy."""
    if found.test is None or found.dataset is None or not is_images(found.dataset):
        return Html()
    _, entropy, right = _right(found)
    order = entropy.argsort(stable=True)
    figures = [
        _images(found, order[:_IMAGES], right, "Most certain"),
        _images(found, order.flip(0)[:_IMAGES], right, "Least certain"),
    ]
    return _section("Most and least certain images", grid(figures))


def _images(found: Study, index: Tensor, right: Tensor, which: str) -> Html:
    assert found.test is not None
    assert found.dataset is not None
    x, y = found.dataset.test.take(index)
    raw = raw_images(x, found.dataset).float()
    low, high = raw.amin(), raw.amax()
    images = ((raw - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
    labels = found.test.labels[index].tolist()
    titles = [
        _name(found, guess)
        if guess == truth
        else f"{_name(found, guess)}, not {_name(found, truth)}"
        for guess, truth in zip(labels, y.tolist(), strict=True)
    ]
    wrong = (~right[index]).tolist()
    return figure(
        plots.image_grid(images, titles, wrong),
        f"{which}: {len(titles)} test images and what the model takes them for; {sum(wrong)} "
        "of the predictions are wrong, in bold with the true class.",
    )


def _name(found: Study, label: int) -> str:
    assert found.dataset is not None
    classes = found.dataset.classes
    return classes[label] if label < len(classes) else str(label)


def _section(title: str, *parts: str) -> Html:
    return element("section", element("h3", title), join(parts))
