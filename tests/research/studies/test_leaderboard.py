"""The leaderboard: its runs, ranks and verdicts, and that it trains, resumes and measures."""

import dataclasses
import json
import math

import pytest
import torch
from typer.testing import CliRunner

from research.studies.commands import app
from research.studies.leaderboard import costs, study
from research.studies.leaderboard.methods import METHODS, Job
from research.studies.leaderboard.page import classes, differences, makers, ranks
from research.studies.leaderboard.runs import Runs
from research.studies.leaderboard.shortfall import amounts, tried
from research.studies.leaderboard.study import study_leaderboard
from research.studies.leaderboard.tasks import TASKS, Rows
from research.studies.leaderboard.variants import Tail
from research.studies.leaderboard.variants import table as table_of_variants
from research.studies.leaderboard.verdicts import decided, verdicts


def images(seed: int) -> Rows:
    """Two classes of tiny images, which differ in brightness."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(96) % 2
    x = torch.rand(96, 1, 28, 28, generator=generator) * (0.5 + y[:, None, None, None])
    return Rows(x[:64], y[:64], x[64:80], y[64:80], x[80:], y[80:], 2 * x[:8], (x[80:],))


def table(seed: int) -> Rows:
    """Numbers with noise."""
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(seed))
    y = x.sum(1, keepdim=True)
    return Rows(x[:40], y[:40], x[40:50], y[40:50], x[50:], y[50:], unit=2.0)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks of a few steps."""
    mlp = dataclasses.replace(TASKS["mlp"], read=images, epochs=2, batch=16)
    sgd = dataclasses.replace(TASKS["cifar"], read=images, epochs=1, batch=16,
                              network=TASKS["mlp"].network, lr=0.01)  # fmt: skip
    energy = dataclasses.replace(TASKS["uci-energy"], read=table, epochs=2, batch=16)
    for name, task in {"mlp": mlp, "cifar": sgd, "uci-energy": energy}.items():
        monkeypatch.setitem(TASKS, name, task)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_every_method_trains_every_kind_of_task_and_resumes(small, tmp_path):
    said: list[str] = []
    names = ["mlp", "cifar", "uci-energy"]
    options = {"seeds": [0], "tasks": names, "methods": list(METHODS), "tell": said.append}
    assert study_leaderboard(tmp_path / "out", tmp_path / "states", **options) == len(said)
    assert len(said) == len(names) * len(METHODS)
    assert study_leaderboard(tmp_path / "out", tmp_path / "states", **options) == 0
    runs = Runs.read(tmp_path / "out")
    for task in names:
        assert runs.methods(task) == list(METHODS)
        for method in METHODS:
            (record,) = runs.of(task, method).values()
            assert all(map(math.isfinite, record["test"].values()))
            assert record["threads"] >= 1
            assert record["duration"] >= 0
    plain, ensemble = (runs.of("mlp", name)[0]["parameters"] for name in ("plain", "ensemble of 5"))
    assert ensemble == 5 * plain
    text = classes(runs, "images")
    assert text.count("| MLP |") == len(METHODS)
    assert "| refused |" not in text


def test_scores_of_numbers_are_in_units_of_the_target(small, tmp_path):
    options = {"seeds": [0], "tasks": ["uci-energy"], "methods": ["plain"], "tell": print}
    study_leaderboard(tmp_path, tmp_path / "states", **options)
    (record,) = Runs.read(tmp_path).of("uci-energy", "plain").values()
    rows, task = table(0), TASKS["uci-energy"]
    job = Job("uci-energy", task, rows, 0, tmp_path / "states")
    p = METHODS["plain"](job).predict(rows.test_x)
    error = (p.mean - rows.test_y).square().mean().sqrt()
    assert record["test"]["rmse"] == pytest.approx(2 * float(error), rel=1e-4)
    nll = -float(p.log_likelihood(rows.test_y).mean())
    assert record["test"]["nll"] == pytest.approx(nll + math.log(2), rel=1e-4)


def test_no_split_takes_a_network_that_has_seen_its_test_rows(small, tmp_path):
    """Members of an ensemble have the seeds of later splits, and other training rows."""
    options = {"tasks": ["uci-energy"], "tell": print}
    after, alone = tmp_path / "after", tmp_path / "alone"
    study_leaderboard(after, after, seeds=[0], methods=["ensemble of 5"], **options)
    for folder in (after, alone):
        study_leaderboard(folder, folder, seeds=[1], methods=["plain"], **options)
    ours, fresh = (Runs.read(f).of("uci-energy", "plain")[1]["test"] for f in (after, alone))
    assert ours == fresh


def test_another_librarys_failure_is_a_result_and_our_own_is_not(small, tmp_path, monkeypatch):
    def fails(job: Job) -> None:
        raise RuntimeError("no such layer")

    monkeypatch.setitem(study.PEERS, "IVON", (fails, "torch", "torch"))
    monkeypatch.setattr(study, "available", lambda: {"IVON": fails})
    options = {"seeds": [0], "tasks": ["mlp"], "tell": print}
    study_leaderboard(tmp_path, tmp_path, methods=["IVON"], **options)
    runs = Runs.read(tmp_path)
    assert runs.of("mlp", "IVON") == {}
    assert runs.refusal("mlp", "IVON") == "RuntimeError: no such layer"
    monkeypatch.setitem(study.METHODS, "plain", fails)
    with pytest.raises(RuntimeError, match="no such layer"):
        study_leaderboard(tmp_path, tmp_path, methods=["plain"], **options)


def record(task: str, method: str, seed: int, **test: float) -> dict:
    return {"task": task, "method": method, "seed": seed, "test": test, "parameters": 10,
            "passes": 1, "duration": 36.0}  # fmt: skip


KNOWN = [
    record("mlp", "plain", 0, nll=0.5, calibration=0.08, accuracy=88.0, auroc=0.8),
    record("mlp", "plain", 1, nll=0.6, calibration=0.06, accuracy=88.0, auroc=0.8),
    record("mlp", "k-tied", 0, nll=0.4, calibration=0.03, accuracy=87.0, auroc=0.9),
    record("mlp", "k-tied", 1, nll=0.3, calibration=0.03, accuracy=87.2, auroc=0.9),
    record("mlp", "MC dropout", 0, nll=0.35, calibration=0.05, accuracy=88.0, auroc=0.95),
    record("mlp", "MC dropout", 1, nll=0.35, calibration=0.05, accuracy=88.0, auroc=0.95),
    record("uci-energy", "plain", 0, nll=1.0, calibration=0.02, coverage=0.88),
    record("uci-energy", "k-tied", 0, nll=1.5, calibration=0.06, coverage=0.96),
    {"task": "uci-energy", "method": "MC dropout", "seed": 0, "refused": "ValueError: no"},
]


def test_ranks_and_differences_by_hand():
    runs = Runs(KNOWN)
    gap = runs.gap("mlp", "k-tied", "plain", "nll")
    assert gap is not None
    assert gap.pairs == 2
    assert gap.mean == pytest.approx(-0.2)
    assert gap.error == pytest.approx(0.1)
    assert "−0.20 ± 0.10 (2)" in differences(runs, "classes", "nll")
    methods = ["plain", "k-tied", "MC dropout"]
    assert runs.mean_ranks("auroc", methods) == (
        {"plain": 3.0, "k-tied": 2.0, "MC dropout": 1.0}, 1
    )  # fmt: skip
    found, count = runs.mean_ranks("nll", methods)
    assert count == 2, "a method that refused a task is last, not absent"
    assert found == {"plain": 2.0, "k-tied": 1.75, "MC dropout": 2.25}
    measured = {"mlp": {"k-tied": {"median": 1.2}}, "cnn": {"k-tied": {"median": 1.4}}}
    assert "| k-tied | 1.75 | 1.50 | 2.00 | 1 | 1.30 | 1 |" in ranks(runs, measured, "all")
    assert "| plain | 2.00 | 2.00 | 3.00 | 1 | 1.00 | 1 |" in ranks(runs, measured, "all")


def test_several_networks_are_left_out_at_equal_cost():
    known = [r for r in KNOWN if r["task"] == "mlp" and r["method"] != "MC dropout"]
    runs = Runs([*known, *(record("mlp", "ensemble of 5", seed, nll=0.1) for seed in (0, 1))])
    assert "| ensemble of 5 | 1.00 | 5 |" in ranks(runs, {}, "classes")
    assert "| k-tied | 2.00 | 1 |" in ranks(runs, {}, "classes")
    assert "ensemble" not in ranks(runs, {}, "classes; one network")
    assert "| k-tied | 1.00 |" in ranks(runs, {}, "classes; one network")
    asked = "| mean rank in NLL better than baselines and other libraries: classes"
    said = verdicts(runs, {})
    assert f"{asked} | no | 2.00 over 1 tasks; ahead: ensemble of 5 1.00 |" in said
    assert f"{asked}, one network | **yes** |" in said


def test_tasks_are_better_undecided_or_worse_by_two_standard_errors():
    noisy = [
        record("cnn", method, seed, nll=nll)
        for method, values in {"plain": (0.5, 0.5), "k-tied": (0.1, 0.8)}.items()
        for seed, nll in enumerate(values)
    ]
    said = decided(Runs([*KNOWN, *noisy]))
    assert "| NLL lower than plain | better | 0 | – |" in said  # 0.2 is exactly two errors
    assert "undecided | 3 | MLP −0.20 ± 0.10; CNN −0.05 ± 0.35; energy +0.5000 |" in said
    assert "| accuracy at most half a point behind plain | worse | 1 | MLP −0.90 ± 0.10 |" in said
    clear = [record("mlp", "plain", 2, nll=0.6), record("mlp", "k-tied", 2, nll=0.4)]
    assert "| better | 1 | MLP −0.200 ± 0.058 |" in decided(Runs([*KNOWN, *clear]))


def test_the_shortfall_names_who_is_ahead_and_on_how_many_tasks():
    rival = [record("mlp", "MC dropout", s, nll=0.1 + s / 100, calibration=0.5) for s in (0, 1)]
    known = [r for r in KNOWN if r["task"] == "mlp" and r["method"] != "MC dropout"]
    said = amounts(Runs([*known, *rival]))
    assert "- MC dropout is ahead by 1.00 ranks in NLL on image and text tasks." in said
    assert "it has the lower NLL on 1 of 1, k-tied on 0." in said
    assert "- accuracy at most half a point behind plain: not on MLP, −0.90 ± 0.10." in said


def test_variants_are_counted_beside_their_own_baseline():
    nll = {"before": (1.0, 1.0), "now": (0.5, 0.6), "now, 100 samples": (0.4, 0.5),
           "no warm-up": (1.2, 1.3), "plain": (1.0, 1.3)}  # fmt: skip
    parts = {
        f"{method} {seed}": {"task": "mlp", "method": method, "seed": seed,
                             "validation": {"nll": value, "calibration": 0.1}}
        for method, values in nll.items() for seed, value in enumerate(values)
    }  # fmt: skip
    said = tried({"parts": {}}, {"parts": parts})
    assert "| now, 100 samples | 1 / 0 / 0 | 0 / 1 / 0 |" in said
    assert "| no warm-up | 0 / 0 / 1 | 0 / 1 / 0 |" in said
    assert "| plain | 0 / 1 / 0 | 0 / 1 / 0 |" in said
    assert "| now | 1 / 0 / 0" in said, "the present recipe beside the one before"
    parts["other"] = {**parts["before 0"], "task": "cnn"}  # the present recipe was not run there
    beside_now = table_of_variants({"parts": parts}, "nll", "now").splitlines()
    assert beside_now[0] == "| recipe | MLP |"
    assert beside_now[2:] == [
        "| plain | +0.60 ± 0.10 (2) |", "| now, 100 samples | −0.1000 ± 0 (2) |",
    ]  # fmt: skip
    assert "| MLP | CNN |" in table_of_variants({"parts": parts}, "nll", "before")


def test_verdicts_say_where_it_falls_short_and_by_how_much():
    costs = {"mlp": {"k-tied": {"median": 1.25, "low": 1.2, "high": 1.3}}}
    said = verdicts(Runs(KNOWN), costs)
    assert "| NLL lower than plain on every task | not shown | in the mean on 1 of 2 tasks" in said
    assert "better 0, undecided 0, worse 1 (MLP −0.90 ± 0.10) |" in said  # accuracy
    assert "| a step of at most 1.3 plain ones | **yes** | MLP 1.25 |" in said
    assert "0 of 1 sets, 96.0% on average. Not energy 96.0%" in said
    assert "ahead: MC dropout 1.00" in said
    better = [r for r in KNOWN if r["task"] == "mlp" and r["method"] != "MC dropout"]
    for seed in (0, 1):  # ranked as well, and no rival
        scores = {"nll": 0.1, "calibration": 0.01, "accuracy": 88.0, "auroc": 1.0}
        better.append(record("mlp", "rank-1 mixture", seed, **scores))
    asked = "mean rank in OOD AUROC better than baselines and other libraries: classes"
    assert f"| {asked} | **yes** | 2.00 over 1 tasks; none" in verdicts(Runs(better), {})


def test_the_tail_averages_the_parameters_of_the_last_steps():
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer, tail = torch.optim.SGD([weight], lr=1.0), Tail(first=3)
    optimizer.register_step_post_hook(tail.add)
    for _ in range(4):
        weight.grad = -torch.ones(2)
        optimizer.step()
    tail.load()
    assert weight.tolist() == [3.5, 3.5]  # of the third step and the fourth


def test_steps_are_measured_in_turns(small, tmp_path):
    file = costs.measure_costs(tmp_path, rounds=2, tasks=["mlp", "uci-energy"], tell=print)
    steps = json.loads(file.read_text(encoding="utf-8"))["steps"]
    assert steps["mlp"].keys() >= {"k-tied", "MC dropout", "rank-1 mixture", "ensemble of 5"}
    assert all(cost["median"] > 0 for by_method in steps.values() for cost in by_method.values())
    assert "Not measured" not in makers(tmp_path)["leaderboard-costs"]("all")


def test_the_command_names_what_it_does_not_know():
    result = CliRunner().invoke(app, ["leaderboard", "--tasks", "mpl"])
    assert result.exit_code
    assert "mlp" in str(result.exception)
