"""What a trained run loses with standard deviations of a lower rank."""

import pytest
import torch

import leanbayes as lb
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.runs import Run
from leanbayes.lab.train import train
from research.data import load_dataset
from research.papers.k_tied.compression import compress_run, thin
from research.papers.k_tied.low_rank_scales import to_k_tied, truncate

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    recipe = {
        "name": "digits",
        "data": {"name": "digits"},
        "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [12]}},
        "posterior": "MeanField",
        "prior": {"kind": "Normal", "scale": 0.3},
        "training": {"epochs": 1, "batch_size": 200},
        "evaluation": {"samples": 2},
    }
    folder = tmp_path_factory.mktemp("compression") / "run"
    train(check_recipe(recipe), folder, progress=False)
    return folder


def test_a_compressed_run_has_a_row_for_every_rank(folder):
    compressed = compress_run(folder, samples=2)
    ranks = [f"{kind} {rank}" for rank in (1, 2, 3) for kind in ("truncated", "tied")]
    assert list(compressed["rows"]) == ["full", *ranks]
    rows, model = compressed["rows"], Run(folder).load()[0]
    assert rows["full"]["parameters"] == lb.count_parameters(model).total
    assert rows["tied 2"]["parameters"] == lb.count_parameters(to_k_tied(model, 2)).total
    per_example = float(lb.kl(truncate(model, 1)).detach()) / len(load_dataset("digits").train)
    assert rows["truncated 1"]["metrics"]["kl"]["value"] == pytest.approx(per_example)
    assert set(compressed["spectra"]) == set(compressed["maps"]) == {"dense1", "dense2"}
    assert len(compressed["maps"]["dense1"]) == 12
    assert {"seed", "versions", "recipe", "seconds"} <= set(compressed)


def test_only_the_chosen_layers_are_compressed(folder):
    rows = compress_run(folder, [1], include=["dense1"], samples=2)["rows"]
    model = Run(folder).load()[0]
    tied = to_k_tied(model, 1, include=["dense1"])
    assert isinstance(tied.dense2.posterior.spec, lb.MeanField)
    assert rows["tied 1"]["parameters"] == lb.count_parameters(tied).total


def test_maps_are_thinned_to_rows_and_columns_of_the_matrix():
    matrix = torch.arange(10_000.0).view(100, 100)
    assert thin(matrix).shape == (64, 64)
    assert float(thin(matrix)[-1, -1]) == 9999
