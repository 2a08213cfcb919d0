"""A generated cohort whose risk is known: what no network can beat, and how far one is from it.

Every day a patient is in one of four hidden conditions, which is a Markov chain. It changes which
codes are noted and which ranges measured values fall into, and the last one decides, with age and
gender, how probably the patient dies. The probability given the record alone is a sum over all
conditions, which the forward algorithm takes exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from leanbayes.errors import require, require_count, require_seed
from leanbayes.lab.data.dataset import Dataset, Examples
from leanbayes.lab.data.sources import register_dataset
from leanbayes.metrics import auroc, average_precision
from research.papers.rank1.health.bags import CENT, FIRST, RecordShape

Reals = npt.NDArray[np.float64]

STAY = np.array(
    [
        [0.86, 0.11, 0.02, 0.01],
        [0.12, 0.74, 0.12, 0.02],
        [0.02, 0.16, 0.72, 0.10],
        [0.01, 0.03, 0.16, 0.80],
    ]
)
"""How probably a condition (from recovering to failing) becomes another overnight."""

FIRST_DAY = np.log([0.30, 0.42, 0.22, 0.06])
LOGITS = np.array([-6.5, -5.0, -2.8, 1.2])
AGE, MALE = 0.55, 0.25
"""What ten years more, and being male, add to the log odds of dying."""

RANGES = 5
INFORMATIVE = 0.35
"""The share of codes and measurements that depend on the condition …"""

EFFECT = 0.9
"""… and how much, as the standard deviation of log probabilities."""


@dataclass(frozen=True, eq=False)
class Hospital:
    """What is noted in each condition.

    Args:
        codes: log probabilities ``[conditions, vocabulary − 2]`` of every code.
        values: log probabilities ``[conditions, measurements, ranges]`` of every range.
        shape: of records.
    """

    codes: Reals
    values: Reals
    shape: RecordShape

    @staticmethod
    def draw(vocabulary: int, shape: RecordShape, rng: np.random.RandomState) -> Hospital:
        """Return a hospital with frequent and rare codes, some of which tell of the condition."""
        count, kinds = vocabulary - FIRST, shape.measurements
        severity = np.linspace(-1.0, 1.0, len(STAY))[:, None]
        tells = rng.binomial(1, INFORMATIVE, count) * rng.normal(0.0, EFFECT, count)
        own = rng.normal(0.0, EFFECT / 2, (len(STAY), count)) * (tells != 0)
        codes = -np.log(np.arange(count) + 10.0) + severity * tells + own
        tells = rng.binomial(1, INFORMATIVE, kinds) * rng.normal(0.0, EFFECT, kinds)
        place = np.linspace(-1.0, 1.0, RANGES)
        values = (severity * tells)[..., None] * place + np.zeros(RANGES)
        return Hospital(_normalized(codes), _normalized(values), shape)

    def risk(self, entries: npt.NDArray[np.int32]) -> Reals:
        """Return the probability of dying given each record, exactly: by the forward algorithm."""
        age, male = entries[:, 0, 1] / CENT, entries[:, 0, 0] / CENT
        log_belief = _first_day(age)
        seen = self._log_likelihood(entries[:, 1:])
        for day in range(seen.shape[1]):
            here = (entries[:, 1 + day] != 0).any(1, keepdims=True)
            before = _log_dot(log_belief, STAY) if day else log_belief
            log_belief = np.where(here, before + seen[:, day], log_belief)
        belief = np.exp(_normalized(log_belief))
        return (belief * _dying(age, male)).sum(1)

    def _log_likelihood(self, entries: npt.NDArray[np.int32]) -> Reals:
        """Of every day in each condition, ``[examples, days, conditions]``, up to a constant."""
        none = np.zeros((len(STAY), 1))
        codes = np.concatenate([none, none, self.codes], 1)
        values = np.concatenate([none, self.values.reshape(len(STAY), -1)], 1)
        first = self.shape.codes
        total = [
            codes[condition][entries[..., :first]].sum(-1)
            + values[condition][entries[..., first:]].sum(-1)
            for condition in range(len(STAY))
        ]
        return np.stack(total, -1)

    def admit(self, patients: int, rng: np.random.RandomState) -> Cohort:
        """Return new patients: their records, who died, and how probable that was."""
        shape = self.shape
        entries = shape.empty(patients)
        age = np.clip(rng.normal(0.64, 0.16, patients), 0.18, 0.9)
        entries[:, 0, 0] = CENT * rng.binomial(1, 0.55, patients)
        entries[:, 0, 1] = np.round(CENT * age)
        age, male = entries[:, 0, 1] / CENT, entries[:, 0, 0] / CENT
        lasts = 1 + np.floor(shape.days * rng.beta(1.5, 2.0, patients)).astype(int)
        condition = (np.exp(_first_day(age)).cumsum(1) < rng.uniform(size=(patients, 1))).sum(1)
        for day in range(shape.days):
            here = day < lasts
            moved = _draw(STAY, condition, rng)[:, 0] if day else condition
            condition = np.where(here, moved, condition)
            noted = self._day(condition, rng)
            entries[:, 1 + day] = np.where(here[:, None], noted, 0)
        dying = _dying(age, male)[np.arange(patients), condition]
        died = rng.uniform(size=patients) < dying
        return Cohort(
            torch.from_numpy(entries),
            torch.from_numpy(died).long(),
            torch.from_numpy(self.risk(entries)),
        )

    def _day(
        self, condition: npt.NDArray[np.int64], rng: np.random.RandomState
    ) -> npt.NDArray[np.int64]:
        """Entries of one day of every patient: some codes, and about half of the measurements."""
        patients, shape = len(condition), self.shape
        number = rng.randint(1, shape.codes + 1, patients)[:, None]
        noted = _draw(np.exp(self.codes), condition, rng, shape.codes) + FIRST
        kinds = np.arange(shape.measurements)
        values = [_draw(np.exp(self.values[:, kind]), condition, rng) for kind in kinds]
        taken = rng.binomial(1, 0.5, (patients, shape.measurements))
        measured = (kinds * RANGES + np.concatenate(values, 1) + 1) * taken
        return np.concatenate([np.where(np.arange(shape.codes) < number, noted, 0), measured], 1)


@dataclass(frozen=True, eq=False)
class Cohort:
    """Patients, one stay each.

    Args:
        entries: records ``[patients, 1 + days, codes + measurements]``.
        died: 0 or 1.
        risk: the probability of 1 given the record: the best prediction there is.
    """

    entries: Tensor
    died: Tensor
    risk: Tensor

    def scores(self) -> dict[str, float]:
        """What the risk itself scores on these patients; on average no model scores better."""
        odds = torch.logit(self.risk)
        nll = torch.nn.functional.binary_cross_entropy_with_logits(odds, self.died.double())
        return {
            "nll": float(nll),
            "auroc": auroc(self.risk, self.died).value,
            "auc_pr": average_precision(self.risk, self.died).value,
        }


def generate_cohort(
    *,
    train: int = 8_000,
    validation: int = 2_000,
    test: int = 4_000,
    days: int = 10,
    codes: int = 6,
    measurements: int = 8,
    vocabulary: int = 200,
    seed: int = 0,
) -> dict[str, Cohort]:
    """Training, validation and test patients of one hospital, by part.

    Args:
        train: how many patients to learn from.
        validation: how many to make choices on.
        test: how many to report on.
        days: the longest stay.
        codes: how many codes a day can hold.
        measurements: how many measurements there are.
        vocabulary: how many codes there are, with 0 for none and 1 for rare ones.
        seed: of the hospital and its patients.

    Example:
        >>> parts = generate_cohort(train=5, validation=2, test=3, vocabulary=9)
        >>> parts["train"].entries.shape
        torch.Size([5, 11, 14])
    """
    require_count("vocabulary", vocabulary, FIRST + 1)
    shape = RecordShape(days, codes, measurements)
    counts = {"train": train, "validation": validation, "test": test}
    for name, count in counts.items():
        require_count(name, count, 1)
    require(require_seed(seed) < 2**32, f"seed is {seed}; a cohort takes one below 2**32")
    hospital = Hospital.draw(vocabulary, shape, np.random.RandomState(seed))
    streams = {name: np.random.RandomState([seed, n]) for n, name in enumerate(counts, 1)}
    return {name: hospital.admit(count, streams[name]) for name, count in counts.items()}


@register_dataset(
    "ehr-cohort",
    task="sequence",
    license="CC0",
    source="generated on the spot by a hidden Markov model, whose risks are known",
)
@wraps(generate_cohort)
def ehr_cohort(**options: int) -> Dataset:
    """The cohort of :func:`generate_cohort`, whose arguments these are."""
    parts = generate_cohort(**options)
    best = ", ".join(f"{name} {value:.4f}" for name, value in parts["test"].scores().items())
    deaths = float(parts["test"].died.double().mean())
    train, validation, test = (
        Examples(parts[name].entries, parts[name].died) for name in ("train", "validation", "test")
    )
    return Dataset(
        name="",
        task="sequence",
        train=train,
        validation=validation,
        test=test,
        classes=("survived", "died"),
        preprocessing=(
            f"patients of one generated hospital (seed {options.get('seed', 0)}), of whom "
            f"{deaths:.1%} of those for test die; on these the true risk scores {best}"
        ),
    )


def _first_day(age: Reals) -> Reals:
    """Return log probabilities of the first condition: worse with age, which is in centuries."""
    return _normalized(FIRST_DAY + 2.0 * (age[:, None] - 0.64) * np.arange(len(STAY)))


def _dying(age: Reals, male: Reals) -> Reals:
    """Return the probability of dying by the last condition, ``[patients, conditions]``."""
    odds = LOGITS + 10 * AGE * (age[:, None] - 0.64) + MALE * male[:, None]
    return np.asarray(1 / (1 + np.exp(-odds)))


def _normalized(logs: Reals) -> Reals:
    """Return log probabilities over the last axis."""
    return np.asarray(logs - np.logaddexp.reduce(logs, -1, keepdims=True))


def _log_dot(log_belief: Reals, matrix: Reals) -> Reals:
    """Return the log of ``exp(log_belief) @ matrix``, which cannot underflow."""
    highest = log_belief.max(1, keepdims=True)
    return np.asarray(highest + np.log(np.exp(log_belief - highest) @ matrix))


def _draw(
    probs: Reals, rows: npt.NDArray[np.int64], rng: np.random.RandomState, count: int = 1
) -> npt.NDArray[np.int64]:
    """Return columns ``[len(rows), count]``, each drawn with the probabilities of a row."""
    level = rng.uniform(size=(len(rows), count))
    drawn = np.empty(level.shape, np.int64)
    for row, below in enumerate(probs.cumsum(1)[:, :-1]):
        mine = rows == row
        drawn[mine] = np.searchsorted(below, level[mine], side="right")
    return drawn
