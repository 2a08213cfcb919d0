"""Pages: blocks made from files of results, prose left alone; archives and compressed runs."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import leanbayes as lb
from leanbayes.cli import app
from leanbayes.lab.compression import compress_run, thin
from leanbayes.lab.data import load
from leanbayes.lab.files import write_json
from leanbayes.lab.papers import Cell, experiments, merge_seeds, table
from leanbayes.lab.papers.archive import archive
from leanbayes.lab.papers.blocks import Results
from leanbayes.lab.papers.k_tied import POST_TRAINING, compressed_runs, post_training
from leanbayes.lab.papers.page import refresh, refreshed
from leanbayes.lab.predictions import load_run
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.recipe_files import recipe_path
from leanbayes.lab.run import train

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

ROOT = Path(__file__).parents[2]
CALIBRATED = {
    name: {"value": 0.05, "error": 0.004}
    for name in ("negative_elbo", "nll", "accuracy", "brier", "ece", "kl")
}


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


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        train(recipe(seed), folder / str(seed), progress=False)
    return folder


@pytest.fixture(scope="module")
def results(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    for seed in (1, 2):
        archive(runs / str(seed), folder)
    write_json(
        folder / "post_training" / "mnist-mlp-full.json", compress_run(runs / "1", samples=3)
    )
    return folder


def test_an_archived_run_is_its_result_and_its_curves(runs, results):
    kept = json.loads((results / "mnist-mlp-full-seed1.json").read_text())
    history = kept.pop("history")
    assert kept == json.loads((runs / "1" / "result.json").read_text())
    assert history["epoch"] == [0, 1, 2]
    assert all(len(column) == 3 for column in history.values())


def test_a_run_that_is_not_finished_is_not_archived(runs, tmp_path):
    (tmp_path / "recipe.yaml").write_bytes((runs / "1" / "recipe.yaml").read_bytes())
    with pytest.raises(FileNotFoundError, match="no finished run"):
        archive(tmp_path, tmp_path / "results")


def test_seeds_are_averaged(results):
    every = [row for row in table("k_tied", [results]) if row.name == "mnist-mlp-full"]
    (merged,) = [row for row in merge_seeds(every) if row.ran]
    assert merged.run == "other, 2 seeds"
    for name in ("nll", "accuracy"):
        ours = [row.cells[name].ours for row in every]
        assert merged.cells[name].ours == pytest.approx(sum(ours) / 2)
        assert merged.cells[name].published == every[0].cells[name].published
    assert merged.cells["parameters"].ours == every[0].cells["parameters"].ours


def test_rows_are_grouped_by_experiment():
    rows = table("k_tied", [])
    found = experiments(rows)
    for name, group in found.items():
        assert all(row.title.startswith(name) for row in group)
    published = [f"MLP on MNIST, {k}" for k in ("full", "k = 1", "k = 2", "k = 3")]
    assert [row.title for row in found["MLP on MNIST"] if row.title in published] == published
    assert sum(map(len, found.values())) == len(rows)


def test_counts_are_whole_numbers():
    assert str(Cell(484_008, None, 484_000)) == "484 008 (484 000)"


def test_a_compressed_run_has_a_row_for_every_rank(runs, results):
    found = json.loads((results / "post_training" / "mnist-mlp-full.json").read_text())
    ranks = [f"{kind} {rank}" for rank in (1, 2, 3) for kind in ("truncated", "tied")]
    assert list(found["rows"]) == ["full", *ranks]
    rows, model = found["rows"], load_run(runs / "1")[1]
    assert rows["full"]["parameters"] == lb.count_parameters(model).total
    assert rows["tied 2"]["parameters"] == lb.count_parameters(lb.to_k_tied(model, 2)).total
    per_example = float(lb.kl(lb.truncate(model, 1)).detach()) / len(load("digits").train)
    assert rows["truncated 1"]["metrics"]["kl"]["value"] == pytest.approx(per_example)
    assert set(found["spectra"]) == set(found["maps"]) == {"dense1", "dense2"}
    assert len(found["maps"]["dense1"]) == 12
    assert {"seed", "versions", "recipe", "seconds"} <= set(found)


def test_the_command_prints_what_was_compressed(results):
    shown = CliRunner().invoke(app(), ["table", "k_tied", "--runs", str(results)])
    assert shown.exit_code == 0, shown.output
    ours = shown.output.split("mnist-mlp-full after training")[1].split("after training")[0]
    assert "| truncated 2 | seed 1 |" in ours
    assert "| full | not run | – (0.835) |" in shown.output


@pytest.mark.parametrize(
    ("content", "sentence"), [('{"name": "mni', "is damaged"), ("[]", "is not what leanbayes")]
)
def test_a_damaged_file_is_named(content, sentence, tmp_path):
    path = tmp_path / "post_training" / "mnist-mlp-full.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"mnist-mlp-full\.json {sentence}"):
        compressed_runs(tmp_path)


def test_seeds_that_were_probed_at_several_steps_are_not_averaged(tmp_path):
    later = probed(2, 22.0, 2000.0)
    later["probe"] = {"5000": later["probe"]["1000"]}
    for run in (probed(1, 20.0, 1000.0), later):
        write_json(tmp_path / f"mnist-mlp-snr-k2-seed{run['seed']}.json", run)
    with pytest.raises(ValueError, match="probed at several steps"):
        Results("k_tied", tmp_path, tmp_path / "page.md").probes("mnist-mlp-snr-k2")


def test_only_the_chosen_layers_are_compressed(runs):
    found = compress_run(runs / "1", [1], include=["dense1"], samples=2)["rows"]
    model = load_run(runs / "1")[1]
    tied = lb.to_k_tied(model, 1, include=["dense1"])
    assert isinstance(tied.dense2.posterior.spec, lb.MeanField)
    assert found["tied 1"]["parameters"] == lb.count_parameters(tied).total


def test_maps_are_thinned_to_rows_and_columns_of_the_matrix():
    matrix = torch.arange(10_000.0).view(100, 100)
    assert thin(matrix).shape == (64, 64)
    assert float(thin(matrix)[-1, -1]) == 9999


def test_blocks_are_made_anew_and_prose_is_left_alone(results, tmp_path):
    page = tmp_path / "k_tied.md"
    page.write_text(
        "# Words\n<!-- table: MLP on MNIST -->\nold\n<!-- end -->\nmore words\n"
        "<!-- post-training: mnist-mlp-full -->\n<!-- end -->\n"
        "<!-- spectra: mnist-mlp-full | Shares. -->\n<!-- end -->\n"
        "<!-- heat-maps: mnist-mlp-full/dense1 | Standard deviations -->\n<!-- end -->\n"
        "<!-- curves: scale/model.dense1 of mnist-mlp-full | Mean σ. -->\n<!-- end -->\n"
        "<!-- seeds: mnist-mlp-full -->\n<!-- end -->\nlast\n",
        encoding="utf-8",
    )
    refresh(page, Results("k_tied", results, page).blocks())
    text = page.read_text(encoding="utf-8")
    assert "old" not in text
    assert "more words" in text
    assert text.endswith("last\n")
    assert "| MLP on MNIST, full | other, 2 seeds |" in text
    assert "| truncated 1 | seed 1 |" in text
    assert "(3.41)" in text
    assert "Seeds 1, 2: accuracy:" in text
    for name in ("spectra-mnist-mlp-full", "mnist-mlp-full-dense1-rank-2"):
        picture = tmp_path / "k_tied" / f"{name}.png"
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert f"k_tied/{name}.png" in text
    again = page.read_bytes()
    refresh(page, Results("k_tied", results, page).blocks())
    assert page.read_bytes() == again


def probed(seed, elbo, pooled):
    layers = {"pooled": pooled, "median": 9.0, "gradient": 8.0, "square": None}
    snr = {kind: {"dense2": ratio} for kind, ratio in layers.items()}
    return {
        "name": "mnist-mlp-snr-k2",
        "seed": seed,
        "metrics": {},
        "recipe": {
            "probe": {"layer": "dense2"},
            "published": {"values": {"snr_1000": 7500.0, "negative_elbo_1000": 42.74}},
        },
        "probe": {"1000": {"negative_elbo": elbo, "snr": snr}},
    }


def test_probes_are_averaged_over_seeds_next_to_what_is_printed(tmp_path):
    for seed, elbo, pooled in ((1, 20.0, 1000.0), (2, 22.0, 2000.0)):
        name = f"mnist-mlp-snr-k2-seed{seed}.json"
        write_json(tmp_path / name, probed(seed, elbo, pooled))
    block = Results("k_tied", tmp_path, tmp_path / "page.md").probes("mnist-mlp-snr-k2, other")
    *_, line, missing = block.splitlines()
    assert line == "| mnist-mlp-snr-k2, 2 seeds | 1000 | 21 (42.74) | 1500 (7500) | 9 | 8 | – |"
    assert missing.startswith("| other | not run |")


def test_runs_of_several_lengths_are_not_in_one_picture(results, tmp_path):
    longer = json.loads((results / "mnist-mlp-full-seed1.json").read_text())
    longer["history"] = {name: column * 2 for name, column in longer["history"].items()}
    write_json(tmp_path / "mnist-mlp-full-seed1.json", longer)
    write_json(
        tmp_path / "mnist-mlp-k2-seed1.json",
        json.loads((results / "mnist-mlp-full-seed1.json").read_text()),
    )
    made = Results("k_tied", tmp_path, tmp_path / "page.md")
    with pytest.raises(ValueError, match="mnist-mlp-k2 has other epochs"):
        made.curves("train/nll of mnist-mlp-full, mnist-mlp-k2 | x")


def test_an_unknown_block_is_named():
    with pytest.raises(ValueError, match="block 'tabel' is unknown; did you mean 'table'"):
        refreshed("<!-- tabel: x -->\n<!-- end -->", {"table": str})


def test_every_truncated_row_has_a_recipe():
    for name in POST_TRAINING:
        assert recipe_path(f"k_tied/{name}").is_file()


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ("table: MLP on MNST", "no experiment is called 'MLP on MNST'"),
        ("post-training: mnist-mlp-ful", "no truncated run 'mnist-mlp-ful'.*'mnist-mlp-full'"),
        ("heat-maps: mnist-mlp-full/dense9 | x", "no layer 'dense9'"),
        ("spectra: nothing | x", "nothing.json does not exist; compress its run"),
        ("curves: train/nll of nothing | x", "has no run of nothing"),
        ("curves: train/nil of mnist-mlp-full | x", "no column 'train/nil'.*'train/nll'"),
    ],
)
def test_a_block_that_cannot_be_made_says_why(block, sentence, results, tmp_path):
    made = Results("k_tied", results, tmp_path / "page.md").blocks()
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        refreshed(f"<!-- {block} -->\n<!-- end -->\n", made)


def test_a_page_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"k\.md does not exist"):
        refresh(tmp_path / "k.md", {})


def test_costs_of_a_step_stand_beside_the_published_ones(tmp_path):
    families = {
        "mean field": {"step": {"median": 3.0, "low": 2.75, "high": 3.25}},
        "k-tied, rank 3": {"step": {"median": 2.5, "low": 2.25, "high": 3.0}},
    }
    path = tmp_path / "benchmarks" / "step_cost.json"
    write_json(path, {"setups": {"mlp_1024": {"families": families}}})
    costs = Results("k_tied", tmp_path, tmp_path / "page.md").costs
    lines = costs("mlp_1024").splitlines()
    assert lines[2:] == [
        "| mean field | 3 (3.585) | 2.75 – 3.25 |",
        "| k-tied, rank 3 | 2.5 | 2.25 – 3 |",
    ]
    with pytest.raises(ValueError, match="mlp_1024"):
        costs("mlp_2048")
    path.write_text("[]")
    with pytest.raises(ValueError, match="is not a benchmark; run benchmarks/step_cost"):
        costs("mlp_1024")
    path.unlink()
    with pytest.raises(FileNotFoundError, match="does not exist; run benchmarks/step_cost"):
        costs("mlp_1024")


def test_a_resnet_without_published_calibration_still_shows_its_own():
    found = {"rows": {"full": {"metrics": CALIBRATED, "parameters": 5}}, "seed": 1}
    (row,) = post_training("cifar10-resnet-he-full", found)
    assert str(row.cells["ece"]) == "0.0500 ± 0.0040"
    assert row.cells["nll"].published == 0.6384
    (row,) = post_training("mnist-mlp-full", found)
    assert "ece" not in row.cells
