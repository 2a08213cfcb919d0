"""Probes: gradients and the −ELBO at given steps, and why tied scales are learned faster."""

import math

import pytest
import torch

from leanbayes.lab.data import Batches
from leanbayes.lab.from_recipe import build_model, load_data
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.runs import Run
from leanbayes.lab.train import train
from leanbayes.lightning import BayesianModule

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")


def probe(*steps, layer="dense1", **options):
    return {"kind": "probe", "steps": steps, "layer": layer, **options}


def recipe(**changes):
    values = {
        "name": "digits-probe",
        "data": {"name": "digits"},
        "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [32]}},
        "posterior": {"kind": "KTied", "rank": 2},
        "prior": {"kind": "Normal", "scale": 0.3},
        "estimator": "weights",
        "optimizer": {"lr": 3e-3},
        "training": {"epochs": 3, "batch_size": 100},
        "measurements": [probe(4, 30, window=4)],
        "evaluation": {"samples": 2},
    }
    return check_recipe({**values, **changes})


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return train(recipe(), tmp_path_factory.mktemp("probed") / "run", progress=False)


def test_a_result_has_what_was_probed(result):
    assert set(result["probe"]) == {"4", "30"}
    for step, found in result["probe"].items():
        assert set(found["snr"]) == {"gradient", "square", "median", "pooled"}
        assert result["metrics"][f"snr_{step}"]["value"] == found["snr"]["gradient"]["dense1"]
        assert result["metrics"][f"negative_elbo_{step}"]["value"] == found["negative_elbo"]
        assert found["snr"]["gradient"]["dense1"] > 1


def test_the_ratio_is_that_of_the_window_before_the_step(result):
    """The first four steps, taken again without Lightning."""
    spec = recipe()
    data, model = load_data(spec), build_model(spec)
    module = BayesianModule(model, data_size=len(data.train), seed=spec.seed)
    torch.manual_seed(spec.seed * 1_000_003 * 1_009)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    kept = []
    batches = Batches(data.train, 100, seed=spec.seed).epoch(0)
    for _, batch in zip(range(4), batches, strict=False):
        optimizer.zero_grad()
        module.objective(batch).loss.backward()
        posterior = model.dense1.posterior
        kept.append(torch.cat([posterior.u.grad.flatten(), posterior.v.grad.flatten()]))
        optimizer.step()
    g = torch.stack(kept).double()
    by_hand = (g.square().mean(0) / g.var(0, correction=0)).mean()
    assert result["metrics"]["snr_4"]["value"] == pytest.approx(float(by_hand), rel=1e-4)
    middle = (g.square().mean(0) / g.var(0, correction=0)).median()
    assert result["metrics"]["snr_median_4"]["value"] == pytest.approx(float(middle), rel=1e-4)
    pooled = g.square().mean() / g.var(0, correction=0).mean()
    assert result["metrics"]["snr_pooled_4"]["value"] == pytest.approx(float(pooled), rel=1e-4)


def test_a_ratio_that_is_not_finite_is_not_in_the_result(tmp_path):
    """Where nothing moves, all gradients of a full batch without noise are the same."""
    still = recipe(
        estimator="mean",
        optimizer={"name": "sgd", "lr": 1e-30},
        training={"epochs": 2, "batch_size": 2000},
        measurements=[probe(2, window=2)],
    )
    result = train(still, tmp_path / "run", progress=False)
    assert result["probe"]["2"]["snr"]["median"]["dense1"] is None
    assert "snr_median_2" not in result["metrics"]
    assert "Infinity" not in (tmp_path / "run" / "result.json").read_text()


def test_probing_does_not_change_the_training(result, tmp_path):
    plain = train(recipe(measurements=[]), tmp_path / "run", progress=False)
    for name, value in plain["metrics"].items():
        assert result["metrics"][name] == value


def test_a_stopped_run_has_the_same_probes(result, tmp_path, monkeypatch):
    """Also when it stops in the middle of a window, which begins before the third epoch."""
    folder = tmp_path / "run"
    steps = math.ceil(len(load_data(recipe()).train) / 100)
    spec = recipe(measurements=[probe(2 * steps + 2, window=4)])
    whole = train(spec, tmp_path / "whole", progress=False)

    write = Run.write_metrics

    def write_then_stop(self, rows):
        write(self, rows)
        if len(rows) == 2:
            raise RuntimeError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(Run, "write_metrics", write_then_stop)
        with pytest.raises(RuntimeError, match="stopped"):
            train(spec, folder, progress=False)
    kept = torch.load(Run(folder).checkpoints.paths()[-1], weights_only=True)["callbacks"]
    assert {"Record", "Probe"} <= set(kept)  # their names in the first checkpoints there were
    resumed = train(spec, folder, resume=True, progress=False)
    assert resumed["metrics"] == whole["metrics"]
    assert resumed["probe"] == whole["probe"]


def test_a_layer_that_is_not_there_is_named(tmp_path):
    spec = recipe(measurements=[probe(2, layer="dense")])
    with pytest.raises(ValueError, match="layer 'dense' of measurement 'probe' is unknown; did"):
        train(spec, tmp_path / "run", progress=False)


def learned(tmp_path, name, **changes):
    """The −ELBO after 150 steps with the whole KL."""
    spec = recipe(measurements=[probe(150)], name=name, **changes)
    spec = spec.model_copy(update={"training": spec.training.model_copy(update={"epochs": 15})})
    found = train(spec, tmp_path / name, progress=False)
    return found["metrics"]["negative_elbo_150"]["value"]


@pytest.mark.checklist("KT10")
def test_tied_scales_are_learned_faster_and_what_part_adam_has(tmp_path):
    """Adam moves a tied log scale twice as far as a free one, SGD hundreds of times.

    So a mean field whose scales have twice the rate nearly catches up under Adam, and under SGD
    one with the same rate hardly moves.
    """
    free, adam, sgd = (
        {"posterior": "MeanField"},
        {"name": "adam", "lr": 3e-3},
        {"name": "sgd", "lr": 0.02},
    )
    tied = learned(tmp_path, "tied", optimizer=adam)
    full = learned(tmp_path, "full", optimizer=adam, **free)
    twice = learned(tmp_path, "twice", optimizer={**adam, "multipliers": {"scales": 2.0}}, **free)
    assert tied < full - 0.5
    assert abs(twice - tied) < 0.2 * (full - tied)
    tied_sgd = learned(tmp_path, "tied-sgd", optimizer=sgd)
    full_sgd = learned(tmp_path, "full-sgd", optimizer=sgd, **free)
    assert tied_sgd < full_sgd - 1.0


def test_without_validation_examples_it_is_refused_before_training(tmp_path):
    spec = recipe(data={"name": "digits", "options": {"validation": 0}})
    with pytest.raises(ValueError, match="measurement 'probe' needs validation examples"):
        train(spec, tmp_path / "run", progress=False)
