"""Two seeds of a small run under the name of a published row, and their archived results."""

import pytest

from leanbayes.lab.files import write_json
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.train import train
from research import extensions  # noqa: F401
from research.papers.k_tied.compression import compress_run
from research.publishing.archive import archive


def recipe(seed):
    return check_recipe(
        {
            "name": "mnist-mlp-full",
            "data": {"name": "digits"},
            "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [12]}},
            "posterior": "MeanField",
            "prior": {"kind": "Normal", "scale": 0.3},
            "optimizer": {"lr": 0.01},
            "training": {"epochs": 3, "batch_size": 200},
            "evaluation": {"samples": 3},
            "seed": seed,
        }
    )


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        train(recipe(seed), folder / str(seed), progress=False)
    return folder


@pytest.fixture(scope="session")
def results(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    for seed in (1, 2):
        archive(runs / str(seed), folder)
    write_json(
        folder / "post_training" / "mnist-mlp-full.json", compress_run(runs / "1", samples=3)
    )
    return folder
