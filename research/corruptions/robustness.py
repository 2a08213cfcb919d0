"""Robustness of a run on damaged images: every published corruption at every severity."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leanbayes.errors import require
from leanbayes.lab.evaluation import evaluate, examples_of
from leanbayes.lab.files import read_object
from leanbayes.lab.runs import Run
from research.corruptions import PUBLISHED, SEVERITIES, corrupt_examples
from research.corruptions.means import corrupted_means, mean_corruption_error
from research.corruptions.weather import frost_is_here

SHOWN = {"cNLL": "nll", "cA": "accuracy", "cECE": "ece"}
"""What the rank-1 paper prints, and the metric that each is the average of."""


@dataclass(frozen=True)
class Robustness:
    """Metrics of damaged images.

    Attributes:
        results: metrics by name of the corruption and severity.
        absent: corruptions that could not be made here.
        baseline: error rates of a reference, by corruption, five each.
    """

    results: Mapping[tuple[str, int], Mapping[str, Mapping[str, float]]]
    absent: tuple[str, ...] = ()
    baseline: Mapping[str, Sequence[float]] | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The corruptions, in the order of the results."""
        return tuple(dict.fromkeys(kind for kind, _ in self.results))

    @property
    def coverage(self) -> str:
        """How many of the published corruptions the averages are over, and what is absent."""
        whole = f"{len(self.kinds)} of {len(self.kinds) + len(self.absent)} corruptions"
        if not self.absent:
            return whole
        return f"{whole}; for {', '.join(self.absent)} run: pip install 'leanbayes[frost]'"

    def of(self, kind: str | None = None) -> dict[str, float]:
        """Return cNLL, cA and cECE over all severities, of one corruption or of all.

        With a baseline there is the mean corruption error, mCE, too.
        """
        chosen = {key: value for key, value in self.results.items() if kind in (None, key[0])}
        means = corrupted_means(chosen)
        shown = {name: means[metric] for name, metric in SHOWN.items()}
        if self.baseline is not None:
            theirs = {
                (k, s): rates[s - 1] for k, rates in self.baseline.items() for s in SEVERITIES
            }
            ours = {key: 1 - result["accuracy"]["value"] for key, result in chosen.items()}
            shown["mCE"] = mean_corruption_error(ours, theirs)
        return shown

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON has it; ``errors`` is what :func:`read_baseline` takes."""
        errors = {
            kind: [1 - self.results[kind, s]["accuracy"]["value"] for s in SEVERITIES]
            for kind in self.kinds
        }
        return {
            "mean": self.of(),
            "coverage": self.coverage,
            "errors": errors,
            "corruptions": {
                kind: {str(s): self.results[kind, s] for s in SEVERITIES} for kind in self.kinds
            },
        }


def evaluate_corruptions(
    folder: str | Path,
    *,
    samples: int = 100,
    data: str | None = None,
    baseline: str | Path | None = None,
    kinds: Sequence[str] = PUBLISHED,
    tell: Callable[[str, dict[str, float]], None] | None = None,
) -> Robustness:
    """Evaluate a finished run on its test images, damaged in every way and at every severity.

    Frost needs photographs, which are an extra; without them it is left out and named.
    """
    run = Run(folder)
    absent = () if frost_is_here() else tuple(kind for kind in kinds if kind == "frost")
    here = [kind for kind in kinds if kind not in absent]
    rates = None if baseline is None else read_baseline(baseline, here)
    model, likelihood = run.load()
    examples = examples_of(run, data)
    require(
        run.dataset.task == "classification",
        f"{run.dataset.name} has no classes; cNLL, cA and cECE are of images of classes",
    )
    results, drawing = {}, run.drawing(samples)
    for kind in here:
        for severity in SEVERITIES:
            damaged = corrupt_examples(examples, kind, severity, seed=run.recipe.seed)
            results[kind, severity] = evaluate(model, damaged, likelihood, **drawing)
        if tell is not None:
            tell(kind, Robustness(results, baseline=rates).of(kind))
    return Robustness(results, absent, rates)


def read_baseline(path: str | Path, kinds: Sequence[str]) -> dict[str, list[float]]:
    """Return error rates of a reference: ``{"errors": {"fog": [five rates], …}}``."""
    again = "write one with python -m research.lab robustness RUN --json FILE"
    errors = read_object(Path(path), {"errors"}, "a file of corruption errors", again)["errors"]
    for kind in kinds:
        rates = errors.get(kind) if isinstance(errors, dict) else None
        right = isinstance(rates, list) and len(rates) == len(SEVERITIES)
        require(
            right and all(isinstance(r, int | float) and 0 <= r <= 1 for r in rates or ()),
            f"{path} has no five error rates from 0 to 1 for {kind}; {again}",
        )
        require(
            sum(rates or ()) > 0, f"{path} has no errors for {kind}, so none are relative to it"
        )
    return {kind: errors[kind] for kind in kinds}
