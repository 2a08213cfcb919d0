"""Public HMC predictions of CIFAR-10: right file, and runs of other data are refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from leanbayes.lab.data import load_dataset
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.runs import Run
from leanbayes.lab.train import train
from research.trust.cifar10_hmc import FILE, against_hmc, hmc_probs

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")


@pytest.fixture
def gold(tmp_path, monkeypatch):
    """Predictions in a folder of their own: as many as the digits have test images."""
    probs = torch.rand(360, 10, dtype=torch.float64)
    path = tmp_path / FILE
    path.parent.mkdir()
    np.savez(path, probs=probs / probs.sum(-1, keepdim=True))
    monkeypatch.setenv("LEANBAYES_DATA", str(tmp_path))
    return probs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    values = {
        "name": "digits",
        "data": {"name": "digits"},
        "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [4]}},
        "posterior": {"kind": "KTied", "rank": 1},
        "prior": {"kind": "Normal", "scale": 0.3},
        "training": {"epochs": 1, "batch_size": 400},
        "evaluation": {"samples": 2},
    }
    folder = tmp_path_factory.mktemp("run")
    train(check_recipe(values), folder, progress=False)
    return Run(folder)


def test_another_data_set_is_refused(run, gold):
    with pytest.raises(ValueError, match="is of digits; HMC predictions are of cifar-10"):
        against_hmc(run)


def test_a_run_is_compared_image_by_image(run, gold, monkeypatch):
    monkeypatch.setitem(vars(run), "dataset", replace(run.dataset, name="cifar-10"))
    found = against_hmc(run)
    assert 0 <= found["agreement"] <= 1
    labels = run.dataset.test.y
    assert found["hmc_accuracy"] == pytest.approx(float((gold.argmax(-1) == labels).float().mean()))
    assert 0 < found["total_variation"] < 1


def test_a_missing_file_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("LEANBAYES_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"probs.npz was not found"):
        hmc_probs()


def test_the_public_file_has_the_published_scores():
    try:
        probs, labels = hmc_probs(), load_dataset("cifar-10", download=False).test.y
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert float((probs.argmax(-1) == labels).float().mean()) == pytest.approx(0.9144, abs=1e-4)
    nll = -probs.gather(1, labels[:, None]).log().mean()
    assert float(nll) == pytest.approx(0.2773, abs=2e-4)
