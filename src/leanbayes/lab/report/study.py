"""What a trained model says about test examples, and about images unlike any it has seen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from leanbayes.lab.build import load_data
from leanbayes.lab.data import Dataset
from leanbayes.lab.judge import foreign_images, is_images
from leanbayes.lab.runs import Run
from leanbayes.likelihoods import Bernoulli, Categorical, Likelihood
from leanbayes.predict import Prediction, predict
from leanbayes.spectrum import explained as explained_by

__all__ = ["Study", "class_log_probs", "explained", "rejection_curve", "study"]

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


def study(run: Run) -> Study:
    """Load what can be loaded, predict what can be predicted; never download anything."""
    problems: list[str] = []
    trained, dataset = _trained(run, problems), _dataset(run, problems)
    if trained is None or dataset is None:
        return Study(trained and trained[0], dataset, None, {}, tuple(problems))
    model, likelihood = trained
    examples = dataset.test[:MOST_EXAMPLES]
    if isinstance(likelihood, Bernoulli) and examples.y.numel() != len(examples):
        problems.append(
            "This model predicts many yes or no at once, such as the pixels of an image, so there "
            "is no diagram of its calibration."
        )
        return Study(model, dataset, None, {}, tuple(problems))
    predicted = partial(predict, model, likelihood=likelihood, **run.drawing())
    outside = {}
    if is_images(dataset) and isinstance(likelihood, Categorical):
        foreign = foreign_images(examples[:MOST_OUTSIDE].x, dataset, run.recipe.seed)
        outside = {name: predicted(x) for name, x in foreign.items()}
    return Study(model, dataset, predicted(examples.x), outside, tuple(problems))


def _trained(run: Run, problems: list[str]) -> tuple[nn.Module, Likelihood] | None:
    try:
        model, likelihood = run.load()
    except (OSError, ValueError, RuntimeError) as error:
        problems.append(f"The trained model could not be read: {error}.")
        return None
    return model, likelihood.requires_grad_(False)


def _dataset(run: Run, problems: list[str]) -> Dataset | None:
    try:
        return load_data(run.recipe, download=False)
    except (OSError, ValueError, ImportError) as error:
        problems.append(f"The data set could not be read, so what needs it is left out: {error}.")
        return None


def class_log_probs(prediction: Prediction, y: Tensor) -> Tensor | None:
    """Log probabilities ``[examples, classes]``; None where an example has not just one class.

    A Bernoulli output is two classes.

    Example:
        >>> prediction = Prediction(torch.zeros(1, 3, 1), Bernoulli())
        >>> class_log_probs(prediction, torch.ones(3, 1)).exp()[0]
        tensor([0.5000, 0.5000])
    """
    one = y.numel() == len(y)
    if not one or not isinstance(prediction.likelihood, Categorical | Bernoulli):
        return None
    log_probs = prediction.log_probs
    return log_probs.reshape(len(y), log_probs.shape[-1])


def rejection_curve(uncertainty: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Shares rejected, most uncertain first, and the accuracy on what is left.

    Example:
        >>> rejection_curve(torch.tensor([0.9, 0.1]), torch.tensor([False, True]))
        (tensor([0.0000, 0.5000]), tensor([0.5000, 1.0000]))
    """
    kept = right[uncertainty.argsort(stable=True)].float().cumsum(0).flip(0)
    left = torch.arange(len(right), 0, -1)
    return 1 - left / len(right), kept / left


def explained(scale: Tensor) -> Tensor:
    """Squared singular values over their sum, the first that are not rounding."""
    shares = explained_by(scale, None if min(scale.shape) <= _FULL_SPECTRUM else _SPECTRUM)
    return shares[shares > torch.finfo(scale.dtype).eps ** 2][:_SPECTRUM]
