"""The training objective: the ELBO, and the four losses over several samples."""

from typing import NamedTuple

from torch import Tensor, nn

from leanbayes.likelihoods import Categorical, Likelihood
from leanbayes.likelihoods.mixtures import log_mean
from leanbayes.models.model_kl import kl as model_kl
from leanbayes.training.kl_weight import recommended_kl_weight


class Elbo(NamedTuple):
    """The parts of an objective, per example.

    Attributes:
        loss: ``nll + weight · kl``, to be minimised.
        nll: the negative log likelihood.
        kl: the KL divided by the size of the data.
        weight: what the KL was multiplied with.
    """

    loss: Tensor
    nll: Tensor
    kl: Tensor
    weight: float

    def __repr__(self) -> str:
        loss, nll, kl = (f"{float(part):.4g}" for part in self[:3])
        return f"loss {loss} = NLL {nll} + {self.weight:g} × KL {kl} per example"


def elbo(
    nll: Tensor, kl: Tensor | nn.Module, *, data_size: float, weight: float | None = None
) -> Elbo:
    """The loss per example, ``nll + weight · kl / data_size``: with weight 1 the negative ELBO.

    Args:
        nll: Mean negative log likelihood of a batch.
        kl: Converted model, or its KL, a sum over all weights.
        data_size: Number of training examples, not of batches; the sum of their weights where
            they have some.
        weight: Weight of the KL. If not given, 1 for a KL, and for a model the one that needs no
            tuning, :func:`~leanbayes.training.recommended_kl_weight`.

    Returns:
        The loss and its parts.

    Raises:
        ValueError: ``nll`` is not a scalar, or ``data_size`` is not positive.

    Example:
        >>> import torch
        >>> elbo(torch.tensor(1.0), torch.tensor(500.0), data_size=1000)
        loss 1.5 = NLL 1 + 1 × KL 0.5 per example
    """
    if isinstance(kl, nn.Module):
        weight = recommended_kl_weight(kl, data_size) if weight is None else weight
        kl = model_kl(kl)
    weight = 1.0 if weight is None else weight
    if not data_size > 0:
        raise ValueError(f"data_size is {data_size}; give the number of training examples")
    if nll.ndim:
        raise ValueError(
            f"nll has shape {tuple(nll.shape)}; give its mean over the batch, a scalar"
        )
    per_example = kl / data_size
    weighted = per_example if weight == 1 else weight * per_example
    return Elbo(nll + weighted, nll, per_example, weight)


def mean_logits_nll(outputs: Tensor, y: Tensor, likelihood: Likelihood | None = None) -> Tensor:
    """NLL of the averaged outputs [rank-1, eq. 11]; ``outputs`` is ``[samples, batch, …]``."""
    return (likelihood or Categorical()).nll(outputs.mean(0), y)


def mean_probs_nll(outputs: Tensor, y: Tensor, likelihood: Likelihood | None = None) -> Tensor:
    """NLL of the averaged predictive parameters [rank-1, eq. 12], in log space."""
    return -(likelihood or Categorical()).averaged_log_prob(outputs, y).mean()


def average_nll(outputs: Tensor, y: Tensor, likelihood: Likelihood | None = None) -> Tensor:
    """The average of the samples' NLLs [rank-1, eq. 13]: what training minimises."""
    return (likelihood or Categorical()).nll(outputs, y)


def mixture_nll(
    outputs: Tensor,
    y: Tensor,
    likelihood: Likelihood | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """NLL of the mixture of the samples [rank-1, eq. 14]: what evaluation reports.

    Args:
        outputs: outputs ``[samples, batch, …]``.
        y: targets.
        likelihood: what the outputs mean; classes if not given.
        weight: how much every example counts, one on average.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[[1000.0, -1000.0]], [[-1000.0, 1000.0]]])
        >>> round(float(mixture_nll(logits, torch.tensor([0]))), 4)
        0.6931
    """
    log_probs = log_mean((likelihood or Categorical()).log_prob(outputs, y))
    return -(log_probs if weight is None else weight * log_probs).mean()
