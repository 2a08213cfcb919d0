"""Natural gradients in Lightning and in recipes: they learn, resume to the same bits, refuse."""

from functools import partial

import lightning as L
import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.lab.from_recipe import build_model, likelihood_of
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.train import build_module, train
from leanbayes.lightning import BayesianModule
from research.papers.matrix_normal.natural_gradient import NaturalGradient

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")


def recipe(**sections):
    values = {
        "name": "natural",
        "data": {"name": "digits"},
        "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [12]}},
        "posterior": {"kind": "MatrixNormal", "scale": 0.02},
        "prior": {"kind": "Normal", "scale": 0.5},
        "optimizer": {"name": "natural", "lr": 0.3, "multipliers": {"scales": 0.5}},
        "training": {"epochs": 2, "batch_size": 100},
        "evaluation": {"samples": 3},
    }
    return check_recipe({**values, **sections})


class Interrupted(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("posterior", ["MatrixNormal", "MeanField", "KTied"])
def test_a_recipe_learns_by_natural_gradients_and_resumes_to_the_same_bits(
    posterior, tmp_path, monkeypatch
):
    chosen = recipe(posterior={"kind": posterior, "scale": 0.02}, learning_rate={"kind": "linear"})
    whole = train(chosen, tmp_path / "whole", progress=False)
    assert whole["metrics"]["accuracy"]["value"] > 0.5
    assert whole["recipe"]["optimizer"]["name"] == "natural"
    start = L.Trainer.fit

    def stopped(trainer, *arguments, **options):
        class Stop(L.Callback):
            def on_train_epoch_start(self, trainer, pl_module):
                if trainer.current_epoch == 1:
                    raise Interrupted

        trainer.callbacks.append(Stop())
        return start(trainer, *arguments, **options)

    monkeypatch.setattr(L.Trainer, "fit", stopped)
    with pytest.raises(Interrupted):
        train(chosen, tmp_path / "part", progress=False)
    monkeypatch.setattr(L.Trainer, "fit", start)
    resumed = train(chosen, tmp_path / "part", resume=True, progress=False)
    assert resumed["metrics"] == whole["metrics"]


def test_groups_follow_the_recipe():
    chosen = recipe(
        optimizer={
            "name": "natural",
            "lr": 0.4,
            "other_lr": 0.01,
            "trust": 0.02,
            "betas": [0.8, 0.9],
            "multipliers": {"means": 0.5, "scales": 0.25, "other": 3.0},
            "weight_decay": 0.1,
            "decayed": ["other"],
        }
    )
    model, likelihood = build_model(chosen), likelihood_of(chosen)
    optimizer = build_module(chosen, model, likelihood, 77).configure_optimizers()
    assert isinstance(optimizer, NaturalGradient)
    means, scales, other = optimizer.param_groups
    assert (means["lr"], scales["lr"], other["lr"]) == pytest.approx((0.2, 0.1, 0.03))
    assert (means["trust"], means["data_size"]) == (0.02, 77)
    assert (other["betas"], other["weight_decay"]) == ((0.8, 0.9), 0.1)


def test_what_a_natural_gradient_cannot_do_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"does not decay means.*set decayed: \[other\]"):
        recipe(optimizer={"name": "natural", "weight_decay": 0.1})
    with pytest.raises(ValueError, match=r"layer 'dense1' has the posterior LowRank"):
        train(recipe(posterior="LowRank"), tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"optimizer\.name.*'adam', 'sgd' or 'natural'"):
        recipe(optimizer={"name": "newton"})


def module(clip):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    model = lb.convert(net, lb.posteriors.MatrixNormal(0.05), lb.priors.Normal(1.0, learn="layer"))
    natural = partial(NaturalGradient, model, data_size=96, lr=0.3)
    rates = partial(torch.optim.lr_scheduler.StepLR, step_size=2)
    likelihood = lb.likelihoods.Gaussian(1.0, noise="learned")
    made = BayesianModule(
        model, data_size=96, optimizer=natural, scheduler=rates, likelihood=likelihood, lr=0.01
    )
    options = {"gradient_clip_val": clip, "accumulate_grad_batches": 2, "logger": False}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    return made, partial(
        L.Trainer, accelerator="cpu", enable_checkpointing=False, **quiet, **options
    )


class Batches:
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(96, 4, generator=generator)
        self.parts = list(zip(x.split(16), x[:, :2].split(16), strict=True))

    def __iter__(self):
        return iter(self.parts)

    def __len__(self):
        return len(self.parts)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_lightning_trains_with_it_and_resumes_to_the_same_bits(clip, tmp_path):
    whole, trainer = module(clip)
    start = whole.objective(Batches().parts[0]).loss.item()
    trainer(max_epochs=5, default_root_dir=tmp_path).fit(whole, Batches())
    assert whole.objective(Batches().parts[0]).loss.item() < start
    part, trainer = module(clip)
    first = trainer(max_epochs=3, default_root_dir=tmp_path)
    first.fit(part, Batches())
    first.save_checkpoint(tmp_path / "at3.ckpt")
    again, trainer = module(clip)
    trainer(max_epochs=5, default_root_dir=tmp_path).fit(
        again, Batches(), ckpt_path=tmp_path / "at3.ckpt", weights_only=True
    )
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    rates = [group["lr"] for group in again.optimizers().param_groups]
    assert rates == pytest.approx([0.003, 0.003, 0.0001, 0.0001])
