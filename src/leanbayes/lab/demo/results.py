"""Train the families, judge them, and say it all as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam

from leanbayes.lab.build import build_model
from leanbayes.lab.data import Examples, load_dataset
from leanbayes.lab.demo.families import DETERMINISTIC, Family, Settings
from leanbayes.lab.interrupts import interruptible
from leanbayes.lab.judge import foreign_auroc, foreign_images
from leanbayes.lab.recipe import Recipe
from leanbayes.lab.runs import Run
from leanbayes.lab.timing import Ratio, interleaved, ratio, training_step, versions
from leanbayes.lab.train import train
from leanbayes.metrics import Score
from leanbayes.parameters import count_parameters
from leanbayes.predict import Prediction, predict

__all__ = ["COLUMNS", "Column", "Result", "legend", "report", "run"]


@dataclass(frozen=True)
class Result:
    """What is known about one family after its training."""

    name: str
    group: str
    accuracy: Score
    nll: Score
    brier: Score
    calibration_error: float
    auroc_inverted: float
    auroc_shuffled: float
    parameters: int
    relative_parameters: float
    step_cost: Ratio
    seconds: float


@dataclass(frozen=True)
class Column:
    """How one number of a result is shown.

    Args:
        title: over the column of a page.
        short: over that of a terminal, which leaves out those without.
        value: takes the number out of a result.
        form: its format.
        best: which value is the best one, if any is.
        more: what is said beside it where there is room.
    """

    title: str
    short: str
    value: Callable[[Result], float]
    form: str = "{:.3f}"
    best: Callable[[Iterable[float]], float] | None = None
    more: Callable[[Result], str] = lambda result: ""

    def text(self, result: Result) -> str:
        """The number."""
        return self.form.format(self.value(result))


COLUMNS = (
    Column(
        "Accuracy, %",
        "acc.\n%",
        lambda r: 100 * r.accuracy.value,
        "{:.1f}",
        max,
        lambda r: f" ± {100 * r.accuracy.error:.1f}",
    ),
    Column("NLL", "\nNLL", lambda r: r.nll.value, best=min, more=lambda r: f" ± {r.nll.error:.3f}"),
    Column("Brier score", "", lambda r: r.brier.value, more=lambda r: f" ± {r.brier.error:.3f}"),
    Column("ECE", "\nECE", lambda r: r.calibration_error, best=min),
    Column("AUROC inverted", "AUROC\ninv.", lambda r: r.auroc_inverted, best=max),
    Column("AUROC shuffled", "AUROC\nshuf.", lambda r: r.auroc_shuffled, best=max),
    Column(
        "Parameters",
        "para-\nmeters",
        lambda r: r.relative_parameters,
        "{:.2f}×",
        more=lambda r: f" {r.parameters:>7,}",
    ),
    Column(
        "Step cost",
        "step\ncost",
        lambda r: r.step_cost.median,
        "{:.1f}×",
        more=lambda r: f" {r.step_cost.low:>4.1f}–{r.step_cost.high:.1f}",
    ),
)


def run(families: Sequence[Family], settings: Settings, folder: Path) -> Iterator[Result]:
    """Train and judge the families one by one; each depends on the seed alone.

    Args:
        families: which ones.
        settings: seed, epochs and so on.
        folder: where the run folders go, each by the name of its recipe.
    """
    for family in families:
        recipes = family.recipes(settings)
        runs = [folder / recipe.name for recipe in recipes]
        with interruptible(), torch.random.fork_rng(devices=[]):
            start = time.perf_counter()
            for recipe, path in zip(recipes, runs, strict=True):
                train(recipe, path, progress=False)
            result = _judge(family, runs, settings, time.perf_counter() - start)
        yield result


def _judge(family: Family, runs: Sequence[Path], settings: Settings, seconds: float) -> Result:
    """The mixture of all samples of all networks, on digits and on images that are none."""
    models = [Run(run).load()[0] for run in runs]
    dataset = load_dataset("digits")
    x, y = dataset.test.x, dataset.test.y

    def prediction(x: Tensor) -> Prediction:
        samples = (predict(m, x, samples=settings.samples, seed=settings.seed) for m in models)
        return Prediction(torch.cat([each.samples for each in samples]))

    test = prediction(x)
    scores = test.metrics(y)
    told_apart = {
        name: foreign_auroc(test.entropy, prediction(images).entropy)
        for name, images in foreign_images(x, dataset, settings.seed).items()
    }
    (plain,) = DETERMINISTIC.recipes(settings)
    parameters = sum(count_parameters(model).total for model in models)
    return Result(
        family.name,
        family.group,
        scores["accuracy"],
        scores["nll"],
        scores["brier"],
        scores["ece"].value,
        told_apart["inverted"],
        told_apart["pixels shuffled"],
        parameters=parameters,
        relative_parameters=parameters / count_parameters(build_model(plain)).total,
        step_cost=_step_cost(family.recipes(settings), plain, dataset.train, settings),
        seconds=seconds,
    )


def _step_cost(
    recipes: Sequence[Recipe], plain: Recipe, examples: Examples, settings: Settings
) -> Ratio:
    """Processor time of a training step of these networks, relative to one plain network's."""
    batch = examples[: settings.batch_size]
    x, y = batch.x, batch.y

    def stepper(models: Sequence[nn.Module]) -> Callable[[], object]:
        pairs = [(model, Adam(model.parameters())) for model in models]
        return lambda: [training_step(*pair, x, y, data_size=len(examples)) for pair in pairs]

    steps = {
        "plain": stepper([build_model(plain)]),
        "family": stepper([build_model(recipe) for recipe in recipes]),
    }
    seconds = interleaved(steps, settings.timing_rounds, time.process_time)
    return ratio(seconds["family"], seconds["plain"])


def report(
    results: Sequence[Result], settings: Settings, *, seconds: float, complete: bool
) -> dict[str, Any]:
    """Everything there is to say about a run, ready for JSON."""
    return {
        "complete": complete,
        "seconds": seconds,
        "settings": asdict(settings),
        "versions": versions(),
        "results": [
            {
                key: value._asdict() if isinstance(value, Score | Ratio) else value
                for key, value in vars(result).items()
            }
            for result in results
        ],
    }


def legend(settings: Settings, seconds: float) -> str:
    """What the numbers of the table mean, and what they depend on."""
    return (
        "Accuracy, negative log likelihood and calibration error (15 bins) on 360 test images; "
        "AUROC: how well the entropy of a prediction tells inverted, or pixel-shuffled, images "
        "from these. Parameters and processor time of a training step are relative to the "
        "deterministic network; in one this small much of the step is overhead, "
        "benchmarks/step_cost.py has larger ones. Rank-1 networks have 4 members, and each sees "
        "every image. The KL has a weight of 0.03 (cold posteriors); rate and epochs were chosen "
        "with test scores in sight.\n"
        f"Seed {settings.seed}, {settings.epochs} epochs, {settings.samples} samples a "
        f"prediction, {seconds:.0f} s."
    )
