"""The methods that the demo compares, all with one network and one training recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

import leanbayes as lb
from leanbayes.estimators import ESTIMATORS
from leanbayes.lab.data import Dataset
from leanbayes.layers.layer_spec import recommended_posterior


@dataclass(frozen=True)
class Settings:
    """What all methods have in common."""

    seed: int = 42
    seeds: int = 2
    epochs: int = 60
    samples: int = 20
    hidden: int = 128

    @property
    def all_seeds(self) -> range:
        """The seeds, in order."""
        return range(self.seed, self.seed + self.seeds)

    def network(self, dropout: float = 0.0) -> nn.Sequential:
        """Make the plain network; its first weights depend on the global seed."""
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise((64, self.hidden, self.hidden)):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
            layers += [nn.Dropout(dropout)] if dropout else []
        return nn.Sequential(*layers, nn.Linear(self.hidden, 10))


@dataclass(frozen=True)
class Family:
    """One row of the table."""

    name: str
    group: str
    posterior: lb.posteriors.Posterior | None = None
    prior: lb.priors.Prior | None = None
    estimator: str = "auto"
    include: tuple[str, ...] = ("**",)
    networks: int = 1
    dropout: tuple[float, ...] = ()

    def trained(self, data: Dataset, settings: Settings, seed: int) -> nn.Module:
        """Train with :func:`leanbayes.fit`; validation images choose epoch and dropout rate."""
        if self.dropout:
            tried = [self._fitted(data, settings, seed, rate) for rate in self.dropout]
            return lb.mc_dropout(min(tried, key=lambda found: found[0])[1])
        seeds = [seed + 1000 * number for number in range(self.networks)]
        networks = [self._fitted(data, settings, each)[1] for each in seeds]
        return networks[0] if len(networks) == 1 else lb.DeepEnsemble(networks)

    def converted(self, net: nn.Module) -> nn.Module:
        """Return the network itself, or a Bayesian copy of it."""
        if self.posterior is None:
            return net
        estimator = ESTIMATORS[self.estimator]
        return lb.convert(net, self.posterior, self.prior, estimator, include=self.include)

    def _fitted(
        self, data: Dataset, settings: Settings, seed: int, dropout: float = 0.0
    ) -> tuple[float, nn.Module]:
        """Return the validation NLL, of MC dropout with its samples, and the network."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.converted(settings.network(dropout))
        assert data.validation is not None
        train, held = ((part.x, part.y) for part in (data.train, data.validation))
        history = lb.fit(model, train, held, epochs=settings.epochs, seed=seed, progress=False)
        if history.interrupted:  # for fit an early end, for a comparison none
            raise KeyboardInterrupt
        if not dropout:
            return 0.0, model
        drawn = lb.predict(lb.mc_dropout(model), held[0], samples=20, seed=seed)
        return -float(drawn.log_likelihood(held[1]).mean()), model


def _variance(name: str, posterior: lb.posteriors.ZeroMean, estimator: str) -> Family:
    return Family(name, "variance network", posterior, lb.priors.Flat(), estimator, ("3",))


DETERMINISTIC = Family("deterministic", "plain")
RECOMMENDED = Family("k-tied, rank 2", "independent", recommended_posterior(nn.Identity()))

CHOSEN: tuple[Family, ...] = (
    DETERMINISTIC,
    Family("MC dropout", "plain", dropout=(0.1, 0.2)),
    Family("deep ensemble of 5", "plain", networks=5),
    RECOMMENDED,
    Family("rank-1 normal", "rank-1", lb.Rank1(signs=0.5)),
)
"""The methods of a demo without ``--all``; the first one is the reference."""

FAMILIES: tuple[Family, ...] = (
    *CHOSEN,
    Family("MAP", "independent", lb.posteriors.Point()),
    Family("mean field", "independent", lb.MeanField()),
    *(Family(f"k-tied, rank {rank}", "independent", lb.KTied(rank)) for rank in (1, 3)),
    Family("matrix normal", "correlated", lb.posteriors.MatrixNormal()),
    Family("matrix normal, low rank", "correlated", lb.posteriors.MatrixNormal(rank=2)),
    Family("matrix normal + diagonal", "correlated", lb.posteriors.MatrixNormal(diagonal=True)),
    Family(
        "low rank",
        "correlated",
        lb.posteriors.LowRank(8, start="random"),
        lb.priors.Normal(0.3),  # of the entries of both factors
    ),
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
    Family(
        "rank-1 Cauchy",
        "rank-1",
        lb.Rank1(signs=0.5, factors="cauchy", rate=1e-6),
        lb.priors.Cauchy(0.1, loc=1.0),
    ),
    Family(
        "rank-1 log-normal",
        "rank-1",
        lb.Rank1(signs=0.5, factors="lognormal"),
        lb.priors.LogNormal(0.3),
    ),
    Family("BatchEnsemble", "rank-1", lb.Rank1(signs=0.5, factors="fixed"), lb.priors.Flat()),
)
"""All methods, for ``--all`` and for benchmarks."""


def chosen(*, every: bool, quick: bool) -> Sequence[Family]:
    """Return the methods of a demo."""
    if quick:
        return DETERMINISTIC, RECOMMENDED, CHOSEN[-1]
    return FAMILIES if every else CHOSEN
