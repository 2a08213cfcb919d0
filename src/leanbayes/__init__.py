"""leanbayes: honest uncertainty for any neural network, at almost the cost of the network.

``train()`` and ``eval()`` do not switch the noise of a converted model; :func:`using` and
:func:`held` do.
"""

from importlib.metadata import PackageNotFoundError, version

from leanbayes._start import without_collector

with without_collector():
    from leanbayes import (
        analysis,
        compression,
        estimators,
        extend,
        likelihoods,
        metrics,
        plots,
        posteriors,
        priors,
        testing,
        training,
    )
    from leanbayes.compression import compact, prune
    from leanbayes.conversion.convert import convert, deterministic, plan
    from leanbayes.export import export_onnx
    from leanbayes.kernels import kernels
    from leanbayes.models.baselines import DeepEnsemble, mc_dropout
    from leanbayes.models.random_maps import held, kl, named_kl, tile, using
    from leanbayes.posteriors import KTied, MeanField, Rank1
    from leanbayes.prediction.predict import Prediction, predict, predict_batches
    from leanbayes.saving import load, save
    from leanbayes.training import (
        calibrate,
        count_parameters,
        diagnose,
        elbo,
        fit,
        laplace,
        parameter_groups,
    )

try:
    __version__ = version("leanbayes")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"

__all__ = [
    "DeepEnsemble",
    "KTied",
    "MeanField",
    "Prediction",
    "Rank1",
    "analysis",
    "calibrate",
    "compact",
    "compression",
    "convert",
    "count_parameters",
    "deterministic",
    "diagnose",
    "elbo",
    "estimators",
    "export_onnx",
    "extend",
    "fit",
    "held",
    "kernels",
    "kl",
    "laplace",
    "likelihoods",
    "load",
    "mc_dropout",
    "metrics",
    "named_kl",
    "parameter_groups",
    "plan",
    "plots",
    "posteriors",
    "predict",
    "predict_batches",
    "priors",
    "prune",
    "save",
    "testing",
    "tile",
    "training",
    "using",
]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
