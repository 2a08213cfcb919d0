"""The demo: a deterministic network and every family on scikit-learn's digits.

The network is a perceptron 64-128-128-10 with ReLU, the same for all. Of the 1797 images, 1000
train, 397 were for choosing and 400 fill the table; the split is fixed.

Chosen on the 397, for all families alike: Adam at a rate of 0.01 that falls linearly to zero, 40
epochs in batches of 128, and a KL weight that rises linearly to 0.03 in the first half of them.
A weight of 1 is the true ELBO, but with 26 times more weights than images it underfits (mean field
got 93 % right instead of 98 %), so these are cold posteriors. Standard deviations start at 0.05,
dropout at log α = −3, rank-one factors at random signs with 4 members; the prior is N(0, 0.3²)
unless the family calls for another one. Variance networks have one layer without means, the middle
one, and no prior: their KL from the published log-uniform prior is zero whatever the variances.
"""

from __future__ import annotations

import copy
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LinearLR
from torchmetrics.functional.classification import binary_auroc, multiclass_calibration_error

import leanbayes as lb
from leanbayes import metrics
from leanbayes.metrics import Score

__all__ = [
    "FAMILIES",
    "QUICK",
    "Family",
    "Ratio",
    "Result",
    "Settings",
    "interleaved",
    "legend",
    "ratio",
    "report",
    "run",
    "training_step",
    "versions",
]

_TRAIN, _TEST = 1000, 400
_CLASSES, _BINS = 10, 15
_PRIOR = lb.Normal(0.3)
_SCALE = 0.05
_TIED = lb.Scale(_SCALE, raw_spread=0.1)  # equal factors would stay equal


@dataclass(frozen=True)
class Family:
    """One row of the table.

    Args:
        name: what the row is called.
        group: rows of one group stand together.
        posterior: recipe of the posterior; ``None`` for plain networks.
        prior: recipe of the prior.
        estimator: how far noise is shared.
        include: which layers are converted.
        networks: how many networks are trained and averaged.
    """

    name: str
    group: str
    posterior: lb.Posterior | None = None
    prior: lb.Prior = _PRIOR
    estimator: lb.estimators.Estimator = lb.auto
    include: tuple[str, ...] = ("**",)
    networks: int = 1

    def convert(self, net: nn.Module) -> nn.Module:
        """The given network as a member of this family."""
        if self.posterior is None:
            return net
        return lb.convert(net, self.posterior, self.prior, self.estimator, include=self.include)


def _variance(name: str, posterior: lb.ZeroMean, estimator: lb.estimators.Estimator) -> Family:
    return Family(name, "variance network", posterior, lb.Flat(), estimator, include=("2",))


DETERMINISTIC = Family("deterministic", "plain")

FAMILIES: tuple[Family, ...] = (
    DETERMINISTIC,
    Family("deep ensemble of 5", "plain", networks=5),
    Family("MAP", "plain", lb.Point()),
    Family("mean field", "independent", lb.MeanField(_SCALE)),
    Family("k-tied, rank 1", "independent", lb.KTied(1, _TIED)),
    Family("k-tied, rank 2", "independent", lb.KTied(2, _TIED)),
    Family("k-tied, rank 3", "independent", lb.KTied(3, _TIED)),
    Family("matrix normal", "correlated", lb.MatrixNormal(_SCALE)),
    Family("matrix normal, low rank", "correlated", lb.MatrixNormal(_SCALE, rank=2)),
    Family("matrix normal + diagonal", "correlated", lb.MatrixNormal(_SCALE, diagonal=True)),
    _variance("variance, normal", lb.ZeroMean(), lb.auto),
    _variance("variance, Bernoulli", lb.ZeroMean("bernoulli"), lb.flipout),
    _variance("variance, uniform", lb.ZeroMean("uniform"), lb.flipout),
    *(
        Family(f"dropout {alpha}, {name}", f"dropout, {name}", lb.Dropout(alpha, -3.0), prior)
        for name, prior in (("log-unif.", lb.LogUniform()), ("ARD", lb.ARD()))
        for alpha in ("layer", "neuron", "weight", "additive")
    ),
    Family("rank-1 normal", "rank-1", lb.Rank1(signs=0.5), lb.Normal(0.3, loc=1.0)),
    Family(
        "rank-1 Cauchy",
        "rank-1",
        lb.Rank1(factors="cauchy", signs=0.5, rate=1e-6),
        lb.Cauchy(0.1, loc=1.0),
    ),
    Family(
        "rank-1 log-normal",
        "rank-1",
        lb.Rank1(factors="lognormal", signs=0.5),
        lb.LogNormal(0.3),
    ),
    Family("BatchEnsemble (fixed)", "rank-1", lb.Rank1(factors="fixed", signs=0.5), lb.Flat()),
)

QUICK: tuple[Family, ...] = tuple(
    family
    for family in FAMILIES
    if family.name in ("deterministic", "k-tied, rank 2", "rank-1 normal")
)


@dataclass(frozen=True)
class Settings:
    """What a run depends on; the split of the data is always the same."""

    seed: int = 42
    epochs: int = 40
    samples: int = 20
    batch_size: int = 128
    learning_rate: float = 0.01
    kl_weight: float = 0.03
    timing_rounds: int = 15


class Ratio(NamedTuple):
    """A relative cost: the median over rounds, and the quartiles."""

    median: float
    low: float
    high: float


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


@dataclass(frozen=True, eq=False)
class Digits:
    """Images of digits as vectors in [0, 1], split once and for all, and two foreign sets."""

    x: Tensor
    y: Tensor
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    inverted: Tensor
    shuffled: Tensor

    @staticmethod
    def load() -> Digits:
        """The images that scikit-learn brings along; nothing is downloaded."""
        pixels, labels = load_digits(return_X_y=True)
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(len(labels), generator=generator)
        x = torch.as_tensor(pixels, dtype=torch.float32)[order] / 16
        y = torch.as_tensor(labels, dtype=torch.long)[order]
        test = x[-_TEST:]
        places = torch.rand(test.shape, generator=generator).argsort(-1)
        return Digits(
            x[:_TRAIN],
            y[:_TRAIN],
            (x[_TRAIN:-_TEST], y[_TRAIN:-_TEST]),
            (test, y[-_TEST:]),
            1 - test,
            test.gather(-1, places),
        )


def network() -> nn.Sequential:
    """The deterministic network that every family starts from."""
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, _CLASSES)
    )


def training_step(
    model: nn.Module,
    optimizer: Optimizer,
    x: Tensor,
    y: Tensor,
    *,
    data_size: int,
    kl_weight: float = 1.0,
) -> Tensor:
    """One step down the ELBO (down the cross-entropy, for a plain network); returns the loss."""
    members = lb.members(model)
    loss = F.cross_entropy(model(lb.tile(x, members)), lb.tile(y, members))
    if any(True for _ in lb.random_maps(model)):
        loss = lb.elbo(loss, lb.kl(model), data_size=data_size, weight=kl_weight).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def _train(
    model: nn.Module, data: Digits, settings: Settings, on_epoch: Callable[[], object]
) -> None:
    size = len(data.x)
    steps = settings.epochs * math.ceil(size / settings.batch_size)
    optimizer = Adam(model.parameters(), lr=settings.learning_rate)
    decay = LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    warm_up = lb.schedules.LinearRamp(steps / 2)
    step = 0
    for _ in range(settings.epochs):
        for batch in torch.randperm(size).split(settings.batch_size):
            weight = settings.kl_weight * warm_up(step)
            x, y = data.x[batch], data.y[batch]
            training_step(model, optimizer, x, y, data_size=size, kl_weight=weight)
            decay.step()
            step += 1
        on_epoch()


def interleaved(
    steps: Mapping[str, Callable[[], object]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of every step, round by round, so that a busy machine disturbs all alike.

    Each turn runs a step twice and times the second, which finds the caches as training leaves
    them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            step()
            start = clock()
            step()
            seconds[name].append(clock() - start)
    return seconds


def ratio(seconds: Sequence[float], reference: Sequence[float]) -> Ratio:
    """How much dearer than the reference, from the ratios of single rounds.

    Example:
        >>> ratio([2.0, 3.0, 4.0], [1.0, 1.0, 1.0])
        Ratio(median=3.0, low=2.5, high=3.5)
    """
    ratios = [a / b for a, b in zip(seconds, reference, strict=True)]
    low, median, high = statistics.quantiles(ratios, method="inclusive")
    return Ratio(median, low, high)


def _step_cost(models: Sequence[nn.Module], data: Digits, settings: Settings) -> Ratio:
    """Processor time of a training step of these networks, relative to one plain network's."""
    x, y = data.x[: settings.batch_size], data.y[: settings.batch_size]

    def stepper(models: Sequence[nn.Module]) -> Callable[[], object]:
        pairs = [(model, Adam(model.parameters())) for model in models]
        return lambda: [training_step(*pair, x, y, data_size=len(data.x)) for pair in pairs]

    steps = {"plain": stepper([network()]), "family": stepper(copy.deepcopy(models))}
    seconds = interleaved(steps, settings.timing_rounds, time.process_time)
    return ratio(seconds["family"], seconds["plain"])


def _predict(models: Sequence[nn.Module], x: Tensor, samples: int) -> lb.Prediction:
    """The mixture of all samples of all networks."""
    return lb.Prediction(torch.cat([lb.predict(m, x, samples=samples).samples for m in models]))


def _auroc(familiar: Tensor, foreign: Tensor) -> float:
    """How well the entropy of a prediction tells foreign images from familiar ones."""
    scores = torch.cat([familiar, foreign]) / math.log(_CLASSES)
    truth = torch.cat([torch.zeros_like(familiar), torch.ones_like(foreign)])
    return float(binary_auroc(scores.clamp(0, 1), truth.long()))


def _evaluate(
    family: Family, models: Sequence[nn.Module], data: Digits, settings: Settings, seconds: float
) -> Result:
    x, y = data.test
    test, inverted, shuffled = (
        _predict(models, images, settings.samples) for images in (x, data.inverted, data.shuffled)
    )
    parameters = sum(lb.count_parameters(model).total for model in models)
    return Result(
        name=family.name,
        group=family.group,
        accuracy=metrics.accuracy(test.log_probs, y),
        nll=metrics.nll(test.log_probs, y),
        brier=metrics.brier(test.probs, y),
        calibration_error=float(multiclass_calibration_error(test.probs, y, _CLASSES, _BINS)),
        auroc_inverted=_auroc(test.entropy, inverted.entropy),
        auroc_shuffled=_auroc(test.entropy, shuffled.entropy),
        parameters=parameters,
        relative_parameters=parameters / lb.count_parameters(network()).total,
        step_cost=_step_cost(models, data, settings),
        seconds=seconds,
    )


def run(
    families: Sequence[Family] = FAMILIES,
    settings: Settings | None = None,
    on_epoch: Callable[[Family], object] = lambda family: None,
) -> Iterator[Result]:
    """Train and evaluate the families one by one; each depends on the seed alone.

    Args:
        families: which ones.
        settings: seed, epochs and so on.
        on_epoch: called after every epoch of every network.
    """
    settings = settings or Settings()
    data = Digits.load()
    for family in families:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            start = time.perf_counter()
            models = [family.convert(network()) for _ in range(family.networks)]
            for model in models:
                _train(model, data, settings, partial(on_epoch, family))
            seconds = time.perf_counter() - start
            result = _evaluate(family, models, data, settings, seconds)
        yield result


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    packages = ("leanbayes", "torch", "numpy", "scikit-learn", "torchmetrics")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


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
        "Accuracy, negative log likelihood and calibration error (15 bins) on 400 test images; "
        "AUROC: how well the entropy of a prediction tells inverted, or pixel-shuffled, images "
        "from these. Parameters and processor time of a training step are relative to the "
        "deterministic network; in one this small much of the step is overhead, "
        "benchmarks/step_cost.py has larger ones. Rank-1 networks have 4 members, and each sees "
        "every image.\n"
        f"Seed {settings.seed}, {settings.epochs} epochs, {settings.samples} samples a "
        f"prediction, {seconds:.0f} s."
    )
