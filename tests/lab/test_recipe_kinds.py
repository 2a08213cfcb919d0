"""Likelihoods and KL schedules in recipes: ours by name, anybody's once registered."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import leanbayes as lb
from leanbayes.lab.evaluation import evaluate_run
from leanbayes.lab.from_recipe import build_model, likelihood_of
from leanbayes.lab.predictions import predict_file
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.recipe_files import parse_yaml
from leanbayes.lab.runs import Run
from leanbayes.lab.train import build_module, train
from leanbayes.likelihoods import LIKELIHOODS
from leanbayes.training.schedules import SCHEDULES

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")


def recipe_of(**changes):
    values = {
        "name": "small",
        "data": {"name": "digits"},
        "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [4]}},
        "posterior": {"kind": "MeanField"},
        "prior": {"kind": "Normal", "scale": 0.3},
        "training": {"epochs": 1},
    }
    return check_recipe({**values, **changes})


@pytest.mark.parametrize(
    ("section", "made"),
    [
        (
            {"kind": "gaussian", "noise": "learned", "scale": 1.0},
            lb.likelihoods.Gaussian(1.0, "learned"),
        ),
        ({"kind": "student_t", "df": 3}, lb.likelihoods.StudentTNoise(df=3.0)),
        ({"kind": "negative_binomial", "dispersion": 0.5}, lb.likelihoods.NegativeBinomial(0.5)),
        ({"kind": "poisson"}, lb.likelihoods.Poisson()),
        ({"kind": "bernoulli", "scale": 1.0, "noise": "fixed"}, lb.likelihoods.Bernoulli()),
        ({"kind": "categorical", "scale": 1.0, "noise": "fixed"}, lb.likelihoods.Categorical()),
        ({}, lb.likelihoods.Categorical()),
    ],
)
def test_likelihoods_by_name(section, made):
    recipe = recipe_of(likelihood=section)
    assert likelihood_of(recipe).to_dict() == made.to_dict()
    assert check_recipe(parse_yaml(recipe.to_yaml())) == recipe


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("likelihood", {"kind": "gausian"}, "'gausian' is unknown; did you mean 'gaussian'?"),
        ("likelihood", {"kind": "gaussian", "nois": "fixed"}, "did you mean 'noise'?"),
        ("likelihood", {"kind": "categorical", "scale": 2.0}, "has no argument 'scale'"),
        ("likelihood", {"kind": "gaussian", "scale": 0}, "scale is 0; it must be positive"),
        ("kl", {"kind": "liner"}, "'liner' is unknown; did you mean 'linear'?"),
        ("kl", {"kind": "linear", "options": {"step": 3}}, "did you mean 'steps'?"),
        ("kl", {"kind": "linear"}, "schedule 'linear' cannot be made"),
        (
            "kl",
            {"kind": "linear", "options": {"steps": "many"}},
            "schedule 'linear' cannot be made",
        ),
        ("kl", {"kind": "linear", "options": {"steps": -1}}, "steps is -1.0; it must be positive"),
    ],
)
def test_what_is_wrong_is_said_when_the_recipe_is_read(key, value, sentence):
    with pytest.raises(ValueError, match=f"{key}: ") as caught:
        recipe_of(**{key: value})
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@dataclass(frozen=True)
class _SquareRoot:
    steps: float

    def __call__(self, step: float) -> float:
        return min(1.0, math.sqrt(step / self.steps))


def test_a_schedule_of_one_s_own(registered):
    registered(SCHEDULES, "square_root", _SquareRoot)
    recipe = recipe_of(kl={"kind": "square_root", "options": {"steps": 100}})
    module = build_module(recipe, build_model(recipe), likelihood_of(recipe), 100)
    assert module.schedule == _SquareRoot(100.0)
    assert check_recipe(parse_yaml(recipe.to_yaml())) == recipe


class _Laplace(lb.likelihoods.Likelihood):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.log_scale = torch.nn.Parameter(torch.tensor(math.log(scale)))

    def distribution(self, outputs):
        return torch.distributions.Laplace(outputs, self.log_scale.exp())


@pytest.mark.parametrize("kind", ["laplace", "negative_binomial"])
def test_a_run_is_trained_evaluated_and_predicts(kind, tmp_path, registered):
    """The trained noise comes from the model's file: the checkpoints may go."""
    registered(LIKELIHOODS, "laplace", _Laplace)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    y = rng.poisson(np.exp(1 + 0.5 * x[:, 0]))
    np.savetxt(tmp_path / "counts.csv", np.column_stack([x, y]), delimiter=",")
    np.savetxt(tmp_path / "new.csv", x[:3], delimiter=",")
    options = {"task": "regression", "target_scaling": "raw"}
    recipe = recipe_of(
        data={"name": str(tmp_path / "counts.csv"), "options": options},
        architecture={"name": "mlp", "options": {"inputs": 2, "hidden": [4], "outputs": 1}},
        likelihood={"kind": kind},
        optimizer={"lr": 0.02},
        training={"epochs": 3, "batch_size": 50},
        evaluation={"samples": 5},
    )
    result = train(recipe, tmp_path / "run", progress=False)
    assert {"nll", "squared_error", "negative_elbo"} <= set(result["metrics"])
    for checkpoint in (tmp_path / "run/checkpoints").glob("*.ckpt"):
        checkpoint.unlink()
    _, likelihood = Run(tmp_path / "run").load()
    (learned,) = likelihood.parameters()
    assert float(learned.detach()) != 0.0
    again = evaluate_run(tmp_path / "run", samples=5)
    assert again["nll"]["value"] == pytest.approx(result["metrics"]["nll"]["value"], rel=1e-5)
    out = predict_file(tmp_path / "run", tmp_path / "new.csv", tmp_path / "out.csv", samples=5)
    assert out.read_text().splitlines()[0] == "mean,aleatoric,epistemic,q05,q50,q95"
