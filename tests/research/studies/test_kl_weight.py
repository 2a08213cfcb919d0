"""The study of the KL's weight: what it measures at tiny size, and what its page concludes."""

import json
import re
from dataclasses import asdict

import pytest
import torch

from research.data import load_dataset
from research.studies import small_tasks
from research.studies.kl_weight import page as kl_weight_page
from research.studies.kl_weight import study as kl_weight

pytest.importorskip("matplotlib")


def result(data, weight, seed, nll, coverage=0.9):
    metrics = {"nll": nll, "ece": 0.1, "coverage": coverage, "auroc": 0.5 + weight / 100}
    _, settings = kl_weight.TASKS[data]
    return {
        "data": data,
        "weight": weight,
        "seed": seed,
        "config": asdict(settings),
        "metrics": metrics,
        "seconds": 60.0,
    }


def curves(best):
    """Results whose NLL is least at a weight of its own for each data set, with some noise."""
    return [
        result(data, weight, seed, abs(weight - middle) + 0.001 * seed)
        for data, middle in best.items()
        for weight in (0.1, 0.3, 1.0)
        for seed in (1, 2, 3)
    ]


def test_conclusions_name_the_best_weight_and_the_cost_of_one():
    (said,) = kl_weight_page.conclusions(kl_weight_page.cells(curves({"concrete": 0.3})))
    assert "UCI concrete: NLL is best at a weight of 0.3" in said
    assert "weight of 1 costs 0.700 nats of NLL" in said


def test_the_recommended_weight_follows_from_the_sizes():
    files = curves({"concrete": 1.0, "mnist": 0.3})  # recommended: 0.3 and 0.03
    said = kl_weight_page.recommended(kl_weight_page.cells(files), files)
    assert "are 0.3 on UCI concrete, 0.1 on MNIST. They cost at most 0.700 nats" in said


def test_cells_are_means_with_standard_errors():
    files = [result("mnist", 1.0, seed, nll) for seed, nll in ((1, 0.5), (2, 0.7))]
    assert kl_weight_page.cells(files)["mnist"][1.0]["nll"] == pytest.approx((0.6, 0.1))


def test_the_page_begins_with_the_recommendation_and_shows_every_number(tmp_path):
    for number, file in enumerate(curves({"concrete": 0.3, "mnist": 0.3, "fashion-mnist": 0.3})):
        (tmp_path / f"{number}.json").write_text(json.dumps(file))
    page = kl_weight_page.write(tmp_path, tmp_path / "docs").read_text(encoding="utf-8")
    assert page.splitlines()[2].startswith("[Train well](train_well.md) has the recommended")
    assert page.splitlines()[4].startswith("- The weights nearest to the recommended ones")
    assert "| 0.1 | 0.202 ± 0.001 |" in page
    for picture in re.findall(r"\((kl_weight/\w+\.png)\)", page):
        assert (tmp_path / "docs" / picture).stat().st_size > 5000
    with pytest.raises(FileNotFoundError, match="has no results"):
        kl_weight_page.write(tmp_path / "docs", tmp_path)


def test_credible_sets_reach_their_level():
    probs = torch.rand(400, 6).softmax(-1)
    y = torch.randint(6, (400,))
    inside = 0
    for row, truth in zip(probs.tolist(), y.tolist(), strict=True):
        kept, total = [], 0.0
        for share, label in sorted(((p, i) for i, p in enumerate(row)), reverse=True):
            if total < 0.9:
                kept.append(label)
                total += share
        inside += truth in kept
    assert small_tasks.credible_sets(probs, y) == pytest.approx(inside / 400)


def test_a_tiny_study_runs_and_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    try:
        load_dataset("concrete", download=False)
    except FileNotFoundError:
        pytest.skip("UCI concrete is not here; set LEANBAYES_DATA")
    monkeypatch.setattr(kl_weight, "WEIGHTS", (0.1, 1.0))
    tiny = {"concrete": kl_weight.Settings(8, 60, 50, 20, 20, samples=4, seeds=2)}
    kl_weight.everything(tmp_path, tiny)
    assert "4/4 concrete, weight 1, seed 2: nll" in capsys.readouterr().out
    (tmp_path / "concrete-weight1-seed2.json").unlink()
    kl_weight.everything(tmp_path, tiny)
    said = capsys.readouterr().out
    assert said.count("concrete, weight") == 1
    stored = json.loads((tmp_path / "concrete-weight0.1-seed1.json").read_text())
    assert stored["seed"] == 1
    assert set(stored["metrics"]) == {"nll", "rmse", "ece", "coverage", "auroc"}
    assert {"versions", "threads", "config", "seconds"} <= stored.keys()
