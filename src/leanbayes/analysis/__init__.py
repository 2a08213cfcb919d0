"""Analysis of a trained model: signal-to-noise ratios, spectra, sparsity."""

from leanbayes.analysis.log_alpha import AlphaReport, LayerAlpha, alpha_report
from leanbayes.analysis.sparsity import SparsityReport, sparsity_report
from leanbayes.analysis.spectrum import Spectrum, spectrum

__all__ = [
    "AlphaReport",
    "LayerAlpha",
    "SparsityReport",
    "Spectrum",
    "alpha_report",
    "sparsity_report",
    "spectrum",
]
