"""Long NUTS chains on a problem; needs the extra ``gold``."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from research.trust.gold.problems import Problem

Array = npt.NDArray[Any]
KEPT = 200
"""Draws of regressions that are kept, thinned evenly."""


@dataclass(frozen=True)
class Chains:
    """How NUTS runs.

    Args:
        chains: Number of chains, each from its own start.
        warmup: Steps that adapt the sampler.
        draws: Draws per chain.
        depth: Largest depth of a tree of leapfrog steps.
        seed: Random seed.
    """

    chains: int = 4
    warmup: int = 400
    draws: int = 400
    depth: int = 8
    seed: int = 0


def sample(problem: Problem, settings: Chains) -> tuple[dict[str, Array], dict[str, Any]]:
    """Predictions on test inputs, and how well the chains mixed.

    Returns:
        Arrays to store: ``outputs [draws, tests]`` of a regression; ``probs [chains, tests,
        classes]`` and ``variance [tests, classes]`` of classes. Facts: duration, divergences and
        split R̂ of predictions.
    """
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro.infer import MCMC, NUTS

    x, y, x_test = (jnp.asarray(each.numpy()) for each in (problem.x, problem.y, problem.x_test))

    def outputs(weights: Any, at: Any) -> Any:
        if not problem.hidden:
            return at @ weights["first"]
        return jnp.tanh(at @ weights["first"]) / math.sqrt(problem.hidden) @ weights["last"]

    def model() -> None:
        normal, width = numpyro.distributions.Normal, problem.hidden or problem.outputs
        shapes = {"first": (x.shape[1], width), "last": (problem.hidden, problem.outputs)}
        weights = {
            name: numpyro.sample(name, normal(0, 1).expand(shape).to_event(2))
            for name, shape in list(shapes.items())[: 2 if problem.hidden else 1]
        }
        predicted = outputs(weights, x)
        law = {
            "numbers": lambda: normal(predicted, problem.noise),
            "binary": lambda: numpyro.distributions.Bernoulli(logits=predicted),
            "classes": lambda: numpyro.distributions.Categorical(logits=predicted),
        }[problem.kind]()
        numpyro.sample("y", law, obs=y)

    started = time.monotonic()
    mcmc = MCMC(
        NUTS(model, max_tree_depth=settings.depth, init_strategy=numpyro.infer.init_to_sample),
        num_warmup=settings.warmup,
        num_samples=settings.draws,
        num_chains=settings.chains,
        chain_method="sequential",
        progress_bar=False,
    )
    mcmc.run(jax.random.PRNGKey(settings.seed), extra_fields=("diverging", "num_steps"))
    drawn = mcmc.get_samples(group_by_chain=True)
    predicted = jax.vmap(jax.vmap(lambda weights: outputs(weights, x_test)))(drawn)
    predicted = np.asarray(predicted, np.float32)
    facts = {"duration": time.monotonic() - started, **_mixing(predicted, mcmc.get_extra_fields())}
    return _stored(problem, predicted), facts


def _mixing(predicted: Array, extra: dict[str, Any]) -> dict[str, Any]:
    """How well chains mixed, from their predictions and the fields of every step."""
    import jax
    import numpyro
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    rhat, size = split_gelman_rubin(predicted), effective_sample_size(predicted)
    return {
        "divergences": int(extra["diverging"].sum()),
        "leapfrog_steps": float(extra["num_steps"].mean()),
        "rhat_median": float(np.median(rhat)),
        "rhat_95": float(np.quantile(rhat, 0.95)),
        "rhat_max": float(rhat.max()),
        "effective_draws_median": float(np.median(size)),
        "numpyro": numpyro.__version__,
        "jax": jax.__version__,
    }


def _stored(problem: Problem, predicted: Array) -> dict[str, Array]:
    """Compact predictions from outputs ``[chains, draws, tests, outputs]``."""
    if problem.kind == "numbers":
        draws = predicted[..., 0].reshape(-1, predicted.shape[2])
        return {"outputs": draws[np.linspace(0, len(draws) - 1, KEPT).astype(int)]}
    if problem.kind == "binary":
        predicted = np.concatenate([np.zeros_like(predicted), predicted], -1)
    exponential = np.exp(predicted - predicted.max(-1, keepdims=True))
    probs = exponential / exponential.sum(-1, keepdims=True)
    variance = probs.reshape(-1, *probs.shape[2:]).var(0)
    return {"probs": probs.mean(1), "variance": variance}


def save(path: Path, arrays: dict[str, Array]) -> None:
    """Write arrays of one problem."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
