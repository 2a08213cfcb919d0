"""A sweep: it finds the better choice, goes on after a stop, and shares its work."""

import errno
import json
import math
import multiprocessing
import os
import signal
import sys
import time

import pytest
import torch
from optuna.storages.journal import JournalFileBackend
from typer.testing import CliRunner

from leanbayes.lab import sweep as sweeps
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.recipe_files import read_recipe
from leanbayes.lab.sweep import sweep, with_choices
from leanbayes.lab.tables import write_table
from leanbayes.lightning import NonFiniteLossError
from leanbayes_cli import app

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

RATES = {"optimizer.lr": [1e-6, 0.02]}
GRID = {"optimizer.lr": [1e-4, 0.01, 0.03], "posterior": [{"kind": "KTied", "rank": 1}, "Point"]}


def recipe(choices, **changes):
    values = {
        "name": "digits-sweep",
        "data": {"name": "digits"},
        "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [8]}},
        "posterior": {"kind": "KTied", "rank": 2},
        "prior": {"kind": "Normal", "scale": 0.3},
        "training": {"epochs": 2, "batch_size": 300},
        "evaluation": {"samples": 2},
        "choices": choices,
    }
    return check_recipe({**values, **changes})


def counted(monkeypatch, dies_at=None):
    """Notes the folders that are trained; one of them dies before its first step."""
    trained = []
    original = sweeps.train

    def train(recipe, out, **options):
        if len(trained) == dies_at:
            raise KeyboardInterrupt
        trained.append(out.name)
        return original(recipe, out, **options)

    monkeypatch.setattr(sweeps, "train", train)
    return trained


@pytest.mark.parametrize("metric", ["nll", "negative_elbo"])
def test_the_better_of_two_learning_rates_is_found(tmp_path, metric):
    result = sweep(recipe(RATES), tmp_path, metric=metric)
    assert [trial["state"] for trial in result["trials"]] == ["complete"] * 2
    slow, fast = (trial["value"] for trial in result["trials"])
    assert fast < slow - 0.1
    assert result["best"]["settings"] == {"optimizer.lr": 0.02}
    assert json.loads((tmp_path / "sweep.json").read_text()) == result
    best = read_recipe(tmp_path / "best.yaml")
    assert best == with_choices(recipe(RATES), {"optimizer.lr": 0.02})
    assert best.choices == {}
    lines = (tmp_path / "trial-0001" / "metrics.csv").read_text().splitlines()
    column = lines[0].split(",").index(f"validation/{metric}")
    assert float(lines[-1].split(",")[column]) == fast


def test_a_stopped_sweep_goes_on_where_it_was(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        trained = counted(patch, dies_at=1)
        with pytest.raises(KeyboardInterrupt):
            sweep(recipe(RATES), tmp_path)
        assert trained == ["trial-0000"]
    trained = counted(monkeypatch)
    result = sweep(recipe(RATES), tmp_path)
    assert trained == ["trial-0001"]
    assert [trial["state"] for trial in result["trials"]] == ["complete"] * 2
    assert sweep(recipe(RATES), tmp_path) == result
    assert trained == ["trial-0001"]


def test_an_exit_within_a_trial_stays_one_and_its_trial_is_taken_up(tmp_path, monkeypatch):
    """Lightning turns signals into exits."""
    with monkeypatch.context() as patch:
        patch.setattr(sweeps, "train", lambda *_, **__: sys.exit(3))
        with pytest.raises(SystemExit, match="3"):
            sweep(recipe(RATES), tmp_path)
    monkeypatch.setattr(sweeps, "train", invented)
    result = sweep(recipe(RATES), tmp_path)
    assert [trial["state"] for trial in result["trials"]] == ["complete"] * 2


def invented(recipe, out, **options):
    """Stands for a training: the best rate is in the middle."""
    value = abs(math.log10(recipe.optimizer.lr) + 2.2)
    write_table(out / "metrics.csv", {"validation/nll": [2.0, value]})


def test_a_killed_tpe_sweep_suggests_what_an_uninterrupted_one_does(tmp_path, monkeypatch):
    monkeypatch.setattr(sweeps, "train", invented)
    choices = recipe({"optimizer.lr": [10 ** (-i / 4) for i in range(2, 20)]})
    whole = sweep(choices, tmp_path / "whole", 16)
    for count in (3, 12):
        counted(monkeypatch, dies_at=count - 1)
        with pytest.raises(KeyboardInterrupt):
            sweep(choices, tmp_path / "stopped", 16)
        monkeypatch.setattr(sweeps, "train", invented)
    assert sweep(choices, tmp_path / "stopped", 16) == whole
    assert len({trial["value"] for trial in whole["trials"]}) > 5


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(sweeps, "train", invented)
    file = tmp_path / "recipe.yaml"
    file.write_text(recipe(RATES).to_yaml(), encoding="utf-8")
    append = JournalFileBackend.append_logs

    def full(self, logs):
        append(self, logs)
        journal = tmp_path / "out" / "study.journal"
        if journal.stat().st_size > 3000:
            with journal.open("ab") as torn:
                torn.write(b'{"op_code": 4, "wor')
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(JournalFileBackend, "append_logs", full)
        result = CliRunner().invoke(app(), ["sweep", str(file), "--output", str(tmp_path / "out")])
    said = str(result.exception)
    assert isinstance(result.exception, SystemExit)
    assert said.startswith(
        f"leanbayes: no space is left in {tmp_path / 'out'} to write study.journal"
    )
    assert "; free some, then go on with: leanbayes" in said
    assert "--resume" not in said
    assert sweep(recipe(RATES), tmp_path / "out") == sweep(recipe(RATES), tmp_path / "whole")


def test_tpe_makes_so_many_trials_and_can_be_given_more(tmp_path, monkeypatch):
    trained = counted(monkeypatch)
    first = sweep(recipe(GRID), tmp_path, 2)
    more = sweep(recipe(GRID), tmp_path, 3)
    assert trained == ["trial-0000", "trial-0001", "trial-0002"]
    assert more["trials"][:2] == first["trials"]
    assert more["best"]["value"] == min(trial["value"] for trial in more["trials"])
    for trial in more["trials"]:
        assert all(value in GRID[key] for key, value in trial["settings"].items())


def test_a_diverging_trial_fails_alone(tmp_path, monkeypatch):
    original = sweeps.train

    def train(recipe, out, **options):
        if recipe.optimizer.lr == 1e-6:
            raise NonFiniteLossError("the loss is nan")
        return original(recipe, out, **options)

    monkeypatch.setattr(sweeps, "train", train)
    result = sweep(recipe(RATES), tmp_path)
    assert [trial["state"] for trial in result["trials"]] == ["fail", "complete"]
    assert result["trials"][0]["reason"] == "the loss is nan"
    assert result["best"]["run"] == "trial-0001"


def test_a_trial_without_a_number_at_the_end_fails_once(tmp_path, monkeypatch):
    trained = []

    def train(recipe, out, **options):
        trained.append(out.name)
        write_table(out / "metrics.csv", {"validation/nll": [2.0, float("nan")]})

    monkeypatch.setattr(sweeps, "train", train)
    result = sweep(recipe(RATES), tmp_path)
    assert sweep(recipe(RATES), tmp_path) == result
    assert trained == ["trial-0000", "trial-0001"]
    assert [trial["state"] for trial in result["trials"]] == ["fail"] * 2
    assert result["trials"][0]["reason"] == "validation/nll is not a number in the last epoch"
    assert result["best"] is None


@pytest.mark.parametrize(
    ("choices", "trials", "sentence"),
    [
        ({}, None, "has no choices; add"),
        ({"optimizer.lr": []}, None, "has no choices; add"),
        ({"optimizer.momentun": [0.9]}, None, r"momentun' is unknown.*'momentum'"),
        ({"optimizer.lr": [0.1, -1.0]}, None, "greater than 0"),
        (RATES, 0, "trials is 0"),
    ],
)
def test_bad_choices_are_refused_before_training(tmp_path, choices, trials, sentence):
    with pytest.raises(ValueError, match=sentence):
        sweep(recipe(choices), tmp_path, trials)
    assert not any(tmp_path.iterdir())


def test_another_recipe_or_metric_needs_another_folder(tmp_path):
    once = recipe({"optimizer.lr": [0.01]}, training={"epochs": 1, "batch_size": 500})
    sweep(once, tmp_path)
    for changed, metric, name in (
        (recipe(RATES), "nll", "recipe"),
        (once, "negative_elbo", "metric"),
    ):
        with pytest.raises(ValueError, match=f"with another {name}; undo the change"):
            sweep(changed, tmp_path, metric=metric)
    with pytest.raises(ValueError, match="with another sampler"):
        sweep(once, tmp_path, 3)


def _sweep_in_child(folder, log):
    torch.set_num_threads(1)
    original = sweeps.train

    def train(recipe, out, **options):
        with open(log, "a") as file:  # a short line is appended in one piece
            file.write(f"{out.name} {os.getpid()}\n")
        return original(recipe, out, **options)

    sweeps.train = train
    sweep(recipe(GRID), folder)
    os._exit(0)


def _children(count, *args):
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=_sweep_in_child, args=args) for _ in range(count)]
    for child in children:
        child.start()
    return children


def test_two_processes_train_every_point_once(tmp_path):
    folder, log = tmp_path / "study", tmp_path / "log"
    children = _children(2, folder, log)
    for child in children:
        child.join(120)
        assert child.exitcode == 0
    lines = [line.split() for line in log.read_text().splitlines()]
    assert sorted(name for name, _ in lines) == [f"trial-{i:04d}" for i in range(6)]
    assert len({process for _, process in lines}) == 2
    result = json.loads((folder / "sweep.json").read_text())
    assert [trial["state"] for trial in result["trials"]] == ["complete"] * 6
    settings = [json.dumps(trial["settings"], sort_keys=True) for trial in result["trials"]]
    assert len(set(settings)) == 6
    assert result["best"]["value"] == min(trial["value"] for trial in result["trials"])


def test_the_trial_of_a_killed_process_is_taken_over(tmp_path):
    folder, log = tmp_path / "study", tmp_path / "log"
    (child,) = _children(1, folder, log)
    deadline = time.monotonic() + 60
    while not (folder / "trial-0000" / "recipe.yaml").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    result = sweep(recipe(GRID), folder)
    assert [trial["state"] for trial in result["trials"]] == ["complete"] * 6
    assert log.read_text().split()[0] == "trial-0000"
