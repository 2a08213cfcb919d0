"""The page on architecture is true: files to copy work from an empty folder, and names exist."""

import ast
import importlib
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import estimators, likelihoods, posteriors, priors
from leanbayes.compression.prune import CRITERIA
from leanbayes.lab import architectures
from leanbayes.lab.data import listing, load_dataset
from leanbayes.lab.data.sources import SOURCES
from leanbayes.lab.from_recipe import build_model, load_data
from leanbayes.lab.measurements import MEASUREMENTS
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.report import study, write_report
from leanbayes.lab.runs import Run
from leanbayes.lab.train import train
from leanbayes.prediction.one_pass import RULES
from leanbayes.training import schedules
from research import corruptions, papers

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FILES = {path.stem: path for path in sorted((ROOT / "docs" / "extending").glob("*.py"))}

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")


@pytest.fixture
def added(tmp_path, monkeypatch, request):
    """Import a copy of one of the files from an empty folder; forget it afterwards."""

    def add(name, registry=None, registered=None):
        copy = shutil.copy(FILES[name], tmp_path / f"my_{name}.py")
        monkeypatch.syspath_prepend(tmp_path)
        request.addfinalizer(lambda: sys.modules.pop(copy.stem, None))
        module = importlib.import_module(copy.stem)
        if registry is not None:
            request.addfinalizer(lambda: registry.unregister(registered))
        return module

    return add


def recipe(**sections):
    values = {
        "name": "spirals",
        "data": {"name": "digits"},
        "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [8]}},
        "posterior": "MeanField",
        "prior": {"kind": "Normal", "scale": 1.0},
        "training": {"epochs": 1, "limit": 100},
        "evaluation": {"samples": 2},
    }
    return check_recipe({**values, **sections})


def round_trip(model, net, tmp_path):
    same = lb.load(net, lb.save(model, tmp_path / "m"))
    assert torch.equal(lb.kl(same), lb.kl(model))
    return same


def test_a_posterior(added, tmp_path):
    mine = added("posterior", posteriors.POSTERIORS, "RowScale")
    lb.testing.check_posterior(mine.RowScale(0.3))
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.LazyLinear(3))
    net(torch.randn(1, 1, 5, 5))
    model = lb.convert(net, mine.RowScale(), lb.priors.Normal(1.0))
    assert model(torch.randn(4, 1, 5, 5)).shape == (4, 3)
    round_trip(model, net, tmp_path)
    described = recipe(posterior={"kind": "RowScale", "scale": 0.1})
    assert described.posterior == mine.RowScale(0.1)


def test_a_prior(added, tmp_path):
    mine = added("prior", priors.PRIORS, "GumbelPrior")
    lb.testing.check_prior(mine.GumbelPrior(0.2, 0.5))
    net = nn.Linear(3, 2)
    with torch.random.fork_rng():
        model = lb.convert(net, lb.KTied(2), mine.GumbelPrior())
        same = lb.load(net, lb.save(model, tmp_path / "m"))
    assert same.prior.spec == mine.GumbelPrior()


def test_an_estimator(added, tmp_path):
    mine = added("estimator", estimators.ESTIMATORS, "local_for_many")
    net, x = nn.Linear(3, 2), torch.ones(40, 3)
    model = lb.convert(net, lb.MeanField(), lb.priors.Normal(1.0), mine.local_for_many)
    assert len(model(x).unique(dim=0)) == 40
    assert len(model(x[:4]).unique(dim=0)) == 1
    assert round_trip(model, net, tmp_path).estimator is mine.local_for_many


def test_an_op(added):
    mine = added("op")
    lb.testing.check_op(mine.ChannelMix(), torch.randn(3, 4, 5).double(), columns=4)
    with pytest.raises(ValueError, match="give \\[batch, 4, positions\\]"):
        mine.ChannelMix().check_input(torch.randn(3, 5, 5), 4)


def test_a_layer_kind(added):
    mine = added("layer")
    try:
        lb.testing.check_layer(mine.EqualizedLinear(3, 2), torch.randn(5, 3))
    finally:
        lb.layers.KINDS.pop(mine.EqualizedLinear)


def test_a_likelihood(added):
    mine = added("likelihood", likelihoods.LIKELIHOODS, "laplace")
    outputs, y = torch.randn(4, 3, 1).double(), torch.randn(3, 1).double()
    lb.testing.check_likelihood(mine.LaplaceNoise(0.5), outputs, y)
    described = recipe(likelihood={"kind": "laplace", "scale": 0.5})
    assert described.likelihood.make().scale == 0.5


def test_a_schedule(added):
    mine = added("schedule", schedules.SCHEDULES, "sawtooth")
    described = recipe(kl={"kind": "sawtooth", "options": {"period": 10}})
    assert described.kl.make() == mine.Sawtooth(10)
    assert described.kl.make()(25) == 0.5


def test_a_criterion_of_pruning(added):
    mine = added("criterion", CRITERIA, "second_moment")
    model = lb.convert(nn.Linear(10, 4), lb.MeanField(0.1), lb.priors.Normal(1.0))
    pruned = lb.prune(model, by="second_moment", keep=0.5)
    assert lb.compression.density(pruned) == {"": 0.5}
    assert mine.second_moment(model.posterior(), model.prior()).shape == (4, 10)


def test_a_data_set(added):
    added("dataset", SOURCES, "spirals")
    assert "spirals" in [entry.name for entry in listing()]
    assert len(load_dataset("spirals", points=20).train) == 20
    assert load_data(recipe(data={"name": "spirals"})).classes == ("left", "right")


def test_an_architecture(added):
    added("architecture", architectures.ARCHITECTURES, "bottleneck")
    described = recipe(architecture={"name": "bottleneck", "options": {"inputs": 64}})
    assert build_model(described)(torch.randn(3, 64)).shape == (3, 2)


def test_a_corruption(added):
    added("corruption", corruptions.CORRUPTIONS, "dead-rows")
    dark = [
        1 - corruptions.corrupt(torch.ones(50, 1, 8, 8), "dead-rows", severity).mean()
        for severity in (1, 5)
    ]
    assert 0 < dark[0] < dark[1]


def test_a_measurement(added, tmp_path):
    mine = added("measurement", MEASUREMENTS, "mean_norm")
    described = recipe(measurements=[{"kind": "mean_norm", "order": 1}])
    assert described.measurements == (mine.MeanNorm(order=1.0),)
    train(described, tmp_path / "run", progress=False)
    run = Run(tmp_path / "run")
    (norm,) = run.columns["norm/dense1"]
    assert norm == pytest.approx(
        float(run.load()[0].dense1.posterior.loc.detach().abs().sum()), rel=1e-5
    )
    with pytest.raises(ValueError, match=r"key 'ordre' is unknown; did you mean 'order'\?"):
        recipe(measurements=[{"kind": "mean_norm", "ordre": 1}])


def test_a_section_of_a_report(added, tmp_path):
    added("section", study.SECTIONS, "how_long")
    train(recipe(), tmp_path / "run", progress=False)
    assert "s an epoch." in write_report([tmp_path / "run"], tmp_path / "r.html").read_text()


def test_a_paper(tmp_path, monkeypatch):
    (tmp_path / "example").mkdir()
    shutil.copy(FILES["paper"], tmp_path / "example" / "paper.py")
    monkeypatch.setattr(papers, "__path__", [*papers.__path__, str(tmp_path)])
    try:
        assert papers.find_papers()["example"].short == "example"
    finally:
        sys.modules.pop("research.papers.example.paper", None)


def test_a_rule_of_moments(added):
    added("moments")
    try:
        x = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)
        y = torch.abs(lb.extend.Uncertain(x, torch.full_like(x, 0.7)))
        draws = (x + 0.7**0.5 * torch.randn(20_000, 3, dtype=torch.float64)).abs()
        lb.testing.assert_mean(draws, y.loc, "mean")
        lb.testing.assert_mean((draws - y.loc) ** 2, y.variance, "variance")
    finally:
        for function in (torch.abs, torch.Tensor.abs):
            del RULES[function]


def test_the_table_has_a_row_and_this_file_a_test_for_every_file():
    linked = re.findall(r"\(extending/(\w+)\.py\)", PAGE)
    assert sorted(linked) == sorted(FILES)
    tests = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{name}"' in tests for name in FILES)


def test_what_the_table_names_exists():
    for name in re.findall(r"`@?lb\.([\w.]+)", PAGE.split("\n## ")[0]):
        thing = lb
        for part in name.split("."):
            thing = getattr(thing, part)


def section(title):
    """The part of the page under a heading."""
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


WHERE = re.findall(r"^\| (.+) \| \[.+\]\((.+)\) \| `(.+)` \|$", section("Index of questions"), re.M)


def test_where_is_what_has_thirty_rows():
    assert len(WHERE) >= 30
    assert len(WHERE) == section("Index of questions").count("\n| ") - 1  # the head


@pytest.mark.parametrize(("question", "file", "symbol"), WHERE)
def test_what_is_looked_for_is_there(question, file, symbol):
    assert question.endswith("?")
    body = ast.parse((ROOT / "docs" / file).read_text(encoding="utf-8")).body
    for part in symbol.split("."):
        found = [node for node in body if part in defined(node)]
        assert found, f"{file} has no {symbol}"
        body = getattr(found[0], "body", [])


def defined(node):
    """The names that a statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    return {target.id for target in targets if isinstance(target, ast.Name)}


def test_every_folder_and_module_of_the_package_is_on_the_page():
    package = Path(lb.__file__).parent
    there = {
        path.stem
        for path in package.iterdir()
        if path.suffix == ".py" or any(path.glob("*.py")) or path.name == "recipes"
        if not path.name.startswith("_")
    }
    assert set(re.findall(r"^\| `(\w+)` \|", section("The package"), re.MULTILINE)) == there


def test_files_in_the_picture_exist():
    picture = (ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8")
    files = re.findall(r'class="file"[^>]*>([^<]+)<', picture)
    assert len(files) > 10
    assert not [file for file in files if not (Path(lb.__file__).parent / file).is_file()]
