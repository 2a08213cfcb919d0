"""Fit an estimator to the standard splits of a set, and score it on the rows held out."""

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from leanbayes.errors import choose, require, require_choice
from leanbayes.lab.provenance import environment_facts
from leanbayes.sklearn import BayesRegressor
from leanbayes.sklearn.posterior_names import NAMED_FAMILIES
from research.data import load_dataset
from research.data.uci import FACTS
from research.publishing.study_file import StudyFile, Tell
from research.studies.uci.published import SETS

COVERAGE = 0.9


@dataclass(frozen=True)
class Row:
    """One estimator on one set; all that it is not given here is its default.

    Args:
        data: a name from :data:`~research.studies.uci.published.SETS`.
        posterior: what ``BayesRegressor`` is to have.
        noise: ``"learned"`` or ``"predicted"``.
    """

    data: str
    posterior: str
    noise: str = "learned"

    def __post_init__(self) -> None:
        choose("set", self.data, SETS)
        choose("posterior", self.posterior, NAMED_FAMILIES)
        require_choice("noise", self.noise, ("learned", "predicted"))

    @property
    def file(self) -> str:
        """The name of its file of results."""
        ending = "" if self.noise == "learned" else "-predicted"
        return f"{self.data}-{self.posterior}{ending}.json"

    @property
    def facts(self) -> Any:
        """The shape of its data."""
        return FACTS[SETS[self.data]]

    def estimator(self, split: int) -> BayesRegressor:
        """Return the estimator of a split: protein has 100 hidden units, as in all tables."""
        wide = {"hidden": (100,)} if self.data == "protein" else {}
        return BayesRegressor(self.posterior, noise=self.noise, random_state=split, **wide)  # type: ignore[arg-type]


def score(estimator: BayesRegressor, x: Any, y: Any) -> dict[str, float]:
    """Return log likelihood, error and intervals on rows, in the units of the targets."""
    target = torch.as_tensor(np.asarray(y), dtype=torch.float32)
    likelihood = estimator.predict_dist(x).log_likelihood(target).mean()
    low, high = estimator.predict_interval(x, COVERAGE).T
    return {
        "log_likelihood": float(likelihood),
        "rmse": float(np.sqrt(np.mean((estimator.predict(x) - y) ** 2))),
        "coverage": float(np.mean((low <= y) & (y <= high))),
        "width": float(np.mean(high - low)),
    }


def fit_splits(
    row: Row,
    folder: str | Path,
    splits: Iterable[int] | None = None,
    *,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """Fit and score the splits (all if not given) that the row's file lacks."""
    chosen = list(range(row.facts.splits) if splits is None else splits)
    require(bool(chosen), "there is no split to fit; give one or more")
    parts = {f"split {split}": partial(_part, row, split) for split in chosen}
    return StudyFile(Path(folder) / row.file, "UCI regression", asdict(row)).fill(parts, tell)


def _part(row: Row, split: int) -> dict[str, Any]:
    return {**_fit(row, split), **environment_facts("scikit-learn")}


def _fit(row: Row, split: int) -> dict[str, Any]:
    data = load_dataset(row.facts.name, split=split, scaling="raw", target_scaling="raw")
    train, test = ((part.x.numpy(), part.y.numpy()[:, 0]) for part in (data.train, data.test))
    began = time.process_time()
    estimator = row.estimator(split).fit(*train)
    seconds = time.process_time() - began
    return {"seed": split, **score(estimator, *test), "duration": round(seconds, 2)}
