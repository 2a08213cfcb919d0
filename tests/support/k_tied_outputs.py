"""Outputs of k-tied weights by the kernel, as a function of tensors."""

from leanbayes.kernels.dispatch import run
from leanbayes.kernels.k_tied import KTiedOutputs


def k_tied_local(x, loc, u, v, bias, log_unit=None):
    return run(KTiedOutputs(log_unit), x, loc, u, v, bias)
