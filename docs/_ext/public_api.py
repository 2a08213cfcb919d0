"""The public names of leanbayes, their guides and their examples; the reference and a test read it.

Needs neither Sphinx nor a build.
"""

import pkgutil
import types
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "reference" / "examples.txt"
"""Examples of names whose docstrings have none: a path, then an indented doctest."""

HOW_TO = {
    "leanbayes": "../quickstart",
    "leanbayes.posteriors": "../families",
    "leanbayes.priors": "../families",
    "leanbayes.estimators": "../estimators",
    "leanbayes.likelihoods": "../models",
    "leanbayes.training": "../train_well",
    "leanbayes.training.schedules": "../train_well",
    "leanbayes.metrics": "../predictions",
    "leanbayes.plots": "../predictions",
    "leanbayes.analysis": "../sparsity",
    "leanbayes.compression": "../sparsity",
    "leanbayes.extend": "../architecture",
    "leanbayes.extend.ops": "../architecture",
    "leanbayes.testing": "../adding_a_posterior",
    "leanbayes.sklearn": "../sklearn",
    "leanbayes.lightning": "../lightning",
}
"""The guide of every namespace, as seen from ``docs/reference``."""

HOW_TO_OF_NAME = {
    "DeepEnsemble": "../baselines",
    "mc_dropout": "../baselines",
    "Rank1": "../families",
    "KTied": "../families",
    "MeanField": "../families",
    "Prediction": "../predictions",
    "predict": "../predictions",
    "predict_batches": "../predictions",
    "calibrate": "../predictions",
    "diagnose": "../predictions",
    "compact": "../sparsity",
    "prune": "../sparsity",
    "elbo": "../train_well",
    "fit": "../train_well",
    "parameter_groups": "../train_well",
    "export_onnx": "../deployment",
    "laplace": "../baselines",
    "held": "../estimators",
    "using": "../estimators",
    "tile": "../models",
    "kernels": "../performance",
}
"""Guides of names of ``leanbayes`` itself whose guide is not the quickstart."""


def public_names(module):
    """Public objects of a module that are not modules, by name."""
    found = {name: getattr(module, name) for name in module.__all__}
    return {name: each for name, each in found.items() if not isinstance(each, types.ModuleType)}


def owner_of_objects():
    """The namespace that documents each public object, by its id: the first that has it."""
    owners = {}
    for place in HOW_TO:
        for thing in public_names(pkgutil.resolve_name(place)).values():
            owners.setdefault(id(thing), place)
    return owners


def how_to(module, name):
    """The guide of a public object."""
    return HOW_TO_OF_NAME.get(name, HOW_TO[module]) if module == "leanbayes" else HOW_TO[module]


def examples():
    """The doctests of ``EXAMPLES``, by path of the public name."""
    blocks = EXAMPLES.read_text(encoding="utf-8").split("\n\n")[1:]
    return dict(block.rstrip("\n").split("\n", 1) for block in blocks)
