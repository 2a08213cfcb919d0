"""The families that the demo compares, and the recipe of each.

All train one network, a perceptron 64-128-128-10 with ReLU, on the digits of scikit-learn, with
Adam at a rate that falls linearly to zero. The KL has a weight of 0.03: a weight of 1 is the true
ELBO, but with 21 times more weights than images it underfits, so these are cold posteriors.
Standard deviations start at 0.05, dropout at log α = −3, rank-one factors at random signs with 4
members; the prior is N(0, 0.3²) unless the family calls for another one. Variance networks have
one layer without means, the middle one, and no prior: their KL from the published log-uniform
prior is zero whatever the variances. Signs of log-normal factors are those of their logarithms, so
that the first outputs are large and take three times the epochs to come down.
"""

import re
from dataclasses import dataclass
from typing import Any

import leanbayes as lb
from leanbayes.lab.recipe import (
    Architecture,
    Data,
    Evaluation,
    KLSchedule,
    LearningRate,
    Optimizer,
    Recipe,
    Training,
)

_PRIOR = lb.priors.Normal(0.3)
_SCALE = 0.05
_APART = 1000
_TIED = lb.posteriors.Scale(_SCALE, raw_spread=0.1)  # equal factors would stay equal


@dataclass(frozen=True)
class Settings:
    """What the runs of all families have in common."""

    seed: int = 42
    seeds: int = 3
    epochs: int = 16
    samples: int = 20
    batch_size: int = 128
    learning_rate: float = 0.02
    kl_weight: float = 0.03
    timing_rounds: int = 15

    @property
    def all_seeds(self) -> range:
        """Every family is trained once with each."""
        return range(self.seed, self.seed + self.seeds)

    @property
    def named_seeds(self) -> str:
        """The same in words.

        Example:
            >>> Settings().named_seeds
            'seeds 42, 43, 44'
        """
        return f"seed{'s' * (self.seeds > 1)} {', '.join(map(str, self.all_seeds))}"


@dataclass(frozen=True)
class Family:
    """One row of the table.

    Args:
        name: what the row is called.
        group: rows of one group stand together.
        posterior: spec of the posterior; ``None`` for plain networks.
        prior: spec of the prior.
        estimator: the name of the one that says how far noise is shared.
        include: which layers are converted.
        networks: how many networks are trained and averaged.
        longer: how many times the epochs of the others.
    """

    name: str
    group: str
    posterior: lb.posteriors.Posterior | None = None
    prior: lb.priors.Prior = _PRIOR
    estimator: str = "auto"
    include: tuple[str, ...] = ("**",)
    networks: int = 1
    longer: int = 1

    def recipes(self, settings: Settings, seed: int) -> list[Recipe]:
        """What ``leanbayes train`` would be given: a recipe for every network.

        The first network has the seed itself, so that families of one seed start from the same
        weights and see the same batches; the others of an ensemble have seeds far from it.

        Example:
            >>> [recipe.name for recipe in FAMILIES[1].recipes(Settings(), 42)][:2]
            ['digits-deep-ensemble-of-5-seed-42', 'digits-deep-ensemble-of-5-seed-1042']
        """
        name = "digits-" + re.sub(r"\W+", "-", self.name).strip("-")
        return [
            Recipe(
                name=f"{name}-seed-{each}",
                data=Data(name="digits"),
                architecture=Architecture(name="mlp", options={"inputs": 64, "hidden": [128, 128]}),
                posterior=self.posterior,
                prior=self.prior,
                estimator=self.estimator,
                include=self.include,
                optimizer=Optimizer(lr=settings.learning_rate),
                learning_rate=LearningRate(kind="linear"),
                kl=KLSchedule(options={"weight": settings.kl_weight}),
                training=Training(
                    epochs=self.longer * settings.epochs, batch_size=settings.batch_size
                ),
                evaluation=Evaluation(samples=settings.samples),
                seed=each,
            )
            for each in range(seed, seed + _APART * self.networks, _APART)
        ]


def _variance(name: str, posterior: lb.posteriors.ZeroMean, estimator: str) -> Family:
    return Family(
        name, "variance network", posterior, lb.priors.Flat(), estimator, include=("dense2",)
    )


def _rank1(name: str, prior: lb.priors.Prior, *, longer: int = 1, **options: Any) -> Family:
    return Family(
        name, "rank-1", lb.Rank1(signs=0.5, batch="tile", **options), prior, longer=longer
    )


DETERMINISTIC = Family("deterministic", "plain")

FAMILIES: tuple[Family, ...] = (
    DETERMINISTIC,
    Family("deep ensemble of 5", "plain", networks=5),
    Family("MAP", "plain", lb.posteriors.Point()),
    Family("mean field", "independent", lb.MeanField(_SCALE)),
    Family("k-tied, rank 1", "independent", lb.KTied(1, _TIED)),
    Family("k-tied, rank 2", "independent", lb.KTied(2, _TIED)),
    Family("k-tied, rank 3", "independent", lb.KTied(3, _TIED)),
    Family("matrix normal", "correlated", lb.posteriors.MatrixNormal(_SCALE)),
    Family("matrix normal, low rank", "correlated", lb.posteriors.MatrixNormal(_SCALE, rank=2)),
    Family(
        "matrix normal + diagonal", "correlated", lb.posteriors.MatrixNormal(_SCALE, diagonal=True)
    ),
    Family("low rank", "correlated", lb.posteriors.LowRank(8, _SCALE, start="random")),
    _variance("variance, normal", lb.posteriors.ZeroMean(), "auto"),
    _variance("variance, Bernoulli", lb.posteriors.ZeroMean("bernoulli"), "flipout"),
    _variance("variance, uniform", lb.posteriors.ZeroMean("uniform"), "flipout"),
    *(
        Family(
            f"dropout {alpha}, {name}",
            f"dropout, {name}",
            lb.posteriors.VariationalDropout(alpha, -3.0),
            prior,
        )
        for name, prior in (("log-unif.", lb.priors.LogUniform()), ("ARD", lb.priors.ARD()))
        for alpha in ("layer", "neuron", "weight", "additive")
    ),
    _rank1("rank-1 normal", lb.priors.Normal(0.3, loc=1.0)),
    _rank1("rank-1 Cauchy", lb.priors.Cauchy(0.1, loc=1.0), factors="cauchy", rate=1e-6),
    _rank1("rank-1 log-normal", lb.priors.LogNormal(0.3), factors="lognormal", longer=2),
    _rank1("BatchEnsemble (fixed)", lb.priors.Flat(), factors="fixed"),
)

QUICK: tuple[Family, ...] = tuple(
    family
    for family in FAMILIES
    if family.name in ("deterministic", "k-tied, rank 2", "rank-1 normal")
)

CLOSELY = ("k-tied, rank 2", "dropout additive, log-unif.")
"""The families that the page looks at closely."""
