"""leanbayes: honest uncertainty for any neural network, at almost the cost of the network.

``train()`` and ``eval()`` do not switch the noise of a converted model; :func:`using` and
:func:`held` do.
"""

from importlib.metadata import PackageNotFoundError, version

from leanbayes._start import without_collector

with without_collector():
    from leanbayes import distributions, metrics, ops, plots, schedules, testing
    from leanbayes.ablate import permute_scales, zero_means
    from leanbayes.alpha import AlphaReport, LayerAlpha, alpha_report
    from leanbayes.attack import Attack, fast_sign_attack
    from leanbayes.compaction import Compacted, CompactionReport, compact
    from leanbayes.compress import Comparison, compare, to_k_tied, truncate
    from leanbayes.convert import Plan, convert, deterministic, plan
    from leanbayes.diagnose import Diagnosis, diagnose
    from leanbayes.dropout import mc_dropout
    from leanbayes.ensemble import DeepEnsemble
    from leanbayes.errors import LoadError
    from leanbayes.estimators import auto, flipout, local, mean, register_estimator, weights
    from leanbayes.export import export_onnx
    from leanbayes.gradient_snr import GradientSNR
    from leanbayes.io import load, load_likelihood, save
    from leanbayes.kernels import Kernels, kernels
    from leanbayes.layers import Affine, Choice, Layer, RandomMap, register_layer
    from leanbayes.learned import Learned, Stored
    from leanbayes.likelihoods import (
        Bernoulli,
        Categorical,
        Gaussian,
        Likelihood,
        NegativeBinomial,
        Poisson,
        StudentTNoise,
        register_likelihood,
    )
    from leanbayes.model import (
        held,
        kl,
        map_posteriors,
        members,
        named_kl,
        random_maps,
        tile,
        update_priors,
        using,
    )
    from leanbayes.objective import (
        Elbo,
        average_nll,
        elbo,
        mean_logits_nll,
        mean_probs_nll,
        mixture_nll,
    )
    from leanbayes.optim import NaturalGradient
    from leanbayes.parameters import ParameterCounts, count_parameters
    from leanbayes.posteriors import (
        Dropout,
        KTied,
        LowRank,
        MatrixNormal,
        MeanField,
        Point,
        Posterior,
        Pruned,
        Rank1,
        ZeroMean,
        register_posterior,
    )
    from leanbayes.predict import Prediction, predict, predict_batches
    from leanbayes.priors import (
        ARD,
        Cauchy,
        Centered,
        Flat,
        GroupARD,
        HalfCauchy,
        He,
        Laplace,
        LogNormal,
        LogUniform,
        Normal,
        Prior,
        ScaleMixture,
        StudentT,
        register_prior,
    )
    from leanbayes.prune import density, prune, register_criterion
    from leanbayes.pruning_curve import PruningCurve, PruningPoint, pruning_curve
    from leanbayes.scales import Scale
    from leanbayes.schedules import register_schedule
    from leanbayes.sparsity import SparsityReport, sparsity_report
    from leanbayes.spectrum import Spectrum, spectrum
    from leanbayes.widen import Widened, widen

try:
    __version__ = version("leanbayes")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"

__all__ = [
    "ARD",
    "Affine",
    "AlphaReport",
    "Attack",
    "Bernoulli",
    "Categorical",
    "Cauchy",
    "Centered",
    "Choice",
    "Compacted",
    "CompactionReport",
    "Comparison",
    "DeepEnsemble",
    "Diagnosis",
    "Dropout",
    "Elbo",
    "Flat",
    "Gaussian",
    "GradientSNR",
    "GroupARD",
    "HalfCauchy",
    "He",
    "KTied",
    "Kernels",
    "Laplace",
    "Layer",
    "LayerAlpha",
    "Learned",
    "Likelihood",
    "LoadError",
    "LogNormal",
    "LogUniform",
    "LowRank",
    "MatrixNormal",
    "MeanField",
    "NaturalGradient",
    "NegativeBinomial",
    "Normal",
    "ParameterCounts",
    "Plan",
    "Point",
    "Poisson",
    "Posterior",
    "Prediction",
    "Prior",
    "Pruned",
    "PruningCurve",
    "PruningPoint",
    "RandomMap",
    "Rank1",
    "Scale",
    "ScaleMixture",
    "SparsityReport",
    "Spectrum",
    "Stored",
    "StudentT",
    "StudentTNoise",
    "Widened",
    "ZeroMean",
    "alpha_report",
    "auto",
    "average_nll",
    "compact",
    "compare",
    "convert",
    "count_parameters",
    "density",
    "deterministic",
    "diagnose",
    "distributions",
    "elbo",
    "export_onnx",
    "fast_sign_attack",
    "flipout",
    "held",
    "kernels",
    "kl",
    "load",
    "load_likelihood",
    "local",
    "map_posteriors",
    "mc_dropout",
    "mean",
    "mean_logits_nll",
    "mean_probs_nll",
    "members",
    "metrics",
    "mixture_nll",
    "named_kl",
    "ops",
    "permute_scales",
    "plan",
    "plots",
    "predict",
    "predict_batches",
    "prune",
    "pruning_curve",
    "random_maps",
    "register_criterion",
    "register_estimator",
    "register_layer",
    "register_likelihood",
    "register_posterior",
    "register_prior",
    "register_schedule",
    "save",
    "schedules",
    "sparsity_report",
    "spectrum",
    "testing",
    "tile",
    "to_k_tied",
    "truncate",
    "update_priors",
    "using",
    "weights",
    "widen",
    "zero_means",
]
