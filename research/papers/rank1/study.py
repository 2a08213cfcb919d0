"""The study of one trained run: clean, damaged and foreign images, samples and members."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes import metrics
from leanbayes.errors import require
from leanbayes.lab.data import Examples
from leanbayes.lab.evaluation import foreign_scores
from leanbayes.lab.recipe import Recipe
from leanbayes.lab.runs import Run
from leanbayes.lab.train import provenance
from leanbayes.likelihoods import Likelihood
from leanbayes.metrics import Score
from leanbayes.models.random_maps import members
from leanbayes.prediction.predict import Prediction, predict
from research.corruptions import PUBLISHED, SEVERITIES, corrupt_examples
from research.corruptions.weather import frost_is_here
from research.data import load_dataset
from research.networks import build
from research.publishing.study_file import StudyFile, Tell

FOREIGN: Mapping[str, str] = {"fashion-mnist": "mnist", "cifar10": "cifar100"}
"""From which data a run on these is to tell its own."""
_SHOWN = ("nll", "accuracy", "ece")
_ROWS = 2000
"""How many rows, of all samples and members, go through the network at once."""

Part = dict[str, Any]


@dataclass(frozen=True)
class Rank1Settings:
    """How much of the test set a study looks at.

    Args:
        images: clean and foreign test images; all if not given.
        corrupted: images that are damaged in every way, as many samples as the recipe says.
        few: images that are damaged in every way for every number of samples; 0 for none.
        samples: numbers of samples to compare, of every member.
        kinds: the corruptions.
    """

    images: int | None = None
    corrupted: int = 1000
    few: int = 0
    samples: tuple[int, ...] = (1, 4, 25)
    kinds: tuple[str, ...] = PUBLISHED


def corrupted_kinds(settings: Rank1Settings) -> tuple[str, ...]:
    """Return those that can be made here: frost needs photographs, which are an extra."""
    return tuple(kind for kind in settings.kinds if kind != "frost" or frost_is_here())


def study_rank1(
    folder: str | Path,
    settings: Rank1Settings,
    out: Path,
    *,
    progress: bool = False,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """Measure a finished run, part by part."""
    trained = _Trained.of(folder)
    recipe = trained.run.recipe
    chosen = {"name": recipe.name, "seed": recipe.seed, **asdict(settings)}
    parts = {name: partial(_timed, make) for name, make in _parts(trained, settings).items()}
    return StudyFile(out, "rank1", chosen).fill(parts, tell, progress=progress)


def _timed(make: Callable[[], Part]) -> Part:
    started = time.monotonic()
    return make() | {"seconds": round(time.monotonic() - started, 1)}


@dataclass(frozen=True)
class _Trained:
    """A finished run with its model.

    Attributes:
        run: its folder.
        model: what it trained.
        likelihood: what outputs mean.
        random: whether two samples differ.
    """

    run: Run
    model: nn.Module
    likelihood: Likelihood
    random: bool

    @classmethod
    def of(cls, folder: str | Path) -> _Trained:
        run = Run(folder)
        run.check_result()
        model, likelihood = run.load()
        require(
            run.dataset.task == "classification",
            f"{run.folder} is a run of {run.dataset.task}, and images of classes are studied here",
        )
        samples = predict(model, run.dataset.test[:4].x, samples=2, seed=0).samples
        first, second = samples.chunk(2)
        return cls(run, model, likelihood, not torch.equal(first, second))

    def predicted(self, x: Tensor, samples: int) -> Prediction:
        """Return few examples at once where samples are many, so that they fit a cache."""
        return predict(
            self.model,
            x,
            samples=samples,
            batch_size=max(8, _ROWS // (samples * members(self.model))),
            seed=self.run.recipe.seed,
            likelihood=self.likelihood,
        )

    def scores(self, examples: Examples, samples: tuple[int, ...]) -> dict[str, dict[str, Score]]:
        """Metrics by number of samples; more of a network that is not random are the same."""
        counts = tuple(sorted(samples)) if self.random else samples[:1]
        whole = self.predicted(examples.x, max(counts) if self.random else 1)
        return {str(n): self._metrics(whole, examples.y, n) for n in counts}

    def _metrics(self, whole: Prediction, y: Tensor, samples: int) -> dict[str, Score]:
        first = whole.samples[: samples * members(self.model)]
        found = Prediction(first, self.likelihood).metrics(y)
        return {name: found[name] for name in _SHOWN}


def _parts(trained: _Trained, settings: Rank1Settings) -> dict[str, Callable[[], Part]]:
    """Return what is measured, by name, in the order of work."""
    run = trained.run
    test = run.dataset.test[: settings.images]
    own = (run.recipe.evaluation.samples,)
    parts: dict[str, Callable[[], Part]] = {
        "network": partial(_network, trained, settings),
        "clean": partial(_clean, trained, test, own, settings),
    }
    if run.recipe.data.name in FOREIGN:
        parts["foreign"] = partial(_foreign, trained, test)
    for kind in corrupted_kinds(settings):
        damaged = test[: settings.corrupted]
        parts[f"corrupted {kind}"] = partial(_corrupted, trained, damaged, kind, own)
    for kind in corrupted_kinds(settings) if settings.few and trained.random else ():
        few = partial(_corrupted, trained, test[: settings.few], kind, settings.samples)
        parts[f"few {kind}"] = few
    return parts


def _network(trained: _Trained, settings: Rank1Settings) -> Part:
    """Return sizes, and where the numbers come from."""
    recipe, result = trained.run.recipe, trained.run.result
    return {
        "parameters": sum(result["parameters"].values()),
        "plain_parameters": _plain_parameters(recipe),
        "members": members(trained.model),
        "samples": recipe.evaluation.samples,
        "random": trained.random,
        "epochs": result["epochs"],
        "train_seconds": result["seconds"],
        "absent": [kind for kind in settings.kinds if kind not in corrupted_kinds(settings)],
        **provenance(recipe),
    }


def _plain_parameters(recipe: Recipe) -> int:
    """Return how many parameters one network of this architecture has, as torch counts them."""
    with torch.random.fork_rng(devices=[]):
        network = build(recipe.architecture.name, **recipe.architecture.options)
    return sum(parameter.numel() for parameter in network.parameters())


def _clean(
    trained: _Trained, test: Examples, own: tuple[int, ...], settings: Rank1Settings
) -> Part:
    counts = tuple(dict.fromkeys((*own, *settings.samples)))
    scores = trained.scores(test, counts)
    return {
        "images": len(test),
        "scores": {count: _plain(found) for count, found in scores.items()},
        "diversity": _diversity(trained, test, own[0]),
    }


def _diversity(trained: _Trained, test: Examples, samples: int) -> dict[str, Any]:
    """How much members disagree, or samples where there are no members [rank-1, section 3.5]."""
    count = members(trained.model)
    if count == 1 and (samples == 1 or not trained.random):
        return {}
    log_probs = trained.predicted(test.x, samples).sample_log_probs
    if count > 1:
        log_probs = metrics.member_log_probs(log_probs, count)
    return {
        "of": "members" if count > 1 else "samples",
        "disagreement": metrics.disagreement(log_probs)._asdict(),
        "diversity": metrics.diversity(log_probs, test.y)._asdict(),
    }


def _foreign(trained: _Trained, test: Examples) -> Part:
    """Return how well uncertainty tells images of another data set."""
    run = trained.run
    other = FOREIGN[run.recipe.data.name]
    samples = run.recipe.evaluation.samples
    found = foreign_scores(run.folder, other, samples=samples, images=len(test))
    return {"data": other, "preprocessing": load_dataset(other).preprocessing, **found}


def _corrupted(trained: _Trained, test: Examples, kind: str, samples: tuple[int, ...]) -> Part:
    """Return metrics by severity and number of samples."""
    seed = trained.run.recipe.seed
    by_severity = {
        str(severity): trained.scores(corrupt_examples(test, kind, severity, seed=seed), samples)
        for severity in SEVERITIES
    }
    return {
        "images": len(test),
        "severities": {
            severity: {count: _plain(found) for count, found in scores.items()}
            for severity, scores in by_severity.items()
        },
    }


def _plain(scores: Mapping[str, Score]) -> dict[str, dict[str, float]]:
    return {name: score._asdict() for name, score in scores.items()}
