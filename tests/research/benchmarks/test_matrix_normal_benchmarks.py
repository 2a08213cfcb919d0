"""Benchmarks of matrix normals and of compacted networks: what takes turns with what."""

import json

import pytest
import torch
from typer.testing import CliRunner

import leanbayes as lb
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.recipe_files import read_recipe
from leanbayes.lab.train import train
from research.__main__ import app
from research.benchmarks import compaction, matrix_normal
from research.measuring.harness import Cost

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

COST = Cost(0.5, 0.4, 0.6, kept=3, discarded=0)


def run_bench(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def tiny(monkeypatch, name, seen):
    """Work is done once, and the clock is left alone."""

    def measure(plain, methods, *, rounds, clock):
        seen.append((plain(), {title: work() for title, work in methods.items()}, rounds))
        return dict.fromkeys(methods, COST)

    monkeypatch.setattr(name, "measure", measure)


@pytest.mark.checklist("MN15")
def test_steps_of_the_recipes_take_turns_with_independent_weights(monkeypatch, tmp_path):
    posteriors, seen = [], []
    tiny(monkeypatch, matrix_normal, seen)

    def built(spec):
        posteriors.append((spec.architecture.name, spec.posterior, spec.prior))
        net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
        return lb.convert(net, spec.posterior, spec.prior)

    monkeypatch.setattr(matrix_normal, "build_model", built)
    out = tmp_path / "bench.json"
    assert run_bench("matrix-normal", "--rounds", "3", "--out", out).exit_code == 0
    kinds = [type(posterior).__name__ for _, posterior, _ in posteriors]
    assert sorted(kinds) == sorted(["MeanField", "MatrixNormal", "MatrixNormal", "KTied"] * 2)
    assert {name for name, _, _ in posteriors} == {"mlp-elu", "fashion-cnn"}
    assert {type(prior).__name__ for _, _, prior in posteriors} == {"ARD"}
    for plain, methods, rounds in seen:
        assert rounds == 3
        assert list(methods) == ["MN", "MN+Diagonal", "k-tied 2"]
        assert all(loss.isfinite() for loss in (plain, *methods.values()))
    found = json.loads(out.read_text())
    assert found["networks"]["FC-300"]["costs"]["MN"]["median"] == 0.5
    assert {"versions", "machine", "seed", "config", "duration"} <= found.keys()
    for network in matrix_normal.NETWORKS.values():
        names = ("diag", *matrix_normal.POSTERIORS.values())
        specs = [read_recipe(f"matrix_normal/{network}-{name}", budget="cpu") for name in names]
        assert len({repr((s.architecture, s.prior, s.estimator, s.training)) for s in specs}) == 1


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compaction") / "run"
    recipe = check_recipe(
        {
            "name": "fashion-mnist-mlp-group-mn",
            "data": {"name": "digits"},
            "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [24, 16]}},
            "posterior": {"kind": "MatrixNormal", "scale": 0.02},
            "prior": "GroupARD",
            "optimizer": {"lr": 0.02},
            "training": {"epochs": 6, "batch_size": 200, "prior_updates": 1},
            "evaluation": {"samples": 1},
        }
    )
    train(recipe, folder, progress=False)
    return folder


def test_whole_and_smaller_networks_take_turns_on_test_images(run, monkeypatch, tmp_path):
    seen, out = [], tmp_path / "bench.json"
    tiny(monkeypatch, compaction, seen)
    options = "--batch 50 --rounds 2 --log-alpha 3 --log-alpha 4"
    assert run_bench("compaction", run, "--out", out, *options.split()).exit_code == 0
    found = json.loads(out.read_text())
    (three, four) = found["sweep"]
    assert (three["log_alpha"], four["log_alpha"]) == (3.0, 4.0)
    for network in (point[kind] for point in found["sweep"] for kind in ("bayesian", "plain")):
        before, after = network["multiply_adds"]
        assert before == 64 * 24 + 24 * 16 + 16 * 10
        assert network["fewer"] == before / after >= 1
        assert network["cost"]["median"] == 0.5
    assert (found["batch"], found["name"]) == (50, "fashion-mnist-mlp-group-mn")
    assert all(outputs.shape == (50, 10) for outputs, _, _ in seen)
    whole, small, _ = seen[1]
    torch.testing.assert_close(small["plain"], whole, rtol=1e-4, atol=1e-4)


def test_networks_that_cannot_be_smaller_and_too_few_rounds_are_refused(run, monkeypatch):
    monkeypatch.setattr(compaction, "smaller", lambda *_: {"plain": (None, nothing())})
    with pytest.raises(ValueError, match="cannot be made smaller: kept: all of it"):
        compaction.speeds(torch.nn.Identity(), torch.ones(1, 2), 3.0)
    for arguments in (("compaction", run), ("matrix-normal",)):
        done = run_bench(*arguments, "--rounds", "1")
        assert done.exit_code == 2
        assert "greater than or equal to 2" in done.output


def nothing():
    """What compaction says of a network that it cannot follow."""
    one = torch.nn.Linear(2, 2)
    small, report = lb.compact(one)
    assert report.multiply_adds is None
    return small, type(report)((), (report.kept[0]._replace(name="all of it"),))
