"""The phases of variational dropout: what a model's means know, and what its noise does.

Over the training the accuracy of the means falls to chance while that of the zero-mean
approximation rises: a layer becomes a variance layer [variance, figure 3].
"""

import torch
from pydantic import Field
from torch import Tensor, nn

from leanbayes.estimators import mean
from leanbayes.lab.data import Examples
from leanbayes.lab.measurements.base import (
    Measurement,
    Subject,
    register_measurement,
    require_random_weights,
)
from leanbayes.models.random_maps import using
from leanbayes.prediction.predict import predict
from research.papers.variance.ablation import zero_means


@register_measurement("phases")
class Phases(Measurement):
    """Four accuracies on test examples after every epoch, beside the curves in ``metrics.csv``.

    Of the means, of one sample, of averaged samples, and of averages without means; see
    :func:`four_accuracies`.
    """

    examples: int = Field(default=1000, ge=1)
    samples: int = Field(default=10, ge=1)

    def check(self, model: nn.Module, *, classes: bool) -> None:
        require_random_weights("phases", model, classes=classes)

    def after_epoch(self, subject: Subject) -> dict[str, float]:
        test, seed, size = subject.dataset.test, subject.seed, subject.batch_size
        return four_accuracies(subject.model, test, self, seed=seed, batch_size=size)


def four_accuracies(
    model: nn.Module, examples: Examples, spec: Phases, *, seed: int, batch_size: int = 1000
) -> dict[str, float]:
    """Accuracies of the means, of one sample, of averaged samples, and of averages without means.

    The global generator is left as it was.

    Example:
        >>> import leanbayes as lb
        >>> q = lb.posteriors.VariationalDropout(log_alpha=-8.0)
        >>> model = lb.convert(nn.Linear(3, 2), q, lb.priors.LogUniform())
        >>> made = Examples(torch.randn(20, 3), torch.zeros(20, dtype=torch.long))
        >>> sorted(four_accuracies(model, made, Phases(examples=10, samples=2), seed=0))
        ['accuracy/ensemble', 'accuracy/mean', 'accuracy/sample', 'accuracy/zero_mean']
    """
    chosen = examples[: spec.examples]

    def drawn(network: nn.Module, samples: int) -> Tensor:
        return predict(
            network, chosen.x, samples=samples, batch_size=batch_size, seed=seed
        ).sample_log_probs

    with using(model, mean):
        of_mean = drawn(model, 1)
    samples = drawn(model, spec.samples)
    without_means = drawn(zero_means(model), spec.samples)
    return {
        "accuracy/mean": _accuracy(of_mean.logsumexp(0), chosen.y),
        "accuracy/sample": _accuracy(samples, chosen.y),
        "accuracy/ensemble": _accuracy(samples.logsumexp(0), chosen.y),
        "accuracy/zero_mean": _accuracy(without_means.logsumexp(0), chosen.y),
    }


def _accuracy(scores: Tensor, y: Tensor) -> float:
    return float((scores.argmax(-1) == y).to(torch.float64).mean())
