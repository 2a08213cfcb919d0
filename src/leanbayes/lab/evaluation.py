"""Evaluation of a trained run: on test examples, other data, damaged images; or of two runs."""

from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes import metrics
from leanbayes.errors import require
from leanbayes.lab.data import Dataset, Examples, load_dataset
from leanbayes.lab.data.user import load_like
from leanbayes.lab.runs import Run
from leanbayes.likelihoods import Likelihood
from leanbayes.metrics import Score, average
from leanbayes.metrics.numbers import of_examples
from leanbayes.models.random_maps import kl, members, random_maps
from leanbayes.prediction.inputs import in_precision_of
from leanbayes.prediction.predict import Prediction, predict


def evaluate(
    model: nn.Module,
    examples: Examples,
    likelihood: Likelihood,
    *,
    samples: int = 100,
    batch_size: int = 1000,
    seed: int = 42,
    data_size: int | None = None,
) -> dict[str, dict[str, float]]:
    """Return every metric of the papers' tables, with its standard error over examples."""
    prediction = predict(
        model,
        in_precision_of(model, examples.x),
        samples=samples,
        batch_size=batch_size,
        seed=seed,
        likelihood=likelihood,
    )
    values = prediction.metrics(examples.y)
    values |= _diversity_of_members(model, prediction, examples.y)
    if data_size is not None and any(True for _ in random_maps(model)):
        with torch.no_grad():
            per_example = float(kl(model)) / data_size
        gibbs = metrics.average(-likelihood.log_prob(prediction.samples, examples.y).mean(0))
        values["average_nll"] = gibbs
        values["kl"] = Score(per_example, 0.0)
        values["negative_elbo"] = Score(gibbs.value + per_example, gibbs.error)
    return {name: estimate._asdict() for name, estimate in values.items()}


def _diversity_of_members(model: nn.Module, prediction: Prediction, y: Tensor) -> dict[str, Score]:
    """How much members disagree, each the average of its samples, if it has more than one."""
    count, samples = members(model), prediction.samples
    if count == 1 or len(samples) == count or not prediction.has_classes or samples.ndim != 3:
        return {}
    log_probs = metrics.member_log_probs(prediction.sample_log_probs, count)
    values = {"member_disagreement": metrics.disagreement(log_probs)}
    if bool((log_probs.argmax(-1) != y).any()):  # without errors there is nothing to compare with
        values["member_diversity"] = metrics.diversity(log_probs, y)
    return values


def evaluate_run(
    folder: str | Path,
    *,
    samples: int = 100,
    data: str | None = None,
) -> dict[str, dict[str, float]]:
    """Evaluate a finished run again: with other samples, or on other data."""
    run = Run(folder)
    model, likelihood = run.load()
    examples = examples_of(run, data)
    size = run.data_size if data is None else None
    return evaluate(model, examples, likelihood, data_size=size, **run.drawing(samples))


def examples_of(run: Run, data: str | None = None) -> Examples:
    """Return the test examples of a run, or those of another data set as the run would see them."""
    own = run.dataset
    if data is None:
        return own.test
    if own.columns and Path(data).suffix.lower() == ".csv" and Path(data).is_file():
        return as_learned(load_like(Path(data), own, run.recipe.data.options), own)
    return as_learned(load_dataset(data), own)


def as_learned(other: Dataset, own: Dataset) -> Examples:
    """Return the test examples of another data set, scaled and numbered as in training.

    Classes are compared by name where the other's are among the model's own; classes of which
    none is known keep their numbers.
    """
    test = other.test
    stored, targets, at_once = test.stored, test.targets, test.scaling is not None
    if not at_once and other.scaling is not None and own.scaling is not None:
        stored = own.scaling(other.scaling.inverse(stored))
    if targets is not None and other.target_scaling is not None and own.target_scaling is not None:
        targets = own.target_scaling(other.target_scaling.inverse(targets))
    known = [name for name in other.classes if name in own.classes]
    if known and other.classes != own.classes:
        unknown = [name for name in other.classes if name not in own.classes]
        require(
            not unknown,
            f"{other.name} has the class {unknown[:1]}, which the run does not have; its classes "
            f"are {', '.join(own.classes)}",
        )
        targets = torch.tensor([own.classes.index(name) for name in other.classes])[test.y]
    return Examples(stored, targets, own.scaling if at_once else None)


def is_images(dataset: Dataset) -> bool:
    """Return whether inputs are ``[channels, rows, columns]`` of gray or color images."""
    shape = dataset.input_shape
    return len(shape) == 3 and shape[0] in (1, 3) and dataset.task == "classification"


def raw_images(x: Tensor, dataset: Dataset) -> Tensor:
    """Return images as they were before scaling."""
    return x if dataset.scaling is None else dataset.scaling.inverse(x)


def foreign_images(x: Tensor, dataset: Dataset, seed: int) -> dict[str, Tensor]:
    """Return images unlike any of the data set, made from its own before scaling.

    Those ``inverted`` have dark and bright exchanged; of those with ``pixels shuffled`` each has
    changed the places of its pixels in its own way.
    """
    raw = raw_images(x, dataset)
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(len(raw), 1, raw[0, 0].numel(), generator=generator).argsort(-1)
    pixels = raw.flatten(2)
    foreign = {
        "inverted": raw.max() + raw.min() - raw,
        "pixels shuffled": pixels.gather(-1, order.expand_as(pixels)).reshape(x.shape),
    }
    if dataset.scaling is None:
        return foreign
    return {name: dataset.scaling(images) for name, images in foreign.items()}


def foreign_auroc(familiar: Tensor, foreign: Tensor) -> float:
    """Return how well a score detects OOD images: the probability that one of them has more."""
    scores = torch.cat([familiar, foreign])
    return metrics.auroc(scores, torch.arange(len(scores)) >= len(familiar)).value


def foreign_scores(
    folder: str | Path, data: str, *, samples: int = 100, images: int | None = None
) -> dict[str, dict[str, float]]:
    """Return the AUROC of OOD detection, with the images of another data set."""
    run = Run(folder)
    model, likelihood = run.load()
    own, other = run.dataset.test[:images], load_dataset(data)
    shape = tuple(own.stored.shape[1:])
    require(
        tuple(other.input_shape) == shape,
        f"{data} has inputs of shape {other.input_shape}, and the run's are {shape}; give a data "
        "set of the same shape",
    )
    require(
        run.dataset.task == "classification",
        f"{run.dataset.name} has no classes, and OOD detection needs the entropy of classes",
    )
    stored, at_once = other.test.stored[:images], other.test.scaling is not None
    foreign = Examples(stored, None, run.dataset.scaling if at_once else None)
    drawn = [
        predict(
            model, in_precision_of(model, part.x), likelihood=likelihood, **run.drawing(samples)
        )
        for part in (own, foreign)
    ]
    is_foreign = torch.arange(len(own) + len(foreign)) >= len(own)
    scores = {}
    for name in ("entropy", "mutual_information"):
        values = torch.cat([getattr(prediction, name) for prediction in drawn])
        scores[f"auroc_{name}"] = metrics.auroc(values, is_foreign)._asdict()
    return scores


class Comparison(NamedTuple):
    """One metric of two runs, and the second less the first, paired by example."""

    first: Score
    second: Score
    difference: Score

    @property
    def is_significant(self) -> bool:
        """Whether the difference exceeds two standard errors."""
        return abs(self.difference.value) > 2 * self.difference.error


def compare_runs(
    first: str | Path, second: str | Path, *, samples: int = 100
) -> dict[str, Comparison]:
    """Compare two finished runs example by example."""
    runs = [Run(first), Run(second)]
    truths = [run.dataset.test.y for run in runs]
    require(
        torch.equal(*truths),
        f"both runs must have the same test set, got {runs[0].dataset.name} and "
        f"{runs[1].dataset.name} with other targets. Compare runs of the same data and split",
    )
    a, b = (_scores(run, truths[0], samples) for run in runs)
    return {
        name: Comparison(average(a[name]), average(b[name]), average(b[name] - a[name]))
        for name in a
        if name in b
    }


def _scores(run: Run, y: Tensor, samples: int) -> dict[str, Tensor]:
    """Return scores ``[examples]`` by name of the metric."""
    model, likelihood = run.load()
    x = in_precision_of(model, run.dataset.test.x)
    prediction = predict(model, x, likelihood=likelihood, **run.drawing(samples)).to(torch.float64)
    scores = {"nll": of_examples(-prediction.log_likelihood(y))}
    if not prediction.has_classes:
        return scores | {"squared_error": of_examples((prediction.mean - y).square())}
    if y.numel() != len(y):
        return scores
    probs = prediction.probs.flatten(0, -2)
    scores["accuracy"] = (probs.argmax(-1) == y.flatten()).double()
    truth = F.one_hot(y.flatten().long(), probs.shape[-1])
    return scores | {"brier": (probs - truth).square().sum(-1)}
