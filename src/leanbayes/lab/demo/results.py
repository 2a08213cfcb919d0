"""Training and scoring of the methods, the verdict, and the results as JSON."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.lab.data import Dataset, load_dataset
from leanbayes.lab.demo.families import RECOMMENDED, Family, Settings
from leanbayes.lab.evaluation import foreign_images
from leanbayes.lab.provenance import environment_facts
from leanbayes.metrics import Score, average, calibration_error
from leanbayes.metrics.ranking import placements


@dataclass(frozen=True, eq=False)
class Result:
    """One method after its training with every seed."""

    name: str
    values: Mapping[str, Tensor]
    calibration_error: float
    parameters: int
    seconds: float

    def score(self, metric: str) -> Score:
        """Return the average over seeds and test images."""
        return over_seeds(self.values[metric])

    def minus(self, other: Result, metric: str) -> Score:
        """Return the difference to another method, paired by seed and by test image."""
        return over_seeds(self.values[metric] - other.values[metric])


def over_seeds(values: Tensor) -> Score:
    """Average ``values [seeds, images]``, with a standard error for seeds and images alike.

    ``error² = var(means of seeds) / seeds + var(means of images) / images``: what another draw of
    seeds would change, and another draw of test images. One seed leaves the second term alone.
    """
    by_image = average(values.double().mean(0))
    by_seed = values.double().mean(1)
    variance = float(by_seed.var()) / len(by_seed) if len(by_seed) > 1 else 0.0
    return Score(by_image.value, math.sqrt(by_image.error**2 + variance))


def is_significant(difference: Score) -> bool:
    """Return whether a difference is larger than two standard errors."""
    return abs(difference.value) > 2 * difference.error


def run(families: Sequence[Family], settings: Settings) -> Generator[Result]:
    """Train and score the methods one by one."""
    data = load_dataset("digits")
    for family in families:
        start = time.perf_counter()
        found = []
        for seed in settings.all_seeds:
            model = family.trained(data, settings, seed)
            found.append(_scores(model, data, settings, seed))
        yield Result(
            family.name,
            {name: torch.stack([values[name] for values, _ in found]) for name in found[0][0]},
            sum(error for _, error in found) / len(found),
            lb.count_parameters(model).total,
            time.perf_counter() - start,
        )


def _scores(
    model: nn.Module, data: Dataset, settings: Settings, seed: int
) -> tuple[dict[str, Tensor], float]:
    """Return the scores of every test image, and the calibration error."""
    x, y = data.test.x, data.test.y
    test = lb.predict(model, x, samples=settings.samples, seed=seed)
    probs = test.probs
    truth = F.one_hot(y, probs.shape[-1])
    values = {
        "accuracy": (probs.argmax(-1) == y).double(),
        "nll": -test.log_likelihood(y).double(),
        "brier": (probs - truth).square().sum(-1).double(),
    }
    ood = foreign_images(x, data, settings.seed)
    for name, images in zip(("inverted", "shuffled"), ood.values(), strict=True):
        seen = lb.predict(model, images, samples=settings.samples, seed=seed)
        values[f"auroc_{name}"] = auroc_by_image(test.entropy, seen.entropy)
    return values, calibration_error(probs, y).value


def auroc_by_image(inside: Tensor, outside: Tensor) -> Tensor:
    """Return the share of each image in an AUROC; their average is the AUROC.

    The share adds two placements and subtracts the AUROC: OOD images that score above the image,
    and test images that score below the OOD image made from it. So the average has the standard
    error of the AUROC over images [DeLong et al. 1988], also paired for two networks.
    """
    above, below = placements(outside, inside), placements(-inside, -outside)
    return below + above - above.mean()


_GAINS = (
    ("nll", "NLL", -1),
    ("auroc_inverted", "AUROC on inverted images", 1),
    ("auroc_shuffled", "AUROC on shuffled images", 1),
    ("accuracy", "accuracy", 1),
)


def verdict(results: Sequence[Result]) -> str:
    """Return what a user gains from the recommended method over the plain network, and loses."""
    reference = results[0]
    ours = next((result for result in results[1:] if result.name == RECOMMENDED.name), None)
    if ours is None:
        return ""
    better: list[str] = []
    worse: list[str] = []
    for metric, name, sign in _GAINS:
        gap = ours.minus(reference, metric)
        if is_significant(gap):
            before, after = (r.score(metric).value for r in (reference, ours))
            (better if gap.value * sign > 0 else worse).append(
                f"{name} ({after:.3f} instead of {before:.3f})"
            )
    found = [f"better in {', '.join(better)}"] if better else []
    found += [f"worse in {', '.join(worse)}"] if worse else []
    more = ours.parameters / reference.parameters - 1
    said = " and ".join(found) or "not different by more than two standard errors"
    return (
        f"{ours.name} has {more:.1%} more parameters than the plain network and is {said}. Its "
        f"ECE is {ours.calibration_error:.3f} instead of {reference.calibration_error:.3f}."
    )


def report(results: Sequence[Result], settings: Settings, *, complete: bool) -> dict[str, Any]:
    """Return all results of a run, ready for JSON."""
    return {
        "complete": complete,
        "verdict": verdict(results) if results else "",
        "settings": asdict(settings),
        "environment": environment_facts(),
        "results": [_row(result, results[0]) for result in results],
    }


def _row(result: Result, reference: Result) -> dict[str, Any]:
    facts = {name: value for name, value in vars(result).items() if name != "values"}
    return {
        **facts,
        **{metric: result.score(metric)._asdict() for metric in result.values},
        "by_seed": {name: values.mean(1).tolist() for name, values in result.values.items()},
        "differences": {
            name: {"to": reference.name, **result.minus(reference, name)._asdict()}
            for name in result.values
        },
    }
