"""Check of an installation: kernels against formulas, laws, one fit and one file."""

import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.conversion.convert import convert
from leanbayes.distributions.kl import divergence
from leanbayes.kernels import kernels
from leanbayes.likelihoods import Categorical, Gaussian, Poisson
from leanbayes.models.random_maps import kl, random_maps
from leanbayes.ops import Linear
from leanbayes.posteriors import POSTERIORS, KTied, MatrixNormal, MeanField, Posterior, Rank1
from leanbayes.prediction.predict import predict
from leanbayes.priors import PRIORS, Normal, Prior
from leanbayes.saving.io import load, save
from leanbayes.testing.assertions import SAMPLES, assert_close, assert_mean, seeded
from leanbayes.testing.layers import check_layer
from leanbayes.testing.likelihoods import check_likelihood
from leanbayes.testing.weights import check_posterior, check_prior
from leanbayes.training.fit import fit

_FAMILIES: dict[str, Posterior] = {
    "mean field": MeanField(0.3),
    "k-tied": KTied(2, scale=0.3),
    "matrix normal": MatrixNormal(scale=0.3),
    "rank-1": Rank1(1, rate=0.1),
}


@dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    name: str
    problem: str
    seconds: float

    def __str__(self) -> str:
        verdict = f"FAILED: {self.problem}" if self.problem else "ok"
        return f"{self.name}: {verdict} ({self.seconds:.1f} s)"


def selfcheck(tell: Callable[[Finding], object] = lambda finding: None) -> list[Finding]:
    """Check that leanbayes computes on this machine what its formulas say."""
    findings = []
    for name, check in checks():
        started = time.monotonic()
        try:
            check()
            problem = ""
        except Exception as error:  # any end but the right one is a finding
            problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        findings.append(Finding(name, problem, time.monotonic() - started))
        tell(findings[-1])
    return findings


def facts() -> str:
    """Return the versions, the processor and the kernels that a check is about."""
    return (
        f"leanbayes {version('leanbayes')}, torch {torch.__version__}, "
        f"Python {platform.python_version()}, {platform.machine()}; {kernels()}"
    )


def checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield every check with its name."""
    for name, spec in _FAMILIES.items():
        yield f"kernels of {name}: outputs and KL equal the formulas", partial(_kernels, spec)
    for name, kind in _made_without_arguments(POSTERIORS):
        yield f"law of the posterior {name}", partial(check_posterior, kind(), samples=SAMPLES // 4)
    for name, kind in _made_without_arguments(PRIORS):
        yield f"law of the prior {name}", partial(check_prior, kind(), samples=SAMPLES // 4)
    yield "likelihoods: densities, quantiles and draws agree", _likelihoods
    yield (
        "conversion of a convolution and back",
        partial(check_layer, nn.Conv2d(2, 3, 3), torch.ones(2, 2, 5, 5)),
    )
    yield "fit of a linear regression: the exact posterior", _conjugate_fit
    yield "file: a saved model predicts the same", _file


def _made_without_arguments(registry: Any) -> Iterator[tuple[str, Any]]:
    for name, kind in registry.items():
        given = (f.default is MISSING and f.default_factory is MISSING for f in fields(kind))
        if issubclass(kind, Posterior | Prior) and not any(given):
            yield name, kind


def _kernels(spec: Posterior) -> None:
    """In float32, as a user runs them, against moments and KL in float64."""
    with seeded(0):
        learned = spec(torch.randn(4, 8), Linear())
        x = torch.randn(1, 8).expand(SAMPLES, 8)
        with torch.no_grad():
            drawn = learned().local_map(Linear(), SAMPLES)(x).double()
            weights = learned.double()().rsample((SAMPLES,))
            expected = weights @ x[0].double()
            center = expected.mean(0)
            for power in (1, 2):
                difference = (drawn - center) ** power - (expected - center) ** power
                assert_mean(difference, 0.0, f"moment {power} of outputs")
        if not isinstance(spec, Rank1):
            _kl_in_both_precisions(spec)


def _kl_in_both_precisions(spec: Posterior) -> None:
    model = convert(nn.Linear(300, 200, bias=False), spec, Normal(0.5))
    single = kl(model).double()
    ((_, random_map),) = random_maps(model.double())
    exact = divergence(random_map.posterior(), random_map.prior())
    torch.testing.assert_close(single, exact, rtol=1e-5, atol=0.0)


def _likelihoods() -> None:
    with seeded(0):
        outputs = torch.randn(3, 2, dtype=torch.float64)
        check_likelihood(Gaussian(0.5), outputs, torch.randn(2).double())
        check_likelihood(Poisson(), outputs, torch.tensor([0, 4]))
        classes = torch.randn(3, 2, 4, dtype=torch.float64)
        check_likelihood(Categorical(), classes, torch.tensor([1, 3]))


def _orthogonal_regression(noise: float) -> tuple[Tensor, Tensor]:
    """Return columns that do not overlap: the exact posterior has independent weights."""
    x = torch.linalg.qr(torch.randn(64, 4)).Q * 8
    return x, x @ torch.randn(4, 1) + noise * torch.randn(64, 1)


def _conjugate_fit() -> None:
    noise, prior = 0.5, 1.0
    with seeded(0):
        x, y = _orthogonal_regression(noise)
        net = nn.Linear(4, 1, bias=False)
        model = convert(net, MeanField(0.3), Normal(prior))
        options: dict[str, Any] = {"kl_weight": 1.0, "kl_warmup": 0.0, "lr": 0.05, "batch_size": 64}
        fit(model, (x, y), epochs=1500, likelihood=Gaussian(noise), progress=False, **options)
        ((_, random_map),) = random_maps(model)
        q = random_map.posterior()
    precision = (x.square().sum(0) / noise**2 + prior**-2)[None]
    exact_mean = (y.mT @ x) / noise**2 / precision
    torch.testing.assert_close(q.mean.detach(), exact_mean, rtol=0.0, atol=0.02)
    torch.testing.assert_close(q.variance.detach().sqrt(), precision.rsqrt(), rtol=0.1, atol=0.0)


def _file() -> None:
    with seeded(0), tempfile.TemporaryDirectory() as folder:
        net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        model, x = convert(net, KTied(2), Normal(1.0)), torch.randn(5, 3)
        again = load(net, save(model, f"{folder}/model"))
        first, second = (predict(each, x, samples=20, seed=1).samples for each in (model, again))
        assert_close(first, second, "a saved model predicts something else")
