"""A likelihood: one distribution of the targets, from which everything else follows."""

import torch
from torch import Tensor
from torch.distributions import Distribution

import leanbayes as lb


@lb.extend.register_likelihood("laplace")
class LaplaceNoise(lb.likelihoods.Likelihood):
    """Real targets with double-exponential noise, which forgives outliers."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def distribution(self, outputs: Tensor) -> Distribution:
        return torch.distributions.Laplace(outputs, self.scale, validate_args=False)
