"""Analysis of a trained model: signal-to-noise ratios, spectra, sparsity, ablations."""

from leanbayes.analysis.ablation import permute_scales, zero_means
from leanbayes.analysis.log_alpha import AlphaReport, LayerAlpha, alpha_report
from leanbayes.analysis.sparsity import SparsityReport, sparsity_report
from leanbayes.analysis.spectrum import Spectrum, spectrum

__all__ = [
    "AlphaReport",
    "LayerAlpha",
    "SparsityReport",
    "Spectrum",
    "alpha_report",
    "permute_scales",
    "sparsity_report",
    "spectrum",
    "zero_means",
]
