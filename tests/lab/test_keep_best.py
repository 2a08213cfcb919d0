"""Runs that end with the weights of their best epoch."""

import lightning as L
import pytest
import torch
from dense import absolute
from torch import nn

import leanbayes as lb
from leanbayes.lab.callbacks import KeepBest
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.runs import Run
from leanbayes.lab.train import train

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")


def recipe(keep, epochs=8, **data):
    """A network whose learning rate becomes much too high after five epochs."""
    return check_recipe(
        {
            "name": "few-digits",
            "data": {"name": "digits", "options": data},
            "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [16]}},
            "posterior": {"kind": "MeanField", "scale": 0.01},
            "prior": {"kind": "Normal", "scale": 1.0},
            "optimizer": {"lr": 0.05},
            "learning_rate": {"kind": "steps", "milestones": [5], "factor": 100.0},
            "kl": {"options": {"weight": 0.0}},
            "training": {"epochs": epochs, "batch_size": 20, "limit": 60, "keep": keep},
            "evaluation": {"samples": 3},
        }
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    return folder, train(recipe("best"), folder, progress=False)


def test_the_best_epoch_is_that_of_the_least_validation_nll(kept):
    folder, result = kept
    column = Run(folder).columns["validation/nll"]
    best = result["kept"]["epoch"]
    assert column[best] == min(column) == pytest.approx(result["kept"]["validation_nll"])
    assert best < len(column) - 1 == 7  # else this file tests nothing


def test_a_run_that_ends_there_is_the_same(kept, tmp_path):
    _, result = kept
    shorter = train(recipe("last", result["kept"]["epoch"] + 1), tmp_path, progress=False)
    assert shorter["metrics"] == result["metrics"]
    assert "kept" not in shorter


def test_a_run_that_is_resumed_ends_with_the_same(kept, tmp_path):
    folder, result = kept
    before = Run(folder).load()[0].state_dict()
    (folder / "result.json").unlink()
    Run(folder).checkpoints.paths()[-1].unlink()
    again = train(recipe("best"), folder, resume=True, progress=False)
    assert (again["kept"], again["metrics"]) == (result["kept"], result["metrics"])
    after = Run(folder).load()[0].state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_without_validation_there_is_no_best(tmp_path):
    with pytest.raises(ValueError, match="there are no validation examples; hold some out"):
        train(recipe("best", validation=0), tmp_path, progress=False)


def test_states_that_earlier_versions_kept_are_given_back():
    module = L.LightningModule()
    module.model = lb.convert(nn.Linear(3, 2), lb.KTied(2), lb.priors.Normal(1.0))
    posterior = module.model.posterior
    before = module.state_dict()
    now = {name: value.clone() for name, value in before.items()}
    logs = {f"model.posterior.{name}": t.detach() for name, t in absolute(posterior).items()}
    for state in ({"state": now | logs}, {"state": now, "version": 2}):
        kept = KeepBest()
        kept.load_state_dict({"epoch": 1, "nll": 0.5} | state)
        again = KeepBest()
        again.load_state_dict(kept.state_dict())
        with torch.no_grad():
            posterior.u.zero_()
        again.restore(module)
        torch.testing.assert_close(dict(module.state_dict()), now)
