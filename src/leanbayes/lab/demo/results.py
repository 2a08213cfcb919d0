"""Training and scoring of all families with all seeds, and the results as JSON."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam

from leanbayes.lab.data import Examples, load_dataset
from leanbayes.lab.demo.families import DETERMINISTIC, Family, Settings
from leanbayes.lab.demo.processes import map_in_processes
from leanbayes.lab.demo.timing import Ratio, interleaved, ratio, training_step, versions
from leanbayes.lab.evaluation import foreign_images
from leanbayes.lab.from_recipe import build_model
from leanbayes.lab.interrupts import interruptible
from leanbayes.lab.recipe import Recipe
from leanbayes.lab.runs import Run
from leanbayes.lab.train import train
from leanbayes.metrics import Score, average, calibration_error, placements
from leanbayes.prediction.predict import Prediction, predict
from leanbayes.training.parameter_groups import count_parameters


@dataclass(frozen=True, eq=False)
class Result:
    """One family after its training with every seed.

    Attributes:
        name: of the family.
        group: families of one group stand together.
        values: scores ``[seeds, images]`` on the same test images, by name of the metric.
        calibration_error: the average over seeds.
        parameters: how many are trained.
        relative_parameters: the same, relative to one plain network.
        step_cost: processor time of a training step, likewise.
        seconds: of training and scoring.
    """

    name: str
    group: str
    values: Mapping[str, Tensor]
    calibration_error: float
    parameters: int
    relative_parameters: float
    step_cost: Ratio
    seconds: float

    def score(self, metric: str) -> Score:
        """The average over seeds and test images."""
        return over_seeds(self.values[metric])

    def minus(self, other: Result, metric: str) -> Score:
        """The difference to another family, paired by seed and by test image."""
        return over_seeds(self.values[metric] - other.values[metric])


def over_seeds(values: Tensor) -> Score:
    """The average of ``values [seeds, images]``, with a standard error for seeds and images alike.

    ``error² = var(means of seeds) / seeds + var(means of images) / images``: what another draw of
    seeds would change, and another draw of test images. Noise that belongs to single pairs of both
    is in either term, which errs on the safe side. One seed leaves the second term alone.

    Example:
        >>> over_seeds(torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
        1.5 ± 1.1
    """
    by_image = average(values.double().mean(0))
    by_seed = values.double().mean(1)
    variance = float(by_seed.var()) / len(by_seed) if len(by_seed) > 1 else 0.0
    return Score(by_image.value, math.sqrt(by_image.error**2 + variance))


def is_significant(difference: Score) -> bool:
    """Whether a difference is larger than two standard errors."""
    return abs(difference.value) > 2 * difference.error


def run(
    families: Sequence[Family], settings: Settings, folder: Path, *, processes: int = 1
) -> Generator[Result]:
    """Train and score the families one by one, in run folders named after their recipes."""
    (plain,) = DETERMINISTIC.recipes(settings, settings.seed)
    fewest = count_parameters(build_model(plain)).total
    work = [(family, settings, seed, folder) for family in families for seed in settings.all_seeds]
    with interruptible(), closing(map_in_processes(_train_and_score, work, processes)) as coming:
        for family in families:
            runs = list(islice(coming, settings.seeds))
            first = runs[0]
            assert first.step_cost is not None
            yield Result(
                family.name,
                family.group,
                {n: torch.tensor([r.values[n] for r in runs]).double() for n in first.values},
                sum(each.calibration_error for each in runs) / len(runs),
                first.parameters,
                first.parameters / fewest,
                first.step_cost,
                sum(each.seconds for each in runs),
            )


class _Run(NamedTuple):
    """One family after its training with one seed; the first seed also times a step."""

    values: dict[str, list[float]]
    calibration_error: float
    parameters: int
    step_cost: Ratio | None
    seconds: float


def _train_and_score(family: Family, settings: Settings, seed: int, folder: Path) -> _Run:
    with torch.random.fork_rng(devices=[]):
        start = time.perf_counter()
        recipes = family.recipes(settings, seed)
        for recipe in recipes:
            train(recipe, folder / recipe.name, progress=False)
        models = [Run(folder / recipe.name).load()[0] for recipe in recipes]
        values, error = _scores(models, settings, seed)
        return _Run(
            {name: each.tolist() for name, each in values.items()},
            error,
            sum(count_parameters(model).total for model in models),
            _step_cost(family, settings) if seed == settings.seed else None,
            time.perf_counter() - start,
        )


def _scores(
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
    probs, truth = test.probs, F.one_hot(y, test.probs.shape[-1])
    foreign = foreign_images(x, dataset, settings.seed)
    entropies = prediction(torch.cat(list(foreign.values()))).entropy.chunk(len(foreign))
    aurocs = dict(zip(foreign, (auroc_by_image(test.entropy, e) for e in entropies), strict=True))
    values = {
        "accuracy": (probs.argmax(-1) == y).double(),
        "nll": -test.log_likelihood(y).double(),
        "brier": (probs - truth).square().sum(-1).double(),
        "auroc_inverted": aurocs["inverted"],
        "auroc_shuffled": aurocs["pixels shuffled"],
    }
    return values, calibration_error(probs, y).value


def auroc_by_image(familiar: Tensor, foreign: Tensor) -> Tensor:
    """The share of each image in an AUROC; their average is the AUROC.

    An image counts as itself (how many foreign ones score above it) and as the foreign one made
    from it (how many familiar ones score below that), less the AUROC. The standard error of the
    average is then that of the AUROC over images [DeLong et al. 1988], and a paired one for the
    difference of two networks.

    Example:
        >>> auroc_by_image(torch.tensor([0.1, 0.2]), torch.tensor([0.3, 0.15]))
        tensor([1.2500, 0.2500], dtype=torch.float64)
    """
    above, below = placements(foreign, familiar), placements(-familiar, -foreign)
    return below + above - above.mean()


def _step_cost(family: Family, settings: Settings) -> Ratio:
    """Processor time of a training step of a family, relative to one plain network's."""
    examples = load_dataset("digits").train
    steps = {
        name: _stepper(each.recipes(settings, settings.seed), examples, settings)
        for name, each in (("plain", DETERMINISTIC), ("family", family))
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


def report(
    results: Sequence[Result],
    settings: Settings,
    conclusions: Sequence[str],
    *,
    seconds: float,
    complete: bool,
) -> dict[str, Any]:
    """All results of a run, ready for JSON."""
    return {
        "complete": complete,
        "seconds": seconds,
        "settings": asdict(settings),
        "versions": versions(),
        "conclusions": list(conclusions),
        "results": [_row(result, results[0]) for result in results],
    }


def _row(result: Result, reference: Result) -> dict[str, Any]:
    scores = {metric: result.score(metric) for metric in result.values}
    facts = {name: value for name, value in vars(result).items() if name != "values"}
    return {
        **facts,
        **{n: s.value if n.startswith("auroc") else s._asdict() for n, s in scores.items()},
        "step_cost": result.step_cost._asdict(),
        "by_seed": {name: values.mean(1).tolist() for name, values in result.values.items()},
        "differences": {
            name: {"to": reference.name, **result.minus(reference, name)._asdict()}
            for name in result.values
        },
    }
