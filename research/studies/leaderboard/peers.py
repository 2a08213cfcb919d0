"""Other libraries on the leaderboard, each by its own documented calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes.likelihoods import Likelihood
from leanbayes.prediction.prediction import Prediction
from research.benchmarks.peers import bayesian_torch_layers
from research.studies.leaderboard.methods import (
    SAMPLES,
    Job,
    Trained,
    batches,
    cosine,
    count,
    trained_plain,
)

_EVIDENCE_STEPS = 1000
Step = Callable[[Tensor, Tensor], None]


@torch.no_grad()
def _drawn(
    model: nn.Module, likelihood: Likelihood, draw: Callable[[Tensor], Tensor], x: Tensor
) -> Prediction:
    model.eval()
    passes = [torch.cat([draw(part) for part in x.split(1000)]) for _ in range(SAMPLES)]
    return Prediction(torch.stack(passes), likelihood)


def ivon_step(job: Job, model: nn.Module, likelihood: Likelihood) -> tuple[Any, Step]:
    """Return the optimizer at its documented learning rate, 0.1, and a step."""
    from ivon import IVON

    optimizer = IVON(model.parameters(), lr=0.1, ess=len(job.rows.x))
    noise = _noise_optimizer(likelihood, job)
    model.train()

    def step(x: Tensor, y: Tensor) -> None:
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            noise.zero_grad()
            likelihood.nll(model(x), y).backward()
        optimizer.step()
        noise.step()

    return optimizer, step


def ivon(job: Job) -> Trained:
    """Train with the optimizer IVON and cosine decay."""
    model, likelihood = job.network(), job.task.likelihood()
    optimizer, step = ivon_step(job, model, likelihood)
    for done, x, y in batches(job):
        cosine(optimizer, done)
        step(x, y)

    def draw(x: Tensor) -> Tensor:
        with optimizer.sampled_params():
            return model(x)

    return Trained(partial(_drawn, model, likelihood, draw), 2 * count(model), SAMPLES)


def _noise_optimizer(likelihood: Likelihood, job: Job) -> torch.optim.Optimizer:
    """Return an optimizer of the noise of a number; classes have none to learn."""
    return torch.optim.Adam([*likelihood.parameters()] or [torch.zeros(1)], lr=job.task.lr)


def bayesian_torch_step(
    job: Job, model: nn.Sequential, likelihood: Likelihood
) -> tuple[torch.optim.Optimizer, Step]:
    """Convert a model in place; return its optimizer and a step with the whole KL of the ELBO."""
    from bayesian_torch.models.dnn_to_bnn import get_kl_loss

    bayesian_torch_layers(model)
    rate, size = 1e-3 if job.task.sgd else job.task.lr, len(job.rows.x)
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=rate)
    model.train()

    def step(x: Tensor, y: Tensor) -> None:
        loss = likelihood.nll(model(x), y) + get_kl_loss(model) / size
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return optimizer, step


def bayesian_torch(job: Job) -> Trained:
    """Train mean field by reparameterization, with cosine decay."""
    model, likelihood = nn.Sequential(job.network()), job.task.likelihood()
    optimizer, step = bayesian_torch_step(job, model, likelihood)
    for done, x, y in batches(job):
        cosine(optimizer, done)
        step(x, y)
    return Trained(partial(_drawn, model, likelihood, model), count(model), SAMPLES)


def laplace_torch(job: Job, *, draws: bool = False) -> Trained:
    """Its default: a Kronecker-factored last layer; the marginal likelihood sets the prior.

    Probabilities are probit ones, its default, or averages over draws of logits.
    """
    from laplace import Laplace

    model, likelihood = trained_plain(job)
    kind = "classification" if job.task.classes else "regression"
    bayesian = Laplace(model, kind, subset_of_weights="last_layer", hessian_structure="kron")
    bayesian.fit(DataLoader(TensorDataset(job.rows.x, job.rows.y), batch_size=128))
    if job.task.classes:
        bayesian.optimize_prior_precision(method="marglik")
    else:
        likelihood = lb.likelihoods.Gaussian(_best_noise(bayesian))

    def predict(x: Tensor) -> Prediction:
        parts = x.split(1000)
        if job.task.classes:
            link: dict[str, Any] = {"link_approx": "probit"}
            if draws:
                link = {"link_approx": "mc", "n_samples": SAMPLES}
            probs = torch.cat([bayesian(part, **link).detach() for part in parts])
            return Prediction(probs.clamp_min(1e-12).log()[None])
        means, variances = (torch.cat(found) for found in zip(*map(bayesian, parts), strict=True))
        std = variances.reshape(means.shape).sqrt()
        generator = torch.Generator().manual_seed(job.seed)
        noise = torch.randn(100, *means.shape, generator=generator)
        return Prediction((means + std * noise).detach(), likelihood)

    return Trained(predict, count(model), 1)


def _best_noise(bayesian: Any) -> float:
    """Fit prior precision and noise to the marginal likelihood, as its regression example does."""
    log_prior, log_sigma = (torch.ones(1, requires_grad=True) for _ in range(2))
    optimizer = torch.optim.Adam([log_prior, log_sigma], lr=0.1)
    for _ in range(_EVIDENCE_STEPS):
        optimizer.zero_grad()
        (-bayesian.log_marginal_likelihood(log_prior.exp(), log_sigma.exp())).backward()
        optimizer.step()
    return float(log_sigma.detach().exp())


PEERS: dict[str, tuple[Callable[[Job], Trained], str, str]] = {
    "laplace-torch": (laplace_torch, "laplace", "laplace-torch"),
    "laplace-torch, draws": (partial(laplace_torch, draws=True), "laplace", "laplace-torch"),
    "IVON": (ivon, "ivon", "ivon-opt"),
    "bayesian-torch": (bayesian_torch, "bayesian_torch", "bayesian-torch"),
}
"""Method, module and package of each."""


def available() -> dict[str, Callable[[Job], Trained]]:
    """Return the peers that are installed here."""
    return {name: method for name, (method, module, _) in PEERS.items() if find_spec(module)}
