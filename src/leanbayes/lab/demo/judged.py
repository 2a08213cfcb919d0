"""Train and judge one family with one seed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam

from leanbayes.lab.data import Examples, load_dataset
from leanbayes.lab.demo.families import DETERMINISTIC, Family, Settings
from leanbayes.lab.demo.scores import auroc_by_image
from leanbayes.lab.demo.timing import Ratio, interleaved, ratio, training_step
from leanbayes.lab.evaluation import foreign_images
from leanbayes.lab.from_recipe import build_model
from leanbayes.lab.recipe import Recipe
from leanbayes.lab.runs import Run
from leanbayes.lab.train import train
from leanbayes.metrics import calibration_error
from leanbayes.prediction.predict import Prediction, predict
from leanbayes.training.parameter_groups import count_parameters


class Judged(NamedTuple):
    """What is known about one family after its training with one seed."""

    values: dict[str, list[float]]
    calibration_error: float
    parameters: int
    step_cost: Ratio | None
    seconds: float


def judge(family: Family, settings: Settings, seed: int, folder: Path) -> Judged:
    """Train a family with one seed, and judge it."""
    with torch.random.fork_rng(devices=[]):
        start = time.perf_counter()
        recipes = family.recipes(settings, seed)
        for recipe in recipes:
            train(recipe, folder / recipe.name, progress=False)
        models = [Run(folder / recipe.name).load()[0] for recipe in recipes]
        values, error = _judge(models, settings, seed)
        return Judged(
            {name: each.tolist() for name, each in values.items()},
            error,
            sum(count_parameters(model).total for model in models),
            _step_cost(family, settings) if seed == settings.seed else None,
            time.perf_counter() - start,
        )


def _judge(
    models: Sequence[nn.Module], settings: Settings, seed: int
) -> tuple[dict[str, Tensor], float]:
    """Scores of every test image, and the calibration error."""
    dataset = load_dataset("digits")

    def prediction(x: Tensor) -> Prediction:
        """The mixture of all samples of all networks."""
        drawn = (predict(m, x, samples=settings.samples, seed=seed) for m in models)
        return Prediction(torch.cat([each.samples for each in drawn]))

    x, y = dataset.test.x, dataset.test.y
    test = prediction(x)
    foreign = foreign_images(x, dataset, settings.seed)
    entropies = prediction(torch.cat(list(foreign.values()))).entropy.chunk(len(foreign))
    told = dict(zip(foreign, (auroc_by_image(test.entropy, e) for e in entropies), strict=True))
    detection = {
        "auroc_inverted": told["inverted"],
        "auroc_shuffled": told["pixels shuffled"],
    }
    return _by_image(test, y) | detection, calibration_error(test.probs, y).value


def _by_image(test: Prediction, y: Tensor) -> dict[str, Tensor]:
    probs = test.probs
    truth = F.one_hot(y, probs.shape[-1])
    return {
        "accuracy": (probs.argmax(-1) == y).double(),
        "nll": -test.log_likelihood(y).double(),
        "brier": (probs - truth).square().sum(-1).double(),
    }


def _step_cost(family: Family, settings: Settings) -> Ratio:
    """Processor time of a training step of a family, relative to one plain network's."""
    examples = load_dataset("digits").train
    (plain,) = DETERMINISTIC.recipes(settings, settings.seed)
    steps = {
        "plain": _stepper([plain], examples, settings),
        "family": _stepper(family.recipes(settings, settings.seed), examples, settings),
    }
    seconds = interleaved(steps, settings.timing_rounds, time.process_time)
    return ratio(seconds["family"], seconds["plain"])


def _stepper(
    recipes: Sequence[Recipe], examples: Examples, settings: Settings
) -> Callable[[], object]:
    batch, size = examples[: settings.batch_size], len(examples)
    models: list[nn.Module] = [build_model(recipe) for recipe in recipes]
    pairs = [(model, Adam(model.parameters())) for model in models]
    return lambda: [training_step(*pair, batch.x, batch.y, data_size=size) for pair in pairs]
