"""Judge a trained model: on examples it has not seen, on foreign images and on damaged ones."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from leanbayes import metrics
from leanbayes.errors import require
from leanbayes.lab.corruptions import corrupt_examples
from leanbayes.lab.data import Dataset, Examples, load_dataset
from leanbayes.lab.data.user import load_like
from leanbayes.lab.runs import Run
from leanbayes.likelihoods import Likelihood
from leanbayes.metrics import Score
from leanbayes.models.members import members
from leanbayes.models.model_kl import kl
from leanbayes.models.random_maps import random_maps
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
    """Every metric of the papers' tables, with its standard error over examples."""
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
    corrupt: str | None = None,
    severity: int = 3,
) -> dict[str, dict[str, float]]:
    """Evaluate a finished run again: with other samples, on other data, on corrupted images."""
    run = Run(folder)
    model, likelihood = run.load()
    examples = examples_of(run, data)
    if corrupt is not None:
        return evaluate_corruption(
            run, model, likelihood, examples, corrupt, severity, samples=samples
        )
    size = run.data_size if data is None else None
    return evaluate(model, examples, likelihood, data_size=size, **run.drawing(samples))


def examples_of(run: Run, data: str | None = None) -> Examples:
    """The test examples of a run, or those of another data set as the run would see them."""
    own = run.dataset
    if data is None:
        return own.test
    if own.columns and Path(data).suffix.lower() == ".csv" and Path(data).is_file():
        return as_learnt(load_like(Path(data), own, run.recipe.data.options), own)
    return as_learnt(load_dataset(data), own)


def evaluate_corruption(
    run: Run,
    model: nn.Module,
    likelihood: Likelihood,
    examples: Examples,
    name: str,
    severity: int,
    *,
    samples: int = 100,
) -> dict[str, dict[str, float]]:
    """Evaluate on damaged images; the recipe's seed is that of the damage."""
    damaged = corrupt_examples(examples, name, severity, seed=run.recipe.seed)
    return evaluate(model, damaged, likelihood, **run.drawing(samples))


def as_learnt(other: Dataset, own: Dataset) -> Examples:
    """The test examples of another data set, scaled and numbered as those a model has learnt from.

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
            f"{other.name} has the class {unknown[:1]}, which the run has not learnt; it knows "
            f"{', '.join(own.classes)}",
        )
        targets = torch.tensor([own.classes.index(name) for name in other.classes])[test.y]
    return Examples(stored, targets, own.scaling if at_once else None)


def is_images(dataset: Dataset) -> bool:
    """Whether inputs are ``[channels, rows, columns]`` of grey or colour images."""
    shape = dataset.input_shape
    return len(shape) == 3 and shape[0] in (1, 3) and dataset.task == "classification"


def raw_images(x: Tensor, dataset: Dataset) -> Tensor:
    """Images as they were before scaling."""
    return x if dataset.scaling is None else dataset.scaling.inverse(x)


def foreign_images(x: Tensor, dataset: Dataset, seed: int) -> dict[str, Tensor]:
    """Images unlike any of the data set, made of some of its own before scaling.

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
    """How well a score tells foreign images: the probability that a foreign one has more of it.

    Example:
        >>> foreign_auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.3, 0.15]))
        0.75
    """
    scores = torch.cat([familiar, foreign])
    return metrics.auroc(scores, torch.arange(len(scores)) >= len(familiar)).value


def foreign_scores(
    folder: str | Path, data: str, *, samples: int = 100, images: int | None = None
) -> dict[str, dict[str, float]]:
    """How well a finished run tells the images of another data set from its own test images."""
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
        f"{run.dataset.name} has no classes, so its predictions have no entropy to tell by",
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


def corrupted_means(
    results: Mapping[tuple[str, int], Mapping[str, Mapping[str, float]]],
) -> dict[str, float]:
    """The averages over kinds and severities that the rank-1 paper prints as cNLL, cA and cECE.

    Args:
        results: metrics as :func:`evaluate` gives them, by name of the
            corruption and severity; every corruption has the same severities.

    Example:
        >>> corrupted_means({("blur", 1): {"nll": {"value": 1.0}},
        ...                  ("blur", 2): {"nll": {"value": 2.0}}})
        {'nll': 1.5}
    """
    _check_complete(results)
    first, *others = results.values()
    names = [name for name in first if all(name in other for other in others)]
    totals = {name: sum(result[name]["value"] for result in results.values()) for name in names}
    return {name: total / len(results) for name, total in totals.items()}


def mean_corruption_error(
    errors: Mapping[tuple[str, int], float], reference: Mapping[tuple[str, int], float]
) -> float:
    """The mCE: errors of each corruption relative to a reference network's, averaged over kinds.

    Example:
        >>> mean_corruption_error({("blur", 1): 0.2, ("fog", 1): 0.3},
        ...                       {("blur", 1): 0.4, ("fog", 1): 0.3})
        0.75
    """
    _check_complete(errors)
    require(errors.keys() <= reference.keys(), "the reference lacks some of the corruptions")
    kinds = sorted({kind for kind, _ in errors})

    def total(rates: Mapping[tuple[str, int], float], kind: str) -> float:
        return sum(rates[key] for key in errors if key[0] == kind)

    return sum(total(errors, kind) / total(reference, kind) for kind in kinds) / len(kinds)


def _check_complete(results: Mapping[tuple[str, int], object]) -> None:
    require(bool(results), "there are no results to average; evaluate a corruption first")
    kinds, severities = ({key[i] for key in results} for i in range(2))
    absent = [(k, s) for k in kinds for s in severities if (k, s) not in results]
    require(not absent, f"{absent[:1]} has no result; every corruption needs the same severities")
