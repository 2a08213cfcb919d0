"""The studies of the rank-1 paper on small networks: parts, averages, tables and sentences."""

import json
import math
import re

import pytest
import torch
from typer.testing import CliRunner

from leanbayes.lab.evaluation import evaluate
from leanbayes.lab.files import write_json
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.runs import Run
from leanbayes.lab.train import train
from leanbayes.testing import threshold
from research.__main__ import app
from research.corruptions import SEVERITIES, corrupt_examples
from research.papers import PAPERS
from research.papers.rank1 import study as studies
from research.papers.rank1 import tables
from research.papers.rank1.blocks import rank1_blocks
from research.papers.rank1.costs import CostSettings, measure_costs
from research.papers.rank1.induced import tails
from research.papers.rank1.seed_means import Found, read_runs
from research.papers.rank1.study import Rank1Settings, study_rank1
from research.papers.rank1.theorem import TheoremSettings, theorem
from research.publishing.blocks import Blocks
from research.publishing.paper_blocks import NOT_RUN

METRICS = ("nll", "accuracy", "ece")
KINDS = ("contrast", "gaussian-noise")
SMALL = Rank1Settings(images=80, corrupted=40, few=10, samples=(1, 3), kinds=KINDS)
NETWORKS = {
    "plain": {"posterior": "Point", "prior": "Flat"},
    "gaussian": {
        "posterior": {"kind": "Rank1", "members": 2, "rate": 0.3},
        "prior": {"kind": "Normal", "scale": 0.2, "loc": 1.0},
        "estimator": "local",
    },
}


def recipe(name):
    return check_recipe(
        {
            "name": name,
            "data": {"name": "digits"},
            "architecture": {"name": "resnet-small", "options": {"filters": [4, 6]}},
            **NETWORKS[name],
            "optimizer": {"name": "sgd", "lr": 0.05},
            "training": {"epochs": 2, "batch_size": 40, "limit": 200},
            "evaluation": {"samples": 1},
        }
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rank1")
    for name in NETWORKS:
        train(recipe(name), folder / name, progress=False)
    return folder


@pytest.fixture(scope="module")
def results(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    for name in NETWORKS:
        study_rank1(runs / name, SMALL, folder / "after" / f"{name}-seed42.json")
    return folder


def part(results, name, title):
    return json.loads((results / "after" / f"{name}-seed42.json").read_text())["parts"][title]


def test_damaged_images_have_the_metrics_of_the_laboratory(runs, results):
    run = Run(runs / "plain")
    model, likelihood = run.load()
    found = part(results, "plain", "corrupted contrast")
    for severity in SEVERITIES:
        damaged = corrupt_examples(
            run.dataset.test[:40], "contrast", severity, seed=run.recipe.seed
        )
        expected = evaluate(model, damaged, likelihood, **run.drawing(1))
        for metric in ("nll", "accuracy", "ece"):
            ours = found["severities"][str(severity)]["1"][metric]["value"]
            assert ours == pytest.approx(expected[metric]["value"], rel=1e-5)


@pytest.mark.checklist("R15")
def test_samples_are_compared_where_samples_differ(results):
    random, plain = (part(results, name, "clean") for name in ("gaussian", "plain"))
    assert list(random["scores"]) == ["1", "3"]
    assert random["scores"]["1"]["nll"] != random["scores"]["3"]["nll"]
    assert list(plain["scores"]) == ["1"]
    one, three = (random["scores"][samples]["nll"]["value"] for samples in ("1", "3"))
    gained = Found("gaussian", read_runs(results, "gaussian")).cell("gained.3.nll")
    assert gained.ours == pytest.approx(one - three)
    few = part(results, "gaussian", "few contrast")
    assert few["images"] == 10
    assert list(few["severities"]["5"]) == ["1", "3"]
    for scores in (random["scores"], few["severities"]["5"]):
        one, three = (scores[samples]["nll"]["value"] for samples in ("1", "3"))
        assert one != three
        assert three < one + 0.1  # ten images decide no more
    with pytest.raises(KeyError):
        part(results, "plain", "few contrast")


@pytest.mark.checklist("R16")
def test_members_have_a_diversity_and_a_single_network_has_none(results):
    assert part(results, "gaussian", "clean")["diversity"]["of"] == "members"
    assert 0 <= part(results, "gaussian", "clean")["diversity"]["diversity"]["value"] <= 2
    assert part(results, "plain", "clean")["diversity"] == {}


def test_factors_are_a_share_of_the_plain_network(results):
    network = part(results, "gaussian", "network")
    sides = (1 + 4) + (4 + 6) + (6 + 6) + (4 + 6) + (6 + 10)  # stem, block, shortcut, dense
    biases = 10  # one more for the second member
    assert network["parameters"] - network["plain_parameters"] == 2 * 2 * sides + biases
    assert network["seed"] == 42
    assert network["threads"] >= 1


def test_a_stopped_study_goes_on_where_it_was(runs, results, tmp_path):
    before = json.loads((results / "after" / "gaussian-seed42.json").read_text())
    kept = dict(before["parts"])
    del kept["few contrast"]
    out = tmp_path / "study.json"
    out.write_text(json.dumps({**before, "parts": kept}))
    study = study_rank1(runs / "gaussian", SMALL, out)
    made = {name: part for name, part in study["parts"].items() if kept.get(name) != part}
    assert list(made) == ["few contrast"]
    again, first = (s["parts"]["few contrast"]["severities"] for s in (study, before))
    assert again == first
    other = Rank1Settings(images=80, corrupted=41, few=10, samples=(1, 3), kinds=KINDS)
    with pytest.raises(ValueError, match="another corrupted: it was 40 and is now 41"):
        study_rank1(runs / "gaussian", other, out)


def test_foreign_images_are_those_of_the_table(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "FOREIGN", {"digits": "digits"})
    study = study_rank1(
        runs / "plain", Rank1Settings(images=50, corrupted=5, kinds=KINDS[:1]), tmp_path / "a.json"
    )
    assert study["parts"]["foreign"]["auroc_entropy"]["value"] == pytest.approx(0.5)


def made(seed, nll, cnll):
    """A study of one corruption, whose severities have so much NLL more."""

    def score(value):
        return {"1": {m: {"value": value, "error": 0.1} for m in METRICS}}

    return {
        "settings": {"seed": seed, "kinds": ["fog", "frost"]},
        "parts": {
            "network": {"parameters": 110, "plain_parameters": 100, "members": 2, "samples": 1}
            | {"absent": ["frost"]},
            "clean": {"scores": score(nll), "diversity": {}},
            "corrupted fog": {"severities": {str(s): score(cnll + s) for s in range(1, 6)}},
        },
    }


def test_numbers_are_means_over_seeds_and_severities():
    found = Found("any", [made(1, 0.5, 1.0), made(2, 0.7, 3.0)])
    assert found.cell("nll").ours == pytest.approx(0.6)
    assert found.cell("nll").error == pytest.approx(0.1)  # |0.7 − 0.5| / √2 / √2
    assert found.cell("cnll").ours == pytest.approx(5.0)
    assert found.cell("severity.5.cnll").ours == pytest.approx(7.0)
    assert found.cell("share").ours == pytest.approx(0.1)
    assert Found("any", [made(1, 0.5, 1.0)]).cell("nll").error == pytest.approx(0.1)
    with pytest.raises(FileNotFoundError, match=r"has 'few.4.cnll' yet; resume python -m"):
        found.cell("few.4.cnll")


def test_numbers_of_samples_are_compared_in_the_same_runs():
    few, many = made(1, 0.5, 1.0), made(2, 0.7, 1.0)
    (own,) = few["parts"]["clean"]["scores"].values()
    many["parts"]["clean"]["scores"] = {"1": own, "25": own}
    few["parts"]["clean"]["scores"] = {"1": {"nll": {"value": 9.0, "error": 0.1}}}
    found = Found("any", [few, many])
    assert found.cell("samples.1.nll").ours == found.cell("samples.25.nll").ours == 0.5
    assert found.cell("nll").ours == pytest.approx((9.0 + 0.5) / 2)


def test_an_unfinished_average_is_no_average():
    half = made(1, 0.5, 1.0)
    half["settings"]["kinds"] = ["fog", "snow"]
    assert "cnll" not in Found("any", [half]).columns
    assert Found("any", [half, made(2, 0.5, 3.0)]).cell("cnll").ours == pytest.approx(6.0)


def complete(seed):
    """A study that has every number that a sentence may name."""

    half = {"value": 0.5, "error": 0.1}

    def scores():
        return {n: dict.fromkeys(METRICS, half) for n in ("1", "4", "25")}

    severities = {"severities": {str(s): scores() for s in SEVERITIES}}
    study = made(seed, 0.5, 1.0)
    study["parts"] |= {"few fog": severities, "corrupted fog": severities}
    study["parts"]["clean"] = {
        "scores": scores(),
        "diversity": {"disagreement": half, "diversity": half},
    }
    study["parts"]["foreign"] = {"auroc_entropy": half}
    return {"study": "rank1", **study}


def test_every_claim_says_something_when_everything_was_run(tmp_path):
    paper = PAPERS["rank1"]
    text = " ".join(claim.came for claim in paper.claims)
    names = set(re.findall(r"rank1/([\w.-]+)", text))
    assert len(names) > 10
    for name in names:
        write_json(tmp_path / "after" / f"{name}-seed42.json", complete(42))
    theorem(TheoremSettings(width=2, scales=(0.1,), draws=2), tmp_path / "studies/theorem.json")
    counted = [claim for claim in paper.claims if "{" in claim.came]  # one says why it has no run
    assert NOT_RUN not in Blocks(paper, tmp_path).claims("rank1")
    assert Blocks(paper, tmp_path / "none").claims("rank1").count(NOT_RUN) == len(counted)


def test_recipes_of_the_page_are_there():
    """Ablations are runs of one recipe under names of their own."""
    known = {path.stem for path in PAPERS["rank1"].recipes.glob("*.yaml")}
    page = PAPERS["rank1"].pages[0].read_text(encoding="utf-8")
    for name in set(re.findall(r"(?:of|,|:) ([\w.-]+) = ", page)):
        assert name in known or name.startswith("fashion-mnist-resnet-ablation-")


def test_a_printed_row_stands_in_brackets():
    table = tables.main_table({"Cauchy": Found("cifar10-wrn-cauchy", [made(42, 0.5, 1.0)])})
    assert "0.50 ± 0.10 (0.12)" in table
    assert "(80.5)" in table


def test_tables_and_pictures_of_nothing_say_so(tmp_path):
    makers = Blocks(PAPERS["rank1"], tmp_path).makers(PAPERS["rank1"].pages[0])
    for kind in ("rank1-table", "rank1-ablation"):
        assert "| MC dropout | not run yet | – |" in makers[kind]("a-b = MC dropout")
    for kind in ("theorem", "rank1-trials"):
        assert makers[kind]("all") == NOT_RUN
    for kind, argument in (
        ("rank1-severities", "cnll of a = A | c"),
        ("theorem-curves", "layer 1 | c"),
    ):
        assert makers[kind](argument) == ""
    with pytest.raises(FileNotFoundError, match="run python -m research papers rank1 on its runs"):
        read_runs(tmp_path, "a")


def test_tables_and_pictures_show_what_was_found(results):
    blocks = rank1_blocks(results)
    names = "plain = deterministic, gaussian = rank-1"
    assert blocks.tables["rank1-table"](names).count("seed 42") == 2
    assert "| rank-1 | 3 |" in blocks.tables["rank1-samples"](names)
    assert "| 2 | – | – |" in blocks.tables["rank1-costs"](names)
    relative = {kind: {"ratio": 2.5, "milliseconds": 1.0} for kind in ("step", "prediction")}
    write_json(results / "studies" / "costs.json", {"costs": {"gaussian": relative}})
    assert "| 2 | 2.5 | 2.5 |" in blocks.tables["rank1-costs"](names)
    (picture,) = blocks.pictures["rank1-severities"](f"cnll of {names}")
    assert picture.png.startswith(b"\x89PNG")
    assert blocks.cells["rank1"]("gaussian", "few.3.cnll").ours > 0


@pytest.mark.checklist("R10")
def test_factors_and_weights_move_the_mean_alike_and_misprints_do_not(tmp_path):
    settings = TheoremSettings(width=4, scales=(0.02,), draws=20_000)
    study = theorem(settings, tmp_path / "theorem.json")
    assert len(study["parts"]) == 3
    for layer, part in study["parts"].items():
        by = part["per_variance"]
        assert by["factors"] == pytest.approx(by["weights"], rel=1e-9)
        assert by["indices j, k"] != pytest.approx(by["factors"], rel=1e-3)
        last = layer == "layer 3"
        assert math.isclose(by["one curvature"], by["factors"], rel_tol=1e-9) == last
        for kind in ("signs", "normal weights"):
            mean, error = part[kind]["mean"][0], part[kind]["error"][0]
            assert abs(mean - by["factors"] * 0.02**2) < threshold(6) * error
    assert theorem(settings, tmp_path / "theorem.json") == study
    blocks = rank1_blocks(tmp_path)
    (tmp_path / "studies").mkdir()
    (tmp_path / "theorem.json").rename(tmp_path / "studies" / "theorem.json")
    assert blocks.tables["theorem"]("all").count("| layer") == 3
    (picture,) = blocks.pictures["theorem-curves"]("layer 1")
    assert picture.name == "theorem-layer-1"


@pytest.mark.checklist("R20")
def test_factors_make_tails_heavier(tmp_path):
    found = tails([1.0, 5.0], scale=0.3, draws=200_000)
    exact = [math.erfc(t / math.sqrt(2)) for t in (1.0, 5.0)]
    for share, expected in zip(found["fixed at one"], exact, strict=True):
        error = math.sqrt(expected * (1 - expected) / 200_000)
        assert abs(share - expected) < threshold(2) * error + 1 / 200_000
    beyond = [found[kind][1] for kind in ("fixed at one", "Gaussian", "Cauchy", "half-Cauchy")]
    assert beyond == sorted(beyond)
    (picture,) = rank1_blocks(tmp_path).pictures["induced-priors"]("0.3")
    assert picture.png.startswith(b"\x89PNG")


def test_costs_are_relative_to_the_first_network(tmp_path):
    names = ("rank1/fashion-mnist-resnet-deterministic", "rank1/fashion-mnist-resnet-ensemble")
    threads = torch.get_num_threads()
    found = measure_costs(CostSettings(names, rounds=1, images=4), tmp_path / "costs.json")
    assert torch.get_num_threads() == threads
    first, second = found["costs"].values()
    assert first["step"]["ratio"] == first["prediction"]["ratio"] == 1
    assert second["step"]["ratio"] > 1
    with pytest.raises(ValueError, match="two recipes or more"):
        measure_costs(CostSettings(names[:1]), tmp_path / "costs.json")


def test_the_command_studies_runs_and_says_what_it_found(runs, tmp_path):
    arguments = ["papers", "rank1", str(runs / "plain"), "--images", "20", "--corrupted", "5"]
    told = CliRunner().invoke(app, [*arguments, "--kinds", "contrast", "--out", str(tmp_path)])
    assert told.exit_code == 0, told.output
    assert "corrupted contrast" in told.output
    assert (tmp_path / "plain-seed42.json").is_file()


def test_trials_are_the_last_validation_numbers_of_runs(runs, tmp_path):
    out = tmp_path / "studies" / "trials.json"
    command = [
        "papers",
        "rank1-trials",
        *(str(runs / name) for name in NETWORKS),
        "--out",
        str(out),
    ]
    told = CliRunner().invoke(app, command)
    assert told.exit_code == 0, told.output
    found = {trial["name"]: trial for trial in json.loads(out.read_text())["trials"]}
    assert {name: trial["rate"] for name, trial in found.items()} == {
        "plain": None,
        "gaussian": 0.3,
    }
    for name, trial in found.items():
        assert trial["nll"] == Run(runs / name).columns["validation/nll"][-1]
        assert trial["seed"] == 42
    shown = rank1_blocks(tmp_path).tables["rank1-trials"]("all")
    assert re.search(r"rank-1 Gaussian \| 0.3 \| 0\.\d+|rank-1 Gaussian \| 0.3 \| [1-9]", shown)


def test_trials_that_were_not_finished_say_so(tmp_path):
    told = CliRunner().invoke(app, ["papers", "rank1-trials", str(tmp_path / "none")])
    assert told.exit_code == 1
    assert "none" in str(told.exception)
    assert isinstance(told.exception, FileNotFoundError | ValueError)  # which main() prints


def test_foreign_images_of_sorted_files_are_named(tmp_path):
    """Studies without a record of how images were prepared took them class by class."""
    half = {"value": 0.5, "error": 0.01}

    def shown(**foreign):
        study = {
            "settings": {"seed": 1, "kinds": []},
            "parts": {
                "network": {"parameters": 1, "plain_parameters": 1, "members": 1, "samples": 3},
                "clean": {"images": 2000, "scores": {"3": {"nll": half}}, "diversity": {}},
                "foreign": {"auroc_entropy": half, "data": "cifar100", **foreign},
            },
        }
        return tables.main_table({"a": Found("cifar10-wrn-cauchy", [study])})

    assert "20 of 100 classes" in shown()
    assert "classes" not in shown(preprocessing="files sorted by class, so permuted")
    assert "judged by 3 samples of every member; the recipe, as the paper, has 4." in shown()
