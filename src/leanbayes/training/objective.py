"""The training objective: the ELBO, and the four losses over several samples."""

from typing import NamedTuple

from torch import Tensor

from leanbayes.likelihoods import Categorical, Likelihood
from leanbayes.likelihoods.mixtures import log_mean


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


def elbo(nll: Tensor, kl: Tensor, *, data_size: float, weight: float = 1.0) -> Elbo:
    """The negative evidence lower bound per example: ``nll + weight · kl / data_size``.

    Args:
        nll: the mean negative log likelihood of a batch.
        kl: the KL of the model, a sum over all weights.
        data_size: how many training examples there are, not how many batches; the sum of their
            weights where they have some.
        weight: weight of the KL, from a schedule.

    Example:
        >>> import torch
        >>> elbo(torch.tensor(1.0), torch.tensor(500.0), data_size=1000)
        loss 1.5 = NLL 1 + 1 × KL 0.5 per example
    """
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


def mixture_nll(outputs: Tensor, y: Tensor, likelihood: Likelihood | None = None) -> Tensor:
    """NLL of the mixture of the samples [rank-1, eq. 14]: what evaluation reports.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[[1000.0, -1000.0]], [[-1000.0, 1000.0]]])
        >>> round(float(mixture_nll(logits, torch.tensor([0]))), 4)
        0.6931
    """
    return -log_mean((likelihood or Categorical()).log_prob(outputs, y)).mean()
