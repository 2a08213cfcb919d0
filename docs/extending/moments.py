"""A rule of one-pass moments: how a function acts on a mean and a variance."""

import math

import torch

import leanbayes as lb


@lb.extend.register_moments(torch.abs, torch.Tensor.abs)
def absolute(x: lb.extend.Uncertain) -> lb.extend.Uncertain:
    """The folded normal: ``E|x| = m erf(m / √(2v)) + √(2v/π) exp(−m² / 2v)``."""
    v = x.variance.clamp_min(torch.finfo(x.variance.dtype).tiny)
    ratio = x.loc / (2 * v).sqrt()
    loc = x.loc * torch.erf(ratio) + (2 * v / math.pi).sqrt() * torch.exp(-ratio.square())
    return lb.extend.Uncertain(loc, (x.loc.square() + v - loc.square()).clamp_min(0.0))
