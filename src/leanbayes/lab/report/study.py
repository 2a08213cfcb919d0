"""What a trained model says about test examples, and about images unlike any it has seen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leanbayes.lab import data
from leanbayes.lab.data import Dataset
from leanbayes.lab.predictions import load_run
from leanbayes.lab.recipe import Recipe
from leanbayes.lab.report.folder import RunFolder
from leanbayes.likelihoods import Likelihood
from leanbayes.metrics import Bins, calibration_bins
from leanbayes.metrics import auroc as auroc_of
from leanbayes.model import random_maps
from leanbayes.predict import Prediction, predict
from leanbayes.spectrum import explained as explained_by
from leanbayes.spectrum import is_matrix

__all__ = [
    "Bins",
    "Study",
    "auroc",
    "calibration_bins",
    "class_log_probs",
    "explained",
    "inverted",
    "is_images",
    "mean_matrices",
    "raw_images",
    "rejection_curve",
    "scale_matrices",
    "shuffled",
    "study",
]

MOST_EXAMPLES = 10_000
MOST_OUTSIDE = 2_000
_FULL_SPECTRUM = 1024
_SPECTRUM = 64


@dataclass(frozen=True)
class Study:
    """The parts of a run that its model and its data give; None where they give none.

    Attributes:
        model: the trained model.
        dataset: the data it was trained on.
        test: predictions on test examples.
        outside: the same on images made from them, by what was done to them.
        problems: one sentence for each part that is missing.
    """

    model: nn.Module | None
    dataset: Dataset | None
    test: Prediction | None
    outside: dict[str, Prediction]
    problems: tuple[str, ...]


def study(run: RunFolder) -> Study:
    """Load what can be loaded, predict what can be predicted; never download anything."""
    recipe = run.recipe
    problems: list[str] = []
    trained, dataset = _trained(run, problems), _dataset(recipe, problems)
    if trained is None or dataset is None:
        return Study(trained and trained[0], dataset, None, {}, tuple(problems))
    model, likelihood = trained
    examples = dataset.test[:MOST_EXAMPLES]
    single = examples.y.numel() == len(examples)
    if not single and _predict(model, likelihood, recipe, examples[:1].x).has_classes:
        problems.append(
            "This model predicts many yes or no at once, such as the pixels of an image, so there "
            "is no diagram of its calibration."
        )
        return Study(model, dataset, None, {}, tuple(problems))
    test = _predict(model, likelihood, recipe, examples.x)
    outside = {}
    if is_images(dataset) and test.has_classes:
        few = examples[:MOST_OUTSIDE].x
        foreign = {
            "inverted": inverted(few, dataset),
            "pixels shuffled": shuffled(few, dataset, recipe.seed),
        }
        outside = {name: _predict(model, likelihood, recipe, x) for name, x in foreign.items()}
    return Study(model, dataset, test, outside, tuple(problems))


def _trained(run: RunFolder, problems: list[str]) -> tuple[nn.Module, Likelihood] | None:
    try:
        _, model, likelihood = load_run(run.path)
    except (OSError, ValueError, RuntimeError) as error:
        problems.append(f"The trained model could not be read: {error}.")
        return None
    return model, likelihood.requires_grad_(False)


def _dataset(recipe: Recipe, problems: list[str]) -> Dataset | None:
    options = {**recipe.data.options, "download": False}
    try:
        return data.load(recipe.data.name, **options)
    except (OSError, ValueError, ImportError) as error:
        problems.append(f"The data set could not be read, so what needs it is left out: {error}.")
        return None


def _predict(model: nn.Module, likelihood: Likelihood, recipe: Recipe, x: Tensor) -> Prediction:
    chosen = recipe.evaluation
    return predict(
        model,
        x,
        samples=chosen.samples,
        batch_size=chosen.batch_size,
        seed=recipe.seed,
        likelihood=likelihood,
    )


def class_log_probs(prediction: Prediction, y: Tensor) -> Tensor | None:
    """Log probabilities ``[examples, classes]``; None where an example has not just one class.

    A Bernoulli output is two classes.

    Example:
        >>> import leanbayes as lb
        >>> prediction = Prediction(torch.zeros(1, 3, 1), lb.Bernoulli())
        >>> class_log_probs(prediction, torch.ones(3, 1)).exp()[0]
        tensor([0.5000, 0.5000])
    """
    if y.numel() != len(y) or not prediction.has_classes:
        return None
    log_probs = prediction.log_probs
    return log_probs.reshape(len(y), log_probs.shape[-1])


def is_images(dataset: Dataset) -> bool:
    """Whether inputs are ``[channels, rows, columns]`` of grey or colour images."""
    shape = dataset.input_shape
    return len(shape) == 3 and shape[0] in (1, 3) and dataset.task == "classification"


def raw_images(x: Tensor, dataset: Dataset) -> Tensor:
    """Images as they were before scaling."""
    return x if dataset.scaling is None else dataset.scaling.inverse(x)


def inverted(x: Tensor, dataset: Dataset) -> Tensor:
    """Images with dark and bright exchanged, before scaling."""
    raw = raw_images(x, dataset)
    return _scaled(raw.max() + raw.min() - raw, dataset)


def shuffled(x: Tensor, dataset: Dataset, seed: int) -> Tensor:
    """Images whose pixels have changed places, each in its own way, before scaling."""
    raw = raw_images(x, dataset).flatten(2)
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(len(raw), 1, raw.shape[-1], generator=generator).argsort(-1)
    return _scaled(raw.gather(-1, order.expand_as(raw)).reshape(x.shape), dataset)


def _scaled(raw: Tensor, dataset: Dataset) -> Tensor:
    return raw if dataset.scaling is None else dataset.scaling(raw)


def auroc(inside: Tensor, outside: Tensor) -> float:
    """How well a score tells outside from inside: the probability that outside has more of it.

    Example:
        >>> auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.3, 0.15]))
        0.75
    """
    is_outside = torch.arange(len(inside) + len(outside)) >= len(inside)
    return auroc_of(torch.cat([inside, outside]), is_outside)


def rejection_curve(uncertainty: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Shares rejected, most uncertain first, and the accuracy on what is left.

    Example:
        >>> rejection_curve(torch.tensor([0.9, 0.1]), torch.tensor([False, True]))
        (tensor([0.0000, 0.5000]), tensor([0.5000, 1.0000]))
    """
    kept = right[uncertainty.argsort(stable=True)].float().cumsum(0).flip(0)
    left = torch.arange(len(right), 0, -1)
    return 1 - left / len(right), kept / left


def scale_matrices(model: nn.Module) -> dict[str, Tensor]:
    """The standard deviations of every layer that has a whole matrix of them."""
    found = {}
    with torch.no_grad():
        for name, layer in random_maps(model):
            if layer.members == 1 and is_matrix(layer):
                scale = layer.posterior().variance.sqrt().cpu()
                if bool(scale.isfinite().all()) and bool((scale > 0).any()):
                    found[name or "layer"] = scale
    return found


def mean_matrices(model: nn.Module) -> dict[str, Tensor]:
    """The means of the same layers, where they are not all zero."""
    scales = scale_matrices(model)
    means = {name or "layer": layer.posterior().mean for name, layer in random_maps(model)}
    return {name: means[name].detach().cpu() for name in scales if bool(means[name].any())}


def explained(scale: Tensor) -> Tensor:
    """Squared singular values over their sum, the first that are not rounding."""
    shares = explained_by(scale, None if min(scale.shape) <= _FULL_SPECTRUM else _SPECTRUM)
    return shares[shares > torch.finfo(scale.dtype).eps ** 2][:_SPECTRUM]
