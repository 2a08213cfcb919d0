"""Scales go on being learned after the KL has its full weight [k-tied suppl., appendix C]."""

import csv

import pytest

from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.train import train

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

ANNEALED, EPOCHS, PRIOR = 8, 40, 0.3


@pytest.mark.checklist("KT14")
@pytest.mark.parametrize("posterior", ["MeanField", {"kind": "KTied", "rank": 2}], ids=str)
def test_scales_move_after_annealing_and_end_above_half_the_prior(posterior, tmp_path):
    recipe = check_recipe(
        {
            "name": "annealed",
            "data": {"name": "digits"},
            "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [32, 32]}},
            "posterior": posterior,
            "prior": {"kind": "Normal", "scale": PRIOR},
            "optimizer": {"lr": 0.01},
            "kl": {"kind": "linear", "unit": "epoch", "options": {"steps": ANNEALED}},
            "training": {"epochs": EPOCHS, "batch_size": 100},
            "evaluation": {"samples": 5},
        }
    )
    train(recipe, tmp_path / "run", progress=False)
    with open(tmp_path / "run" / "metrics.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert float(rows[ANNEALED]["kl_weight"]) == 1.0
    for layer in ("dense1", "dense2"):
        (column,) = [name for name in rows[0] if name.startswith("scale/") and layer in name]
        scales = [float(row[column]) for row in rows]
        assert scales[0] < 0.1 * PRIOR
        assert scales[-1] > 1.1 * scales[ANNEALED]
        assert scales[-1] > 0.5 * PRIOR
