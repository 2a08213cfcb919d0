"""The public names: few at the top, the rest in namespaces, and each with a readable repr."""

import importlib
import inspect
import re
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.display import DisplayTable, short_repr

NAMESPACES = {
    name: getattr(lb, name)
    for name in lb.__all__
    if isinstance(getattr(lb, name), types.ModuleType)
}
AMBIGUOUS = {"Laplace", "Cauchy", "StudentT", "Normal", "Dropout"}


def test_at_most_forty_names_are_at_the_top():
    assert len(lb.__all__) <= 40


def test_completion_shows_public_names_and_nothing_else():
    assert {name for name in dir(lb) if not re.fullmatch(r"__\w+__", name)} == set(lb.__all__)


def test_no_name_at_the_top_is_a_posterior_here_and_a_prior_or_a_layer_there():
    assert not AMBIGUOUS & set(lb.__all__)
    assert "Normal" in lb.priors.__all__
    assert "VariationalDropout" in lb.posteriors.__all__


@pytest.mark.parametrize("name", NAMESPACES)
def test_a_namespace_is_a_module_on_disk_that_lists_its_names(name):
    space = NAMESPACES[name]
    assert importlib.import_module(f"leanbayes.{name}") is space
    folder = Path(lb.__file__).parent
    assert Path(space.__file__) in (folder / f"{name}.py", folder / name / "__init__.py")
    assert len(set(space.__all__)) == len(space.__all__) > 0
    assert all(hasattr(space, public) for public in space.__all__)


def public_classes():
    """Classes that can be made, by name."""
    spaces = [lb, *NAMESPACES.values(), lb.training.schedules, lb.extend.ops]
    public = [getattr(space, name) for space in spaces for name in space.__all__]
    kinds = {v.__name__: v for v in public if inspect.isclass(v) and not inspect.isabstract(v)}
    bases = {"Posterior", "Prior", "Schedule"}
    return [kind for name, kind in sorted(kinds.items()) if name not in bases]


def network():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def model(posterior=None):
    return lb.convert(network(), posterior or lb.MeanField(0.1), lb.priors.Normal(1.0))


def batches():
    return [(torch.randn(8, 6), torch.randint(3, (8,)))]


def prediction():
    return lb.predict(model(), batches()[0][0], samples=3)


def healthy():
    falls = [2.0 - 0.01 * step for step in range(20)]
    return lb.diagnose(model(), {"nll": falls, "kl": falls, "weight": [1.0] * 20})


def pruned():
    return lb.prune(model(), groups="row", keep=0.5, include=["0"])


def rejection():
    return lb.metrics.rejection_curve(torch.rand(50), torch.rand(50))


TABLES = {
    "Plan": lambda: lb.plan(network(), lb.KTied(2), lb.priors.Normal(0.2), exclude=["2"]),
    "AlphaReport": lambda: lb.analysis.alpha_report(model()),
    "SparsityReport": lambda: lb.analysis.sparsity_report(model()),
    "Spectrum": lambda: lb.analysis.spectrum(model())["0"],
    "CompactionReport": lambda: lb.compact(pruned()).report,
    "Compacted": lambda: lb.compact(pruned()),
    "Diagnosis": healthy,
    "Bins": lambda: lb.metrics.calibration_bins(torch.rand(50), torch.rand(50) > 0.5),
    "Coverage": lambda: lb.metrics.coverage_curve(torch.rand(50)),
    "Rejection": rejection,
}
VALUES = TABLES | {
    "Prediction": prediction,
    "Elbo": lambda: lb.elbo(torch.tensor(2.3), torch.tensor(131.0), data_size=100),
    "ParameterCounts": lambda: lb.count_parameters(model(lb.KTied(2))),
    "Score": lambda: lb.metrics.Score(2.3171, 0.0352),
    "LayerAlpha": lambda: lb.analysis.alpha_report(model()).rows[0],
    "DeepEnsemble": lambda: lb.DeepEnsemble([network(), network()]),
    "LayerSpec": lambda: lb.extend.LayerSpec(lb.KTied(), lb.priors.He()),
    "Stored": lambda: lb.extend.Stored(torch.randn(400, 784)),
    "Uncertain": lambda: lb.extend.Uncertain(torch.zeros(2, 3), torch.ones(2, 3)),
    "Learned": lambda: model()[0].posterior,
    "Affine": lambda: model()[0],
    "RandomMap": lambda: model()[0],
}
ARGUMENTS = {
    "Normal": (0.2,), "Centered": (0.1,), "StudentT": (3.0,), "Cauchy": (0.5,),
    "HalfCauchy": (0.5,), "LogNormal": (0.5,), "Laplace": (0.5,),
    "LinearRamp": (100,), "Stepwise": (5e-5, 100), "Exponential": (300,),
    "Conv": ((3, 3),), "ConvTranspose": ((3, 3),), "Usage": (8, False),
}  # fmt: skip


def made(kind):
    if kind.__name__ in VALUES:
        return VALUES[kind.__name__]()
    return kind(*ARGUMENTS.get(kind.__name__, ()))


@pytest.mark.parametrize("kind", public_classes(), ids=lambda kind: kind.__name__)
def test_a_public_object_has_a_readable_repr(kind):
    text = repr(made(kind))
    assert text
    assert not re.search(r" object at 0x|<function|tensor\(", text)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_shown_as_one_in_a_notebook(name):
    html = TABLES[name]()._repr_html_()
    assert html.startswith(("<table>", "<p>"))
    assert html.count("<tr>") == html.count("</tr>")


def test_cells_are_text_in_html():
    html = DisplayTable(["<b>"], [["a & b"]], title="<i>", notes=["x < y"]).html()
    assert "<b>" not in html
    assert all(part in html for part in ("&lt;b&gt;", "a &amp; b", "&lt;i&gt;", "x &lt; y"))


def test_columns_end_at_the_right_except_those_at_the_left():
    table = DisplayTable(
        ["name", "count", ""], [["a", "1", "one"], ["bcdef", "1,000", ""]], left=(0, -1)
    )
    assert table.text().splitlines() == ["name   count", "a          1  one", "bcdef  1,000"]


@pytest.mark.parametrize("kind", [*lb.posteriors.POSTERIORS.values(), *lb.priors.PRIORS.values()])
def test_a_spec_can_be_made_from_its_repr(kind):
    spec = made(kind)
    names = {name: getattr(space, name) for space in (lb.posteriors, lb.priors)
             for name in space.__all__}  # fmt: skip
    assert eval(repr(spec), names) == spec
    assert repr(spec) == short_repr(spec)
