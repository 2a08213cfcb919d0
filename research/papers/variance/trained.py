"""A trained classifier from where its noise begins, with test examples as they arrive there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leanbayes.estimators import mean
from leanbayes.lab.data import Examples
from leanbayes.likelihoods import Likelihood
from leanbayes.metrics import Score, average
from leanbayes.models.baselines import mc_dropout
from leanbayes.models.random_maps import using
from leanbayes.prediction.predict import Prediction, predict
from research.papers.variance.split_at_noise import cut, draws, has_dropout
from research.publishing.rounding import rounded

_BATCH = 1000


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained classifier, from where its noise begins, and what to try it on.

    Args:
        rest: the network after the cut, with dropout that does not draw.
        sampled: what draws: the same, or its MC dropout if it has no random layer.
        x: test examples as they arrive at the cut.
        y: their classes.
        likelihood: what outputs mean.
        samples: how many draws an average is over.
        seed: of the noise.
        batch_size: how many examples run at once.
    """

    rest: nn.Module
    sampled: nn.Module
    x: Tensor
    y: Tensor
    likelihood: Likelihood
    samples: int
    seed: int
    batch_size: int = _BATCH

    @classmethod
    def of(
        cls,
        model: nn.Module,
        test: Examples,
        likelihood: Likelihood,
        *,
        samples: int,
        seed: int,
        batch_size: int = _BATCH,
    ) -> Trained:
        """Cut a network and run the test examples up to the cut."""
        before, rest = cut(model)
        drops = has_dropout(rest) and not draws(rest)
        drawing = mc_dropout(rest) if drops else rest
        x = arriving(before, test, batch_size)
        return cls(rest, drawing, x, test.y, likelihood, samples, seed, batch_size)

    @property
    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The examples at the cut, a batch at a time."""
        return zip(self.x.split(self.batch_size), self.y.split(self.batch_size), strict=True)

    def predict(
        self,
        model: nn.Module | None = None,
        samples: int | None = None,
        *,
        coherent: bool = False,
    ) -> Prediction:
        """Draw predictions of the network, or of another one in its place."""
        return predict(
            self.sampled if model is None else model,
            self.x,
            samples=samples or self.samples,
            batch_size=self.batch_size,
            coherent=coherent,
            seed=self.seed,
            likelihood=self.likelihood,
        )

    def averaged(self, model: nn.Module | None = None) -> Score:
        """Return the accuracy of averaged probabilities."""
        return self.right(self.predict(model))

    def by_means(self) -> Score:
        """Return the accuracy of mean propagation."""
        with using(self.rest, mean):
            return self.right(self.predict(self.rest, 1))

    def right(self, prediction: Prediction) -> Score:
        """Return the accuracy of a prediction."""
        return average((prediction.labels == self.y).double())


def one_sample(prediction: Prediction, y: Tensor) -> Tensor:
    """Return whether each sample alone is right, ``[samples, examples]``.

    Example:
        >>> one_sample(Prediction(torch.eye(2)[None]), torch.tensor([0, 0]))
        tensor([[ True, False]])
    """
    return prediction.samples.argmax(-1) == y


def arriving(before: nn.Module, examples: Examples, batch_size: int = _BATCH) -> Tensor:
    """Return examples as they arrive at a cut."""
    parts = (
        examples[start : start + batch_size].x for start in range(0, len(examples), batch_size)
    )
    return torch.cat([predict(before, part, samples=1).samples[0] for part in parts])


def as_json(score: Score) -> dict[str, float]:
    """Return a score with the digits that are worth keeping."""
    return {name: rounded(value) for name, value in score._asdict().items()}
