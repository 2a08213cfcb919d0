"""Train and judge all families with all seeds, and say it all as JSON."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leanbayes.lab.demo.families import DETERMINISTIC, Family, Settings
from leanbayes.lab.demo.judged import Judged, judge
from leanbayes.lab.demo.processes import in_order
from leanbayes.lab.demo.scores import over_seeds
from leanbayes.lab.demo.timing import Ratio, versions
from leanbayes.lab.from_recipe import build_model
from leanbayes.lab.interrupts import interruptible
from leanbayes.metrics import Score
from leanbayes.training.parameter_groups import count_parameters


@dataclass(frozen=True, eq=False)
class Result:
    """What is known about one family after its training with every seed.

    Attributes:
        name: of the family.
        group: families of one group stand together.
        values: scores ``[seeds, images]`` on the same test images, by name of the metric.
        calibration_error: the average over seeds.
        parameters: how many are trained.
        relative_parameters: the same, relative to one plain network.
        step_cost: processor time of a training step, likewise.
        seconds: of training and judging.
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
        """How much more of it than another family, paired by seed and by test image."""
        return over_seeds(self.values[metric] - other.values[metric])


def run(
    families: Sequence[Family], settings: Settings, folder: Path, *, processes: int = 1
) -> Generator[Result]:
    """Train and judge the families one by one; each depends on its seeds alone."""
    (plain,) = DETERMINISTIC.recipes(settings, settings.seed)
    fewest = count_parameters(build_model(plain)).total
    work = [(family, settings, seed, folder) for family in families for seed in settings.all_seeds]
    with interruptible(), closing(in_order(judge, work, processes)) as coming:
        for family in families:
            yield _result(family, list(islice(coming, settings.seeds)), fewest)


def _result(family: Family, judged: Sequence[Judged], fewest: int) -> Result:
    first = judged[0]
    assert first.step_cost is not None
    return Result(
        family.name,
        family.group,
        {name: torch.tensor([j.values[name] for j in judged]).double() for name in first.values},
        sum(each.calibration_error for each in judged) / len(judged),
        first.parameters,
        first.parameters / fewest,
        first.step_cost,
        sum(each.seconds for each in judged),
    )


def report(
    results: Sequence[Result],
    settings: Settings,
    conclusions: Sequence[str],
    *,
    seconds: float,
    complete: bool,
) -> dict[str, Any]:
    """Everything there is to say about a run, ready for JSON."""
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
    detection = {name: score.value for name, score in scores.items() if name.startswith("auroc")}
    others = {name: score._asdict() for name, score in scores.items() if name not in detection}
    facts = {name: value for name, value in vars(result).items() if name != "values"}
    return {
        **facts,
        **others,
        **detection,
        "step_cost": result.step_cost._asdict(),
        "by_seed": {name: values.mean(1).tolist() for name, values in result.values.items()},
        "differences": {
            name: {"to": reference.name, **result.minus(reference, name)._asdict()}
            for name in result.values
        },
    }
