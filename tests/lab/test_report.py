"""The report: one page that is whole, well formed, and says what the run folders say."""

import math
import re
import shutil
import subprocess
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import numpy
import pytest
import torch
from pages import Page
from torchmetrics.functional.classification import multiclass_calibration_error

import leanbayes as lb
from leanbayes.lab.data import load_dataset
from leanbayes.lab.evaluation import foreign_auroc, foreign_images
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.report import register_section, write_report
from leanbayes.lab.report.html import element, section, table
from leanbayes.lab.report.study import SECTIONS
from leanbayes.lab.report.weights import shares_shown
from leanbayes.lab.runs import Run
from leanbayes.lab.train import train
from leanbayes.lab.weights import mean_matrices, scale_matrices
from leanbayes.metrics import calibration_bins, rejection_curve

mpl = pytest.importorskip("matplotlib")
pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

CHROMIUM = Path("/usr/bin/chromium")
EVERYWHERE = ("Results", "Learning curves")
FACTS = "What was run"
FROM_DATA = (
    "Calibration",
    "OOD detection",
    "Most and least certain images",
)


def recipe(**changes):
    values = {
        "name": "digits-small",
        "data": {"name": "digits"},
        "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [8]}},
        "posterior": {"kind": "KTied", "rank": 2},
        "prior": {"kind": "Normal", "scale": 0.3},
        "optimizer": {"lr": 0.01},
        "kl": {"kind": "linear", "options": {"steps": 20}},
        "training": {"epochs": 3, "batch_size": 200},
        "evaluation": {"samples": 3},
        "published": {
            "paper": "<small> & quick",
            "row": 'MLP "k" = 2',
            "values": {"accuracy": 0.125, "unheard_of": 7.25, "parameters": 1000},
            "note": "<script>alert(1)</script>",
        },
        "cut": "3 epochs & no more",
    }
    return check_recipe({**values, **changes})


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tied")
    train(recipe(), folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def dropout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dropout")
    changes = {
        "name": "sparse",
        "posterior": {"kind": "Dropout", "alpha": "additive"},
        "prior": "LogUniform",
        "published": None,
        "training": {"epochs": 1, "batch_size": 400},
    }
    train(recipe(**changes), folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def both(tied, dropout, tmp_path_factory):
    """A page about two runs."""
    return write_report([tied, dropout], tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def alone(tied, tmp_path_factory):
    """A page about one run."""
    return write_report([tied], tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def copied(tied, tmp_path):
    """A run folder to damage."""
    return Path(shutil.copytree(tied, tmp_path / "run"))


def report(run, tmp_path):
    return Page(write_report([run], tmp_path / "report.html"))


def test_two_runs_share_a_page_with_every_section_that_applies(both):
    page = Page(both)
    each = [*EVERYWHERE, *FROM_DATA, "Standard deviations of the weights"]
    assert page.headings == ["All runs", *each, FACTS, *each, "Dropout rates", FACTS]
    targets = {value for tag, key, value in page.attributes if (tag, key) == ("h2", "id")}
    links = {value for tag, key, value in page.attributes if (tag, key) == ("a", "href")}
    assert links == {f"#{target}" for target in targets}
    assert len(targets) == 2


def test_curves_show_kl_and_scale_of_each_layer_and_log_alpha_of_dropout(alone, both):
    captions = Page(alone).captions()
    assert any("KL from the prior by layer" in caption for caption in captions)
    assert any("Mean standard deviation σ" in caption for caption in captions)
    assert not any("log α" in caption for caption in captions)
    captions = Page(both).captions()
    assert any("log α of the weights by layer: median" in caption for caption in captions)


def test_scales_of_every_epoch_are_on_record(tied):
    columns = Run(tied).columns
    names = [name for name in columns if name.startswith("scale/")]
    assert names == ["scale/model.dense1", "scale/model.dense2"]
    assert all(len(columns[name]) == 3 for name in names)
    model, _ = Run(tied).load()
    factors = model.dense1.posterior
    scale = (factors.value("u").T @ factors.value("v")).detach()
    assert columns[names[0]][-1] == pytest.approx(float(scale.mean()), rel=1e-5)
    assert not any(name.startswith("log_alpha") for name in columns)


def test_log_alphas_of_every_epoch_are_on_record(dropout):
    columns = Run(dropout).columns
    model, _ = Run(dropout).load()
    for layer in ("dense1", "dense2"):
        posterior = getattr(model, layer).posterior
        loc, scale = posterior.loc.detach(), posterior.value("scale").detach()
        log_alpha = 2 * (scale / loc.abs()).log().flatten().numpy()
        names = [
            f"{kind}/model.{layer}" for kind in ("log_alpha_q25", "log_alpha", "log_alpha_q75")
        ]
        recorded = [columns[name][-1] for name in names]
        expected = numpy.quantile(log_alpha, (0.25, 0.5, 0.75), method="nearest")
        assert recorded == pytest.approx(expected.tolist(), rel=1e-4)


def test_a_plain_network_is_judged_too(tmp_path):
    values = {"posterior": None, "prior": None, "training": {"epochs": 1, "batch_size": 400}}
    train(recipe(**values), tmp_path / "run", progress=False)
    page = report(tmp_path / "run", tmp_path)
    assert page.headings == [*EVERYWHERE, *FROM_DATA, FACTS]
    assert len(page.notices) == 1  # that it was cut


def test_a_page_begins_with_title_and_verdict_and_ends_with_facts(copied, tmp_path):
    text = Page(write_report([copied], tmp_path / "report.html", title="A title")).text
    assert text.index("A title") < text.index("On the test set: accuracy") < text.index(FACTS)


def test_a_section_is_one_function(copied, tmp_path):
    (copied / "result.json").unlink()  # nothing to predict: soon written

    @register_section
    def seeds(run, study):
        return section("Seeds", element("p", f"drawn with {run.recipe.seed}"))

    @register_section
    def silent(run, study):
        return None

    try:
        page = report(copied, tmp_path)
    finally:
        SECTIONS.unregister("seeds")
        SECTIONS.unregister("silent")
    assert page.headings[-1] == "Seeds"
    assert "drawn with 42" in page.text
    assert "Seeds" not in report(copied, tmp_path).headings


def test_a_page_needs_nothing_else(both):
    text = both.read_text(encoding="utf-8")
    assert not re.search(r"https?://|//[a-z]+\.[a-z]|@import|url\(", text)
    page = Page(both)
    assert not {"script", "iframe", "object"} & set(page.tags)
    sources = [v for _, key, v in page.attributes if key in ("src", "href", "srcset")]
    assert all(source.startswith(("data:", "#")) for source in sources)
    assert [p.name for p in both.parent.iterdir()] == [both.name]


def test_it_is_made_for_phones_and_for_paper(both):
    page = Page(both)
    assert ("meta", "content", "width=device-width, initial-scale=1") in page.attributes
    assert "@media print" in page.text
    alternatives = [v for tag, key, v in page.attributes if (tag, key) == ("img", "alt")]
    assert len(alternatives) == page.tags.count("img")
    assert all(alternatives)


def test_every_image_decodes_and_shows_something(both):
    from matplotlib.image import imread

    images = Page(both).images()
    assert len(images) > 15
    drawings = [ElementTree.fromstring(svg) for svg in images if b"<svg" in svg]
    assert len(drawings) > 10
    assert all(len(list(drawing.iter())) > 50 for drawing in drawings)
    for png in (image for image in images if b"<svg" not in image):
        pixels = imread(BytesIO(png))
        assert min(pixels.shape[:2]) > 300
        assert pixels[..., :3].std() > 0.01


def test_words_of_a_recipe_are_escaped(alone):
    page = Page(alone)
    for text in ("paper <small> & quick", "<script>alert(1)</script>", 'MLP "k" = 2'):
        assert text in page.text
    assert "3 epochs & no more" in page.notices[0]


def test_numbers_are_those_of_the_run(tied, alone):
    page = Page(alone)
    run = Run(tied)
    accuracy = run.metrics["accuracy"]
    assert f"{accuracy.value:.4f} ± {accuracy.error:.4f}" in page.text
    assert f"{accuracy.value - 0.125:+.4f}" in page.text
    assert "not measured" in page.text
    assert "7.2500" in page.text
    trained = sum(run.result["parameters"].values())
    assert f"{trained:,}" in page.text
    assert f"{trained - 1000:+,}" in page.text
    assert f"means {run.result['parameters']['means']:,}" in page.text
    assert run.result["versions"]["torch"] in page.text


def test_a_page_is_the_same_twice(tied, alone, tmp_path):
    assert write_report([tied], tmp_path / "again.html").read_bytes() == alone.read_bytes()


@pytest.mark.parametrize(
    "content", ["", '{"metrics": {"nll"', "[]", '{"metrics": 3}', '{"metrics": {"nll": {}}}']
)
def test_a_damaged_result_is_one_sentence(copied, content):
    (copied / "result.json").write_text(content)
    run = Run(copied)
    assert run.result == {}
    (problem,) = run.problems
    assert "result.json is truncated or damaged" in problem


def test_a_truncated_result_leaves_the_other_sections(copied, tmp_path):
    result = copied / "result.json"
    result.write_bytes(result.read_bytes()[:-20])
    page = report(copied, tmp_path)
    assert "result.json is truncated or damaged" in page.notices[0]
    assert {"Learning curves", "Calibration"} <= set(page.headings)


def test_an_unfinished_run_is_reported_so_far(copied, tmp_path):
    (copied / "result.json").unlink()
    (copied / "model.safetensors").unlink()
    page = report(copied, tmp_path)
    assert "not finished" in page.notices[0]
    assert "model could not be read" in page.notices[1]
    assert page.headings == [*EVERYWHERE, FACTS]


def test_a_run_that_has_only_a_recipe_is_said_to_be_one(copied, tmp_path):
    for name in ("result.json", "metrics.csv", "model.safetensors"):
        (copied / name).unlink()
    page = report(copied, tmp_path)
    assert "no epoch has been finished" in page.notices[0]
    assert "Learning curves" not in page.headings


@pytest.mark.parametrize("content", ["epoch,nll\n0,a\n", "epoch,nll\n0,1,2,3\n", ""])
def test_a_damaged_table_of_metrics_has_no_columns(copied, content):
    (copied / "metrics.csv").write_text(content)
    run = Run(copied)
    assert run.columns == {}
    (problem,) = run.problems
    assert "metrics.csv" in problem
    assert run.metrics


def test_a_damaged_model_costs_its_sections(copied, tmp_path):
    model = copied / "model.safetensors"
    model.write_bytes(model.read_bytes()[:100])
    page = report(copied, tmp_path)
    assert any("model could not be read" in notice for notice in page.notices)
    assert page.headings == [*EVERYWHERE, FACTS]


def test_missing_data_cost_their_sections_and_one_sentence(copied, tmp_path):
    text = (copied / "recipe.yaml").read_text()
    (copied / "recipe.yaml").write_text(text.replace("name: digits\n", "name: gone.npz\n"))
    page = report(copied, tmp_path)
    said = [notice for notice in page.notices if "data set could not be read" in notice]
    assert len(said) == 1
    assert "gone.npz does not exist" in said[0]
    assert page.headings == [*EVERYWHERE, "Standard deviations of the weights", FACTS]


def test_a_report_downloads_nothing(tied, tmp_path, monkeypatch):
    asked = []
    refuse = lambda name, **options: asked.append(options) or 1 / 0  # noqa: E731
    monkeypatch.setattr("leanbayes.lab.from_recipe.load_dataset", refuse)
    with pytest.raises(ZeroDivisionError):
        report(tied, tmp_path)
    assert asked == [{"download": False}]


def test_a_folder_that_is_no_run_is_refused_in_one_sentence(tied, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is not a run folder \(no recipe\.yaml\)"):
        write_report([tied, tmp_path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="nothing to report"):
        write_report([], tmp_path / "report.html")


def test_elements_escape_text_and_attributes():
    assert element("a", "<&>", href='"') == '<a href="&quot;">&lt;&amp;&gt;</a>'
    shown = table(["h"], [["<b>", "1"]], "caption")
    assert '<th scope="row">&lt;b&gt;</th><td class="number">1</td>' in shown.replace("\n", "")
    assert "<caption>caption</caption>" in shown
    assert '<th scope="col">h</th>' in shown


def test_bins_give_the_calibration_error_of_torchmetrics():
    logits = torch.randn(500, 7, dtype=torch.float64) * 2
    probs, y = logits.softmax(-1), torch.randint(7, (500,))
    confidence, labels = probs.max(-1)
    bins = calibration_bins(confidence, labels == y)
    expected = multiclass_calibration_error(probs, y, 7, n_bins=15)
    assert bins.calibration_error == pytest.approx(float(expected), abs=1e-6)
    assert bins.examples.sum() == 500


def test_confidences_of_nought_and_one_have_bins():
    bins = calibration_bins(torch.tensor([0.0, 1.0]), torch.tensor([False, True]))
    assert bins.examples[[0, -1]].tolist() == [1, 1]
    assert bins.calibration_error == 0


def test_rejection_keeps_the_most_certain():
    uncertainty, right = torch.rand(50), torch.rand(50) < 0.5
    rejected, accuracy = rejection_curve(uncertainty, right)
    for share, value in zip(rejected.tolist(), accuracy.tolist(), strict=True):
        kept = round(50 * (1 - share))
        best = sorted(range(50), key=lambda i: float(uncertainty[i]))[:kept]
        assert value == pytest.approx(sum(bool(right[i]) for i in best) / kept)


def test_auroc_is_the_share_of_pairs_in_order():
    inside, outside = torch.randn(40), torch.randn(30) + 1
    pairs = (outside[:, None] > inside).double().mean()
    assert foreign_auroc(inside, outside) == pytest.approx(float(pairs), abs=1e-6)
    assert foreign_auroc(torch.zeros(3), torch.zeros(2)) == 0.5


@pytest.mark.parametrize("scaling", ["unit", "symmetric"])
def test_images_outside_the_distribution_keep_their_pixels(scaling):
    digits = load_dataset("digits", scaling=scaling)
    x = digits.test.x
    low, high = x.min(), x.max()
    inverted, moved = foreign_images(x, digits, 0).values()
    torch.testing.assert_close(inverted, low + high - x)
    assert not torch.equal(moved, x)
    torch.testing.assert_close(moved.flatten(1).sort(-1)[0], x.flatten(1).sort(-1)[0])


def test_scales_and_spectra_are_those_of_the_posterior():
    model = lb.convert(torch.nn.Linear(6, 5), lb.KTied(2), lb.priors.Normal(1.0)).double()
    (scale,) = scale_matrices(model).values()
    u, v = (model.posterior.value(name) for name in "uv")
    torch.testing.assert_close(scale, (u.T @ v).detach())
    shares = shares_shown(scale)
    eigenvalues = torch.linalg.eigvalsh(scale.T @ scale).flip(0)[:2]
    torch.testing.assert_close(shares[:2], eigenvalues / eigenvalues.sum())
    assert math.isclose(float(shares.sum()), 1.0)
    (mean,) = mean_matrices(model).values()
    torch.testing.assert_close(mean, model.mean_weight.detach())
    assert (
        mean_matrices(
            lb.convert(torch.nn.Linear(6, 5), lb.posteriors.ZeroMean(), lb.priors.LogUniform())
        )
        == {}
    )


def test_mixtures_and_points_have_no_scale_matrix():
    for posterior in (lb.Rank1(members=2), lb.posteriors.Point()):
        model = lb.convert(torch.nn.Linear(6, 5), posterior, lb.priors.Normal(1.0, loc=1.0))
        assert scale_matrices(model) == {}


def render(page, picture, width):
    """Draw a page; returns what the browser has to say."""
    flags = (
        "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
        f"--enable-logging=stderr --window-size={width},2000"
    )
    done = subprocess.run(
        [
            str(CHROMIUM),
            *flags.split(),
            f"--user-data-dir={picture.parent / 'profile'}",
            f"--screenshot={picture}",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stderr


needs_chromium = pytest.mark.skipif(
    not CHROMIUM.exists(), reason=f"{CHROMIUM} is not installed, so no page is rendered"
)


@needs_chromium
@pytest.mark.parametrize("width", [500, 1200])
def test_chromium_renders_it_without_a_console_message(both, tmp_path, width):
    from matplotlib.image import imread

    picture = tmp_path / "page.png"
    assert "CONSOLE" not in render(both, picture, width)
    pixels = imread(picture)
    assert pixels.shape[0] == 2000
    assert pixels[..., :3].std() > 0.05


@needs_chromium
def test_a_console_message_would_be_seen(tmp_path):
    page = tmp_path / "broken.html"
    page.write_text("<script>throw new Error('seen')</script>")
    assert "CONSOLE" in render(page, tmp_path / "page.png", 500)
