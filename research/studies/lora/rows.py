"""The rows of the table: what is made random in a fine-tuned network, and how it predicts."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor

import leanbayes as lb
from leanbayes.estimators import Estimator
from research.studies.lora.network import Upper

LORA = ("**.lora_A.*", "**.lora_B.*")
_DROPOUT = 0.1
_ALPHA = 2.0
"""By what the product of the factors is multiplied."""

Inputs = tuple[Tensor, Tensor]
"""Activations and masks."""


@dataclass(frozen=True)
class Row:
    """One way to be uncertain about a fine-tuned network.

    Args:
        network: what is trained; rows with the same one share it.
        posterior: of the layers that match ``include``; ``None`` for a plain network.
        prior: theirs.
        include: patterns of layer names.
        estimator: how far noise is shared: a token is one of many that use a factor, for which
            ``auto`` would draw once for a whole batch.
        members: how many networks predict together.
        dropout: draw dropout in predictions.
    """

    network: str
    posterior: lb.posteriors.Posterior | None = None
    prior: lb.priors.Prior | None = None
    include: Sequence[str] = LORA
    estimator: Estimator = lb.estimators.auto
    members: int = 1
    dropout: bool = False


_PRIOR = lb.priors.Normal(0.2)
ROWS: Mapping[str, Row] = {
    "LoRA": Row("plain"),
    "MC dropout": Row("plain", dropout=True),
    "ensemble of 3": Row("plain", members=3),
    "last layer": Row("last", lb.MeanField(), _PRIOR, ("classifier",)),
    "mean field": Row("mean-field", lb.MeanField(), _PRIOR, estimator=lb.estimators.flipout),
    "k-tied": Row("k-tied", lb.KTied(2), _PRIOR, estimator=lb.estimators.flipout),
    "rank-1": Row("rank-1", lb.Rank1(members=2), lb.priors.Normal(0.1, loc=1.0)),
}


def adapted(upper: Upper, row: Row, rank: int, seed: int) -> Upper:
    """Return a copy with adapters beside its queries and values, and what a row makes random of it.

    Factors and the head start by the seed. They are trained, and nothing else. A plain network has
    dropout while it is trained; a random one has its own noise instead.
    """
    torch.manual_seed(seed)
    network = copy.deepcopy(upper)
    network.classifier.reset_parameters()
    config = LoraConfig(
        r=rank,
        lora_alpha=round(_ALPHA * rank),
        lora_dropout=_DROPOUT,
        target_modules=["query", "value"],
    )
    inject_adapter_in_model(config, network)
    network.classifier.requires_grad_(True)
    if row.posterior is None or row.prior is None:
        return network.train()
    return lb.convert(network.eval(), row.posterior, row.prior, row.estimator, include=row.include)


def trained_tensors(network: torch.nn.Module) -> dict[str, Tensor]:
    """Return what is trained, by name."""
    return {name: p for name, p in network.named_parameters() if p.requires_grad}


def predicted(
    row: Row, networks: Sequence[Upper], samples: int, seed: int
) -> Callable[[Inputs], lb.Prediction]:
    """Return how a row predicts with its trained networks; plain ones give one sample each."""
    options: dict[str, Any] = {"batch_size": 50, "seed": seed}
    (first, *others) = networks
    if others:
        ensemble = lb.DeepEnsemble(networks)
        return lambda x: lb.predict(ensemble, x, samples=1, **options)
    if row.dropout:
        noisy = lb.mc_dropout(first)
        return lambda x: lb.predict(noisy, x, samples=samples, **options)
    if row.posterior is None:
        return lambda x: lb.predict(first, x, samples=1, **options)
    if row.network == "last":
        head = first.classifier
        return lambda x: lb.predict(head, _features(first, x), samples=samples, seed=seed)
    draws = samples // lb.extend.members(first)
    return lambda x: lb.predict(first, x, samples=draws, **options)


@torch.no_grad()
def _features(network: Upper, x: Inputs) -> Tensor:
    """Return what a head without noise below it sees; one pass serves all of its draws."""
    network.eval()
    batches = zip(*(part.split(50) for part in x), strict=True)
    return torch.cat([network.features(hidden, mask) for hidden, mask in batches])
