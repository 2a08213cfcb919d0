"""KLs of single matrices, as functions of tensors."""

from torch import Tensor

from leanbayes.kernels import FromRelevance, NoForce, ScaledFromNormal, TiedFromNormal


def _learned(scale):
    if isinstance(scale, Tensor):
        return scale.item(), scale if scale.requires_grad else None
    return scale, None


def scaled_kl(loc, scale, prior_loc, prior_scale):
    """``KL(N(loc, scale²) ‖ N(prior_loc, prior_scale²))``, summed over weights."""
    number, learned = _learned(prior_scale)
    return ScaledFromNormal((loc, scale, learned), prior_loc, number).total()


def k_tied_kl(loc, u, v, prior_loc, prior_scale, log_unit=None):
    """The same for ``scale = uᵀ v``, or for logarithms of ``u`` and ``v``."""
    number, learned = _learned(prior_scale)
    return TiedFromNormal((loc, u, v, learned), prior_loc, number, log_unit).total()


def relevance_kl(mean, variance):
    """``½ Σ log(1 + mean² / variance)``."""
    return FromRelevance((mean, variance)).total()


def no_force(scale):
    """Zero, whatever the scales are."""
    return NoForce((scale,)).total()
