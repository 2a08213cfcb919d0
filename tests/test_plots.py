"""Pictures draw what they are given, on the axis they are given."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import plots

mpl = pytest.importorskip("matplotlib")
from matplotlib.figure import Figure  # noqa: E402

LOGITS = 2 * torch.randn(10, 200, 4, generator=torch.Generator().manual_seed(0))
CLASSES = lb.Prediction(LOGITS)
NUMBERS = lb.Prediction(LOGITS[..., 0].double(), lb.likelihoods.Gaussian(0.5))
Y = torch.randint(4, (200,), generator=torch.Generator().manual_seed(1))
MODEL = lb.convert(
    nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)), lb.KTied(2), lb.priors.Normal(1.0)
)


@pytest.fixture
def axes():
    return Figure().add_subplot()


DRAWN = {
    "reliability": lambda axes: plots.reliability(CLASSES.calibration(Y), axes),
    "coverage": lambda axes: plots.coverage(NUMBERS.calibration(Y.double()), axes),
    "rejection": lambda axes: plots.rejection(CLASSES.rejection(Y), axes),
    "entropies": lambda axes: plots.entropies({"a": CLASSES, "b": torch.ones(9)}, axes),
    "spectra": lambda axes: plots.spectra(lb.analysis.spectrum(MODEL), axes),
}


@pytest.mark.parametrize("name", DRAWN)
def test_every_picture_is_drawn_on_the_axis_that_is_given(name, axes, tmp_path):
    other = axes.figure.add_subplot(1, 2, 2)
    assert DRAWN[name](axes) is axes
    assert axes.has_data()
    assert axes.get_xlabel()
    assert axes.get_ylabel()
    assert not other.has_data()
    axes.figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5000


@pytest.mark.parametrize("name", DRAWN)
def test_every_picture_makes_a_figure_if_none_is_given(name):
    from matplotlib import pyplot

    drawn = DRAWN[name](None)
    assert drawn.figure.number in pyplot.get_fignums()
    pyplot.close(drawn.figure)


def test_reliability_shows_accuracies_with_their_intervals(axes):
    bins = CLASSES.calibration(Y)
    plots.reliability(bins, axes)
    container = axes.containers[-1]
    line, (bars,) = container.lines[0], container.lines[2]
    filled = bins.examples > 0
    assert line.get_ydata().tolist() == pytest.approx(bins.accuracy[filled].tolist())
    low, high = bins.interval
    for segment, a, b in zip(bars.get_segments(), low[filled], high[filled], strict=True):
        assert segment[:, 1].tolist() == pytest.approx([float(a), float(b)])


def test_coverage_shows_shares_and_chance(axes):
    curve = NUMBERS.calibration(Y.double())
    plots.coverage(curve, axes)
    assert axes.lines[-1].get_ydata().tolist() == pytest.approx(curve.observed.tolist())
    assert axes.lines[-1].get_label() == "this model"


def test_rejection_names_several_models(axes):
    plots.rejection({"a": CLASSES.rejection(Y), "_b$": CLASSES.rejection(Y)}, axes, of="error")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", r"b\$"]
    assert axes.get_ylabel() == "error on the others"


def test_entropies_are_densities_that_hold_all_finite_numbers(axes):
    values = torch.tensor([0.0, 1.0, 1.0, 2.0, torch.nan, torch.inf])
    plots.entropies({"a": values}, axes)
    heights, edges, _ = axes.patches[0].get_data()
    assert sum(heights) * (edges[1] - edges[0]) == pytest.approx(1)
    assert (edges[0], edges[-1]) == (0, 2)


def test_spectra_of_scales_and_of_means(axes):
    found = lb.analysis.spectrum(MODEL)
    plots.spectra(found, axes)
    assert [len(line.get_ydata()) for line in axes.lines] == [2, 2]  # two ties: two values
    means = plots.spectra(found, axes.figure.add_subplot(1, 2, 2), of="mean")
    assert means.lines[0].get_ydata().tolist() == pytest.approx(found["0"].mean.tolist())


def test_nothing_to_draw_is_refused(axes):
    with pytest.raises(ValueError, match="there are no curves to draw"):
        plots.rejection({}, axes)
    with pytest.raises(ValueError, match="no group has a finite number"):
        plots.entropies({"a": torch.tensor([torch.nan])}, axes)
    with pytest.raises(ValueError, match="there are no spectra to draw"):
        plots.spectra({}, axes)


def test_without_matplotlib_one_sentence_says_what_to_install():
    script = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import torch, leanbayes as lb\n"
        "p = lb.Prediction(torch.zeros(2, 3, 4))\n"
        "lb.plots.reliability(p.calibration(torch.zeros(3, dtype=torch.long)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "ImportError: plots need matplotlib; run: pip install 'leanbayes[plots]'" in done.stderr
