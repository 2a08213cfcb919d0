"""Sparse networks from a run to a page: thresholds, layers, compaction, claims [matrix normal]."""

import json
import math
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import leanbayes as lb
from leanbayes.compression.prune import CRITERIA
from leanbayes.lab.evaluation import evaluate
from leanbayes.lab.files import write_json
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.runs import Run
from leanbayes.lab.train import train
from research.__main__ import app
from research.papers import PAPERS
from research.papers.matrix_normal.sparse import tables
from research.papers.matrix_normal.sparse.compaction import (
    MOST_LOST,
    group_pruned,
    smaller,
    study_compaction,
)
from research.papers.matrix_normal.sparse.published import TABLE_1, TABLE_2
from research.papers.matrix_normal.sparse.study import relevance_of, study_sparsity
from research.publishing.archive import archive
from research.publishing.blocks import Blocks
from research.publishing.cells import Cell
from research.publishing.filled_claims import NotMeasuredError, filled
from research.publishing.paper_blocks import NOT_RUN, OwnBlocks

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

PAPER = PAPERS["matrix_normal"]
PAGE = PAPER.folder / "page.md"
DIAG, MN, GROUPS = "mnist-mlp-diag", "mnist-mlp-mn", "fashion-mnist-mlp-group-mn"
FAMILIES = {
    DIAG: {"posterior": {"kind": "MeanField", "scale": 0.02}},
    MN: {"posterior": {"kind": "MatrixNormal", "scale": 0.02}},
    GROUPS: {"posterior": {"kind": "MatrixNormal", "scale": 0.02}, "prior": "GroupARD"},
}


def recipe(name, seed=1, **changes):
    return check_recipe(
        {
            "name": name,
            "data": {"name": "digits"},
            "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [24, 16]}},
            "prior": "ARD",
            "optimizer": {"lr": 0.02},
            "kl": {"kind": "linear", "unit": "epoch", "options": {"steps": 4}},
            "training": {"epochs": 8, "batch_size": 200, "prior_updates": 1},
            "evaluation": {"samples": 3},
            "measurements": [{"kind": "sparse_curves", "samples": 1}],
            "seed": seed,
            **FAMILIES.get(name, {}),
            **changes,
        }
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sparse")
    for name, seed in ((DIAG, 1), (DIAG, 2), (MN, 1), (GROUPS, 1)):
        train(recipe(name, seed), folder / f"{name}-{seed}", progress=False)
    return folder


@pytest.fixture(scope="module")
def results(runs, tmp_path_factory):
    results = tmp_path_factory.mktemp("results") / "matrix_normal"
    for folder in sorted(runs.iterdir()):
        archive(folder, results)
        name = f"{Run(folder).recipe.name}-seed{Run(folder).recipe.seed}.json"
        out = results / "sparsity" / name
        done = CliRunner().invoke(app, ["papers", "sparsity", str(folder), "--out", str(out)])
        assert done.exit_code == 0, done.output
    write_json(
        results / "compaction" / f"{GROUPS}-seed1.json",
        study_compaction(runs / f"{GROUPS}-1", samples=4),
    )
    return results


@pytest.fixture(scope="module")
def blocks(results):
    return Blocks(PAPER, results)


def read(results, name, seed=1, folder="sparsity"):
    return json.loads((results / folder / f"{name}-seed{seed}.json").read_text())


# The study


@pytest.mark.checklist("MN9")
@pytest.mark.parametrize("name", [DIAG, MN])
def test_a_sweep_counts_and_judges_what_pruning_leaves(runs, results, name):
    study = read(results, name)
    run = Run(runs / f"{name}-1")
    model, likelihood = run.load()
    lefts = [point["weights"][0] for point in study["sweep"]]
    assert lefts == sorted(lefts)
    assert lefts[0] < lefts[-1]
    for point in study["sweep"][2:4]:
        threshold = 1 / (1 + math.exp(point["log_alpha"]))
        pruned = lb.prune(model, by="relevance", threshold=threshold)
        assert point["weights"] == list(lb.analysis.sparsity_report(pruned).total.weights)
        score = evaluate(pruned, run.dataset.test, likelihood, samples=5, seed=1)["accuracy"]
        assert point["accuracy"] == score
    assert {"seed", "versions", "threads", "recipe", "duration"} <= study.keys()


@pytest.mark.checklist("MN9")
def test_layers_are_those_of_the_report_at_log_alpha_3(runs, results):
    model, _ = Run(runs / f"{GROUPS}-1").load()
    groups = read(results, GROUPS)["groups"]
    for group, kind in (("weight", "weights"), ("row", "rows"), ("column", "columns")):
        report = lb.analysis.sparsity_report(lb.prune(model, by="relevance", groups=group))
        expected = {row.name: list(getattr(row, kind)) for row in report.layers}
        assert groups[kind]["layers"] == expected
    assert relevance_of(3.0) == pytest.approx(CRITERIA["relevance"].threshold)


def test_total_correlation_is_that_of_the_dense_covariance(runs, results):
    """0 for independent weights; ½ (Σ log Σ_ii − log det Σ) for all others."""
    noise = read(results, DIAG)["noise"]
    assert all(abs(layer["total_correlation"]) < 1e-2 for layer in noise.values())
    model, _ = Run(runs / f"{MN}-1").load()
    q = model.get_submodule("dense3").posterior()
    with torch.no_grad():
        covariance, scale = q.covariance().double(), q.variance.sqrt().median()
    exact = 0.5 * (covariance.diagonal().log().sum() - torch.logdet(covariance))
    found = read(results, MN)["noise"]["dense3"]
    assert found["total_correlation"] == pytest.approx(float(exact), rel=1e-3, abs=1e-2)
    assert found["scale"] == pytest.approx(float(scale), rel=1e-4)


def test_a_threshold_that_keeps_nothing_has_no_accuracy(runs):
    study = study_sparsity(runs / f"{DIAG}-1", samples=1, images=20, log_alphas=(-50.0, 3.0))
    empty, usual = study["sweep"]
    assert empty["weights"][0] == 0
    assert "accuracy" not in empty
    assert "accuracy" in usual
    assert study["images"] == 20


def test_what_cannot_be_studied_is_refused_in_a_sentence(runs, results, tmp_path):
    plain = recipe("plain", posterior=None, prior=None, measurements=[])
    short = plain.model_copy(
        update={"training": plain.training.model_copy(update={"epochs": 1, "prior_updates": None})}
    )
    train(short, tmp_path / "plain", progress=False)
    with pytest.raises(ValueError, match="has no random weights or no classes; give a run"):
        study_sparsity(tmp_path / "plain")
    out = results / "sparsity" / f"{DIAG}-seed1.json"
    again = CliRunner().invoke(
        app, ["papers", "sparsity", str(runs / f"{DIAG}-1"), "--out", str(out)]
    )
    assert isinstance(again.exception, FileExistsError)
    assert "replace it with --overwrite" in str(again.exception)


# Compaction


def test_a_group_sparse_run_is_made_smaller_and_computes_the_same(runs, results):
    run = Run(runs / f"{GROUPS}-1")
    model, likelihood = run.load()
    study = read(results, GROUPS, folder="compaction")
    point = next(point for point in study["sweep"] if point["log_alpha"] == 3.0)
    x = run.dataset.test.x
    assert lb.compression.density(group_pruned(model, 3.0))["dense3"] > 0
    for kind, (whole, (small, report)) in smaller(model, x[:256], 3.0).items():
        found = point[kind]
        before, after = found["multiply_adds"]
        assert (before, after) == report.multiply_adds
        assert after < before == 64 * 24 + 24 * 16 + 16 * 10
        assert found["difference"] < 1e-5
        with (
            torch.no_grad(),
            lb.using(whole, lb.estimators.mean),
            lb.using(small, lb.estimators.mean),
        ):
            torch.testing.assert_close(small.eval()(x), whole.eval()(x), rtol=1e-4, atol=1e-4)
        samples = 4 if kind == "bayesian" else 1
        score = evaluate(small, run.dataset.test, likelihood, samples=samples, seed=1)
        assert found["accuracy"] == pytest.approx(score["accuracy"])
        assert found["parameters"] < study["parameters"][kind]


def test_the_threshold_is_chosen_on_training_images(runs, results):
    """The lowest that costs the means half a point at most; test images have no say."""
    study = read(results, GROUPS, folder="compaction")
    run = Run(runs / f"{GROUPS}-1")
    model, likelihood = run.load()
    plain, seen = lb.deterministic(model), run.training_examples
    whole = evaluate(plain, seen, likelihood, samples=1)["accuracy"]["value"]
    assert study["learned"] == whole
    costs = {point["log_alpha"]: whole - point["learned"] for point in study["sweep"]}
    cheap = [log_alpha for log_alpha, cost in costs.items() if cost <= MOST_LOST]
    assert study["log_alpha"] == min(cheap, default=6.0)
    small = smaller(model, run.dataset.test.x[:256], 4.0)["plain"][1].model
    right = (small.eval()(seen.x).argmax(1) == seen.y).double().mean()
    assert whole - costs[4.0] == pytest.approx(float(right), abs=2e-3)


# Pages


def test_tables_say_what_the_files_say(blocks, results):
    make = blocks.makers(PAGE)
    families = make["sparse-families"](f"{DIAG}, {MN}, mnist-mlp-k-tied").splitlines()
    assert families[2].startswith("| DIAG | 8 epochs, 2 seeds | ")
    assert families[3].startswith("| MN | 8 epochs, seed 1 | ")
    assert families[4].startswith("| k-tied of rank 2 | not yet run | – |")
    both = [read(results, DIAG, seed)["whole"]["accuracy"]["value"] for seed in (1, 2)]
    half_difference = abs(both[0] - both[1]) / 2
    assert str(Cell(50 * sum(both), 100 * half_difference)) in families[2]
    rows = read(results, MN)["groups"]["rows"]["layers"].values()
    share = 100 * sum(left for left, _ in rows) / sum(of for _, of in rows)
    assert families[3].split(" | ")[-2] == f"{share:.4g}"
    sweep = make["sparse-sweep"](f"{MN}, mnist-mlp-k-tied").splitlines()
    assert sweep[0].count("log α <") == 8
    assert sweep[2].startswith("| FC 300 on MNIST, MN | weights left, % |")
    assert sweep[4].startswith("| FC 300 on MNIST, k-tied of rank 2 | not yet run |")
    told, _, *layers = make["sparse-layers"](GROUPS).splitlines()
    assert told.endswith(f"seed {read(results, GROUPS)['seed']}:")
    layers = [line for line in layers if line.startswith("|")]
    assert [line.split(" | ")[0] for line in layers[2:]] == ["| dense1", "| dense2", "| dense3"]
    assert make["sparse-noise"](f"{DIAG}, {MN}").splitlines()[2].endswith("| 0.0000 |")
    shown = make["compaction"](GROUPS).splitlines()
    compacted = [line for line in shown if line.startswith("|")]
    assert len(compacted) == 2 + 2 * 6
    assert "2,080" in compacted[2]
    chosen = read(results, GROUPS, folder="compaction")["log_alpha"]
    assert [f"**{chosen:g}**" in line for line in compacted].count(True) == 2


INPUTS = (27, 90, 90, 90, 180, 180, 180, 360, 360, 360, 180, 180)
OUTPUTS = (10, 10, 10, 20, 20, 20, 40, 40, 40, 20, 20, 20)
SIZES = [inputs * outputs for inputs, outputs in zip(INPUTS, OUTPUTS, strict=True)]


@pytest.mark.checklist("MN9")
def test_printed_tables_stand_beside_ours(tmp_path):
    """Counted as the paper does: the dense layer is in the total of weights alone."""
    layers = {f"conv{i}": [0, size] for i, size in enumerate(SIZES, 1)} | {"dense": [7, 800]}
    groups = {kind: {"layers": layers} for kind in TABLE_2}
    name = "cifar10-vgg-x1-sparse-mn"
    study = {"name": name, "seed": 1, "whole": {}, "sweep": [], "groups": groups}
    write_json(tmp_path / "sparsity" / f"{name}-seed1.json", study)
    make = Blocks(PAPER, tmp_path).makers(PAGE)
    table = make["sparse-table-1"](", ".join(TABLE_1)).splitlines()
    assert table[4] == f"| MN | printed | 27,764 of 62,270 | {TABLE_1[name].dropped} |"
    assert table[5] == f"|  | here | 7 of 62,270 | {'-'.join(['100'] * 12)} |"
    assert table[3] == "|  | here | not yet run | – |"
    other = make["sparse-table-2"](f"cifar10-vgg-x2-sparse-mn, {name}").splitlines()
    assert other[5].startswith("| inputs | printed | 3,120 of 4,527 | 0-18-19-")
    assert other[6] == "|  | here, MN | not yet run | – |"
    assert other[4].startswith("|  | here, MN | 7 of 62,270 | ")
    assert other[7].startswith("|  | here, MN | 0 of 61,470 | ")


def test_printed_percentages_fit_the_printed_totals():
    """Up to rounding, and to the dense layer, whose share is not printed."""
    tables_ = [(printed, SIZES, 800) for printed in TABLE_1.values()]
    tables_.append((TABLE_2["weights"], [2 * SIZES[0], *(4 * size for size in SIZES[1:])], 1600))
    tables_.append((TABLE_2["columns"], [27, *(2 * inputs for inputs in INPUTS[1:])], 0))
    tables_.append((TABLE_2["rows"], [2 * outputs for outputs in OUTPUTS], 0))
    for printed, sizes, dense in tables_:
        assert sum(sizes) + dense == printed.of
        gone = [int(share) / 100 for share in printed.dropped.split("-")]
        left = sum(size * (1 - share) for size, share in zip(sizes, gone, strict=True))
        rounding = 0.006 * printed.of
        assert left - rounding <= printed.left <= left + dense + rounding


def test_pictures_are_drawn_of_what_was_run(results):
    blocks = Blocks(PAPER, results)
    make = blocks.makers(PAGE)
    shown = make["sparse-curves"](f"{DIAG}, {MN}, mnist-mlp-k-tied | Curves.")
    assert shown == "![Curves.](curves-mnist-mlp.png)\n\n*Curves.*"
    make["sparse-sweep-curves"](f"{DIAG}, {MN} | Sweep.")
    assert {"curves-mnist-mlp.png", "sweep-mnist-mlp.png"} <= blocks.pictures.keys()
    assert all(png.startswith(b"\x89PNG") for png in blocks.pictures.values())
    assert make["sparse-curves"]("fashion-mnist-mlp-diag | Curves.") == ""


def test_costs_and_speeds_are_those_of_the_benchmarks(results):
    costs = {"MN": {"median": 1.5, "low": 1.4, "high": 1.6}}
    networks = {"FC-300": {"costs": costs}, "CNN": {"costs": costs}}
    bench = results.parent / "bench"
    empty = Blocks(PAPER, results)
    assert filled("{printed value: cost/FC-300 MN}", empty.cell) == "2"
    assert empty.makers(PAGE)["step-costs"]("all") == NOT_RUN
    write_json(bench / "matrix_normal.json", {"machine": {}, "networks": networks})
    fast = {"fewer": 4.0, "cost": {"median": 0.3125, "low": 0.25, "high": 0.5}}
    chosen = read(results, GROUPS, folder="compaction")["log_alpha"]
    sweep = [{"log_alpha": chosen, "plain": fast, "bayesian": fast}]
    write_json(
        bench / "compaction.json", {"machine": {}, "batch": 256, "name": GROUPS, "sweep": sweep}
    )
    blocks = Blocks(PAPER, results)
    make = blocks.makers(PAGE)
    assert make["step-costs"]("all").splitlines()[2] == "| FC-300 | MN | 1.50 | 1.40 – 1.60 |"
    speed = make["compaction-speed"]("all").splitlines()[3]
    numbers = f"{chosen:g} | 4.00 × | 3.20 × | 2.00 – 4.00 | 0.80 |"
    assert speed == f"| its means alone | {numbers}"
    assert filled("{value: cost/CNN MN}, {value: speed/plain faster}", blocks.cell) == "1.50, 3.20"
    with pytest.raises(ValueError, match="network 'FC-30' is unknown"):
        blocks.cell("cost/FC-30 MN")
    for file in bench.iterdir():
        file.unlink()


def test_claims_are_filled_where_there_are_results(blocks, results):
    lines = blocks.claims("").splitlines()
    first = next(line for line in lines if "Figure 1" in line)
    mn = read(results, MN)["whole"]["accuracy"]["value"]
    assert f"{100 * mn:.4g}%" in first
    words = ("higher", "lower", "about the same")
    assert sum(first.count(f" {word}:") for word in words) == 4
    second = next(line for line in lines if "Figure 2" in line)
    assert NOT_RUN in second
    faster = next(line for line in lines if "accelerate" in line)
    assert NOT_RUN in faster  # its speed was not measured
    assert "18,610" in next(line for line in lines if "Table 1" in line)
    cell = blocks.cell(f"compaction/{GROUPS} plain.fewer")
    study = read(results, GROUPS, folder="compaction")
    (point,) = (p for p in study["sweep"] if p["log_alpha"] == study["log_alpha"])
    before, after = point["plain"]["multiply_adds"]
    assert cell.ours == pytest.approx(before / after)
    with pytest.raises(ValueError, match="number 'acuracy' is unknown"):
        blocks.cell(f"sparsity/{MN} acuracy")


# Tools


def test_two_numbers_are_compared_by_their_errors():
    cells = {"a": Cell(1.0, 0.1), "b": Cell(1.2, 0.1), "c": Cell(1.5, 0.1)}
    cells |= {"d": Cell(), "e": Cell(1)}
    assert filled("{compared: a / b}", cells.get) == "about the same"
    assert filled("{compared: a / c}", cells.get) == "lower"
    assert filled("{compared: c / a}", cells.get) == "higher"
    assert filled("{compared: e / c}", cells.get) == "lower"
    with pytest.raises(NotMeasuredError, match="'d' has no measured number"):
        filled("{compared: a / d}", cells.get)


def test_blocks_wait_for_files_and_for_nothing_else(tmp_path):
    def missing(*_):
        raise FileNotFoundError("no file")

    def misspelled(*_):
        raise ValueError("no such layer")

    def drawn(_):
        yield missing()

    own = OwnBlocks({"a": missing, "b": misspelled}, {"c": drawn}, {"d": missing, "e": misspelled})
    paper = replace(PAPERS["matrix_normal"], blocks=(lambda _: own,))
    blocks = Blocks(paper, tmp_path)
    makers = blocks.makers(paper.folder.with_suffix(".md"))
    assert makers["a"]("x") == NOT_RUN
    assert makers["c"]("x | caption") == ""
    assert blocks.cell("d/x y") == Cell()
    for make in (lambda: makers["b"]("x"), lambda: blocks.cell("e/x y")):
        with pytest.raises(ValueError, match="no such layer"):
            make()


def test_numbers_without_studies_are_not_known():
    assert set(tables.numbers([]).values()) == {Cell()}
