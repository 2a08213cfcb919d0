"""How runs end: by signals, kills, a second process, damaged files and numbers that are none."""

import json
import math
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import leanbayes as lb
from leanbayes.lab.callbacks import FollowLearningRate
from leanbayes.lab.checkpoints import Checkpoints
from leanbayes.lab.files import locked
from leanbayes.lab.from_recipe import build_model, likelihood_of
from leanbayes.lab.interrupts import interruptible
from leanbayes.lab.launch import WholeCheckpoints
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.runs import Run
from leanbayes.lab.sweep import sweep
from leanbayes.lab.train import build_module, train
from leanbayes.lightning import BayesianModule, NonFiniteLossError
from leanbayes.saving.files import remove_partial_files, replace_file
from leanbayes.training.objective import BatchObjective
from leanbayes_cli import app
from research.papers.k_tied.compression import compress_run

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

EPOCHS = 4


def recipe(epochs=EPOCHS, **changes):
    values = {
        "name": "digits-ends",
        "data": {"name": "digits"},
        "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [8]}},
        "posterior": {"kind": "KTied", "rank": 1},
        "prior": {"kind": "Normal", "scale": 0.3},
        "optimizer": {"lr": 0.01},
        "training": {"epochs": epochs, "batch_size": 400, "limit": 10**6},
        "evaluation": {"samples": 2},
    }
    return check_recipe({**values, **changes})


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    train(recipe(), folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    """A run that was stopped before its last epoch."""
    folder = tmp_path_factory.mktemp("unfinished")
    with pytest.MonkeyPatch.context() as patch:
        at_epoch(patch, EPOCHS - 1, interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(recipe(), folder, progress=False)
    return folder


@pytest.fixture
def stopped(unfinished, tmp_path):
    return shutil.copytree(unfinished, tmp_path / "run")


def at_epoch(patch, epoch, action):
    """Do something at the start of an epoch."""
    original = BayesianModule.on_train_epoch_start

    def starts(self):
        original(self)
        if self.current_epoch == epoch:
            action(self)

    patch.setattr(BayesianModule, "on_train_epoch_start", starts)


def interrupt(module):
    raise KeyboardInterrupt


def curves(folder):
    return (folder / "metrics.csv").read_text()


def assert_ended_like(folder, reference):
    assert Run(folder).metrics == Run(reference).metrics
    assert curves(folder) == curves(reference)


def wait_for(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def start(*arguments):
    """The command as a shell starts it."""
    command = [sys.executable, "-m", "leanbayes", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes)


def fork(folder, *arguments):
    """The same in a forked process, which spares the imports; what it says goes to a file."""

    def run():
        torch.set_num_threads(1)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background has none
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and nohup ignores this one
        with open(folder / "said", "w") as file, open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(file.fileno(), 2)
            sys.stdout, sys.stderr = nowhere, file
            sys.argv = ["leanbayes", *map(str, arguments)]
            app()()

    child = multiprocessing.get_context("fork").Process(target=run, daemon=True)
    child.start()
    return child


def in_child(work):
    """Run in a forked process, which spares the imports; gives its exit code."""

    def run():
        torch.set_num_threads(1)
        work()
        os._exit(0)

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join(60)
    return child.exitcode


# signals


@pytest.fixture
def long_recipe(tmp_path):
    file = tmp_path / "long recipe.yaml"
    changes = {"choices": {"optimizer.lr": [0.01, 0.02]}}
    file.write_text(recipe(100_000, **changes).to_yaml(), encoding="utf-8")
    return file


SIGNALS = [
    (signal.SIGTERM, "SIGTERM", 143),
    (signal.SIGINT, "Ctrl-C", 130),
    (signal.SIGHUP, "SIGHUP", 129),
]


@pytest.mark.tried(
    "Runs",
    what="SIGTERM, SIGHUP or Ctrl-C while a run trains",
    holds="exit code 143, 129 or 130, and one sentence with the very command that goes on",
)
@pytest.mark.parametrize(("number", "name", "code"), SIGNALS)
def test_a_stopped_training_says_so_and_how_to_go_on(tmp_path, long_recipe, number, name, code):
    folder = tmp_path / "run"
    child = fork(tmp_path, "train", long_recipe, "--output", folder)
    wait_for(lambda: list(folder.glob("checkpoints/*.ckpt")))
    os.kill(child.pid, number)
    child.join(60)
    assert child.exitcode == code
    again = f"leanbayes train '{long_recipe}' --output {folder} --resume"
    said = (tmp_path / "said").read_text()
    assert said == f"leanbayes: stopped by {name}; go on with: {again}\n"
    assert not (folder / "result.json").exists()


def test_a_shell_sees_the_exit_code(tmp_path, long_recipe):
    folder = tmp_path / "run"
    process = start("train", long_recipe, "--output", folder)
    wait_for(lambda: list(folder.glob("checkpoints/*.ckpt")))
    process.terminate()
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 143
    assert said.startswith("leanbayes: stopped by SIGTERM; go on with: leanbayes train ")


@pytest.mark.tried(
    "Runs",
    what="SIGTERM, SIGHUP or Ctrl-C during a sweep",
    holds="exit code 143, 129 or 130, the command that goes on, and no trial that others wait for",
)
@pytest.mark.parametrize(("number", "name", "code"), SIGNALS)
def test_a_stopped_sweep_says_so_and_how_to_go_on(tmp_path, long_recipe, number, name, code):
    folder = tmp_path / "sweep"
    child = fork(tmp_path, "sweep", long_recipe, "--output", folder)
    wait_for(lambda: list(folder.glob("trial-0000/checkpoints/*.ckpt")))
    os.kill(child.pid, number)
    child.join(60)
    assert child.exitcode == code
    again = f"leanbayes sweep '{long_recipe}' --output {folder}"
    said = (tmp_path / "said").read_text()
    assert said == f"leanbayes: stopped by {name}; go on with: {again}\n"
    with locked(folder / ".trial-0000.lock", "a trial that others wait for"):
        pass


def sends_sigterm(patch):
    """Let the first training step of this process get a signal."""
    patch.setattr(BayesianModule, "training_step", lambda *_: os.kill(os.getpid(), signal.SIGTERM))


@pytest.mark.tried(
    "Runs", what="SIGTERM during the demo", holds="exit code 143, and what is done is printed"
)
@pytest.mark.parametrize(
    ("number", "name", "code"), [(signal.SIGTERM, "SIGTERM", 143), (signal.SIGINT, "Ctrl-C", 130)]
)
def test_a_stopped_demo_says_so(tmp_path, monkeypatch, number, name, code):
    """Also in a training by lb.fit, which ends early by itself and keeps what it has."""

    def stop(*_):
        os.kill(os.getpid(), number)
        time.sleep(1)

    monkeypatch.setattr(BatchObjective, "__call__", stop)
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)  # by a job in the background
    before = signal.getsignal(number)
    done = CliRunner().invoke(app(), ["demo", "--quick", "--output", str(tmp_path)])
    assert done.exit_code == code
    assert f"Stopped by {name} after 0 of 3 methods" in done.output
    assert signal.getsignal(number) == before
    signal.signal(signal.SIGINT, ignored)


def test_a_stop_is_an_interrupt_for_python_too(tmp_path, monkeypatch):
    sends_sigterm(monkeypatch)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt) as caught:
        train(recipe(), tmp_path, progress=False)
    assert caught.value.args == (signal.SIGTERM,)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.tried(
    "Runs",
    what="a SIGTERM whose interrupt some code swallows, so that Lightning ends as if all were well",
    holds="an interrupt all the same",
)
def test_a_swallowed_sigterm_still_stops(tmp_path, monkeypatch):
    original = BayesianModule.training_step

    def swallows(self, *arguments):
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        return original(self, *arguments)

    monkeypatch.setattr(BayesianModule, "training_step", swallows)
    with pytest.raises(KeyboardInterrupt) as caught:
        train(recipe(), tmp_path, progress=False)
    assert caught.value.args == (signal.SIGTERM,)


def test_an_exit_that_no_signal_caused_stays_one():
    with pytest.raises(SystemExit, match="3"), interruptible():
        sys.exit(3)


# kills


@pytest.mark.tried(
    "Runs",
    what="a SIGKILL between the last checkpoint and its line of metrics.csv",
    holds="the resumed run's metrics.csv is that of an uninterrupted one",
)
def test_a_kill_before_the_last_line_of_metrics_loses_nothing(tmp_path, reference):
    def dies():
        original = Run.write_metrics

        def write(self, rows):
            if len(rows) == EPOCHS:
                os.kill(os.getpid(), signal.SIGKILL)
            original(self, rows)

        Run.write_metrics = write
        train(recipe(), tmp_path, progress=False)

    assert in_child(dies) == -signal.SIGKILL
    assert len(curves(tmp_path).splitlines()) == EPOCHS
    assert len(Run(tmp_path).checkpoints.paths()) == 3
    train(recipe(), tmp_path, resume=True, progress=False)
    assert_ended_like(tmp_path, reference)


@pytest.mark.tried(
    "Runs",
    what="a SIGKILL while a file is written",
    holds="the partial file is removed when the run goes on",
)
def test_partial_files_of_killed_processes_are_removed(stopped, reference):
    for name in (".metrics.csv.1.partial", "checkpoints/.epoch-00003.ckpt.1.partial"):
        (stopped / name).write_text("half of")
    train(recipe(), stopped, resume=True, progress=False)
    assert not list(stopped.rglob("*.partial"))
    assert_ended_like(stopped, reference)


def test_own_partial_files_are_left_alone(tmp_path):
    own = tmp_path / f".a.{os.getpid()}.partial"
    own.touch()
    remove_partial_files(tmp_path)
    assert own.exists()


@pytest.mark.tried(
    "Files",
    what="a power cut after save",
    holds="the file and the name of the file were synced to the disk first",
)
def test_a_file_and_its_name_are_synced(tmp_path, monkeypatch):
    synced, original = [], os.fsync

    def fsync(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    replace_file(tmp_path / "a", b"1")
    assert [Path(path).name.split(".")[-1] for path in synced] == ["partial", tmp_path.name]
    synced.clear()
    model = lb.convert(torch.nn.Linear(2, 2), lb.KTied(1), lb.priors.Normal(1.0))
    lb.save(model, tmp_path / "m")
    assert len(synced) == 2


# two processes, and folders in which something lies


@pytest.mark.tried(
    "Runs",
    what="two processes started in one folder",
    holds="the second is refused in one sentence; a killed one locks nobody out",
)
def test_a_second_process_is_refused_while_the_first_lives(tmp_path, reference):
    ready = multiprocessing.get_context("fork").Event()

    def first():
        at_epoch(pytest.MonkeyPatch(), 1, lambda _: (ready.set(), time.sleep(60)))
        train(recipe(), tmp_path, progress=False)

    child = multiprocessing.get_context("fork").Process(target=first)
    child.start()
    assert ready.wait(60)
    other = recipe(optimizer={"lr": 0.5})
    for resume in (False, True):
        with pytest.raises((OSError, ValueError), match=r"is in use|holds a run|another recipe"):
            train(other, tmp_path, resume=resume, progress=False)
    with pytest.raises(BlockingIOError, match=r"is in use: .* choose another --output"):
        train(recipe(), tmp_path, resume=True, progress=False)
    child.kill()
    child.join()
    train(recipe(), tmp_path, resume=True, progress=False)
    assert_ended_like(tmp_path, reference)


def test_two_recipes_at_once_leave_one_run(tmp_path):
    """Both find an empty folder; the one that gets the lock trains."""
    context = multiprocessing.get_context("fork")
    barrier, refused = context.Barrier(2), context.Queue()

    def run(rate):
        torch.set_num_threads(1)
        original = Run.alone

        def together(self):
            barrier.wait(30)
            return original(self)

        Run.alone = together
        try:
            train(recipe(optimizer={"lr": rate}), tmp_path, progress=False)
        except OSError as error:
            refused.put(str(error))

    children = [context.Process(target=run, args=(rate,)) for rate in (0.01, 0.02)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert re.search("is in use|holds a run", refused.get(timeout=5))
    assert refused.empty()
    run = Run(tmp_path)
    assert run.result["recipe"]["optimizer"]["lr"] == run.recipe.optimizer.lr


@pytest.mark.tried(
    "Runs",
    what="checkpoints or results in a folder without recipe.yaml",
    holds="refused, with and without --resume: nobody knows what they are of",
)
@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("kept", ["checkpoints", "result.json"])
def test_what_has_no_recipe_is_refused(reference, tmp_path, kept, resume):
    folder = shutil.copytree(reference, tmp_path / "run")
    for path in folder.iterdir():
        if path.name != kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(FileExistsError, match=r"but no recipe\.yaml; put it back"):
        train(recipe(), folder, resume=resume, progress=False)


@pytest.mark.tried(
    "Runs",
    what="a corrected recipe in the folder of a run whose first step failed",
    holds="it is trained, and the replacement is said",
)
@pytest.mark.parametrize("resume", [True, False])
def test_a_run_without_an_epoch_may_be_replaced(tmp_path, reference, resume, monkeypatch):
    def fail(self, *_):
        raise ValueError("the first step fails")

    wrong = recipe(architecture={"name": "mlp", "options": {"inputs": 64, "hidden": [7]}})
    with monkeypatch.context() as patch:
        patch.setattr(FollowLearningRate, "on_train_batch_start", fail, raising=False)
        with pytest.raises(ValueError, match="the first step fails"):
            train(wrong, tmp_path, progress=False)
    with pytest.warns(UserWarning, match="had finished no epoch; it is replaced"):
        train(recipe(), tmp_path, resume=resume, progress=False)
    assert Run(tmp_path).recipe == recipe()
    assert_ended_like(tmp_path, reference)


# numbers that are not finite


def overflow(patch, epoch):
    """Let the last optimizer step of an epoch spoil a weight, unless steps are small."""

    def last(self, trainer, module, *_):
        if trainer.current_epoch == epoch and trainer.is_last_batch and module.lr > 0.005:
            with torch.no_grad():
                module.model.dense1.posterior.loc[0, 0] = float("inf")

    patch.setattr(FollowLearningRate, "on_train_batch_end", last, raising=False)


@pytest.mark.tried(
    "Runs",
    what="a last step that overflows",
    holds="no success and no NaN in result.json; the way back to the last finite epoch is said",
)
@pytest.mark.parametrize("epoch", [1, EPOCHS - 1], ids=["middle", "last"])
def test_an_overflow_is_no_success_and_can_be_gone_back_from(tmp_path, monkeypatch, epoch):
    overflow(monkeypatch, epoch)
    with pytest.raises(NonFiniteLossError, match=r"dense1\.posterior\.loc") as caught:
        train(recipe(), tmp_path, progress=False)
    assert f"go on after epoch {epoch - 1}" in str(caught.value)
    assert "--resume and --set optimizer.lr=0.001 or --set training.gr" in str(caught.value)
    assert not (tmp_path / "result.json").exists()
    with pytest.raises(NonFiniteLossError):
        train(recipe(), tmp_path, resume=True, progress=False)
    with pytest.raises(ValueError, match="'seed' was 42 and is now 1"):
        train(recipe(seed=1, optimizer={"lr": 0.001}), tmp_path, resume=True, progress=False)
    slower = recipe(optimizer={"lr": 0.001})
    result = train(slower, tmp_path, resume=True, progress=False)
    assert all(math.isfinite(score.value) for score in Run(tmp_path).metrics.values())
    assert result["epochs"] == EPOCHS
    (stop,), (change,) = result["history"]["stopped"], result["history"]["changed"]
    assert stop["epoch"] == change["epoch"] == epoch
    assert (change["key"], change["before"], change["now"]) == ("optimizer.lr", 0.01, 0.001)
    assert Run(tmp_path).recipe == slower
    (told,) = Run(tmp_path).problems
    assert told.startswith(f"From epoch {epoch} on, optimizer.lr is 0.001 and no longer 0.01")
    with pytest.raises(ValueError, match="another recipe"):
        train(recipe(), tmp_path, resume=True, progress=False)


def test_a_changed_learning_rate_is_the_one_that_trains(tmp_path, monkeypatch):
    overflow(monkeypatch, 2)
    with pytest.raises(NonFiniteLossError):
        train(recipe(), tmp_path, progress=False)
    rates = []
    patched = lambda module: rates.extend(g["lr"] for g in module.optimizers().param_groups)  # noqa: E731
    original = FollowLearningRate.on_train_epoch_start

    def note(self, trainer, module):
        original(self, trainer, module)
        patched(module)

    monkeypatch.setattr(FollowLearningRate, "on_train_epoch_start", note)
    train(recipe(optimizer={"lr": 0.001}), tmp_path, resume=True, progress=False)
    assert rates
    assert set(rates) == {0.001}


def test_only_a_run_that_met_such_numbers_may_change_its_steps(stopped):
    with pytest.raises(ValueError, match=r"'optimizer\.lr' was 0\.01 and is now 0\.001"):
        train(recipe(optimizer={"lr": 0.001}), stopped, resume=True, progress=False)


@pytest.mark.tried(
    "Runs",
    what="a checkpoint of older versions whose numbers are not finite",
    holds="the run goes on from the one before, and says so",
)
def test_a_checkpoint_that_is_not_finite_is_passed_over(stopped, reference):
    last = Checkpoints(stopped / "checkpoints").paths()[-1]
    state = torch.load(last, weights_only=True)
    state["state_dict"]["model.dense1.posterior.loc"][0, 0] = float("nan")
    WholeCheckpoints().save_checkpoint(state, last)
    with pytest.warns(UserWarning, match=r"not finite, first in 'model\.dense1\.posterior\.loc'"):
        train(recipe(), stopped, resume=True, progress=False)
    assert_ended_like(stopped, reference)


def test_a_metric_that_is_no_number_is_no_result(tmp_path, monkeypatch):
    nan = {"nll": {"value": float("nan"), "error": 0.0}}
    monkeypatch.setattr("leanbayes.lab.train.evaluate", lambda *_, **__: nan)
    with pytest.raises(NonFiniteLossError, match="nll is nan on the test set"):
        train(recipe(1), tmp_path, progress=False)
    assert not (tmp_path / "result.json").exists()


# damaged files


def flipped(path):
    """One bit of one weight."""
    content = bytearray(path.read_bytes())
    weights = torch.load(path, weights_only=True)["state_dict"]["model.dense1.posterior.loc"]
    content[content.index(weights.numpy().tobytes()) + 5] ^= 1
    path.write_bytes(content)


def of_another_network(path):
    state = torch.load(path, weights_only=True)
    state["state_dict"]["model.dense1.posterior.loc"] = torch.zeros(3, 3)
    torch.save(state, path)


def of_another_epoch(path):
    state = torch.load(path, weights_only=True)
    torch.save({**state, "epoch": 1}, path)


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("not a checkpoint"),
    "pickled list": lambda path: torch.save([1, 2], path),
    "foreign state": lambda path: torch.save({"weight": torch.zeros(2)}, path),
    "another network": of_another_network,
    "another epoch": of_another_epoch,
    "a flipped bit": flipped,
}


@pytest.mark.tried(
    "Runs",
    what="a last checkpoint that is empty, of another run or epoch, or has a flipped bit",
    holds="it costs one epoch and is said, with the checksums of new folders and without",
)
@pytest.mark.parametrize("sums", [True, False], ids=["checksums", "old folder"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_bad_checkpoint_costs_one_epoch(stopped, reference, damage, sums):
    last = Checkpoints(stopped / "checkpoints").paths()[-1]
    DAMAGE[damage](last)
    if not sums:
        (stopped / "checkpoints.sha256").unlink()
    with pytest.warns(UserWarning, match=r"epoch-00002\.ckpt .*; going on from epoch-00001\.ckpt"):
        train(recipe(), stopped, resume=True, progress=False)
    assert last.with_suffix(".damaged").exists()
    assert_ended_like(stopped, reference)


def test_a_checkpoint_that_the_run_did_not_write_is_passed_over(stopped, reference):
    folder = Checkpoints(stopped / "checkpoints")
    shutil.copy(folder.paths()[-1], folder.path(70))
    with pytest.warns(UserWarning, match="was not written by this run; going on from epoch-00002"):
        train(recipe(), stopped, resume=True, progress=False)
    assert_ended_like(stopped, reference)


def test_a_run_whose_checkpoints_are_all_bad_is_not_thrown_away(stopped):
    paths = Checkpoints(stopped / "checkpoints").paths()
    for path in paths:
        path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"no checkpoint in .* can be gone on from"):
        train(recipe(), stopped, resume=True, progress=False)
    assert Checkpoints(stopped / "checkpoints").paths() == paths


@pytest.mark.tried(
    "Runs",
    what="a file of checksums that is truncated anywhere",
    holds="whole checkpoints are gone on from, and damaged ones are not",
)
@pytest.mark.parametrize("left", [0, 1, 40, 100, 250, -1])
def test_truncated_checksums_cost_no_checkpoint(stopped, left):
    sums, folder = stopped / "checkpoints.sha256", Checkpoints(stopped / "checkpoints")
    content = sums.read_bytes()
    lines = content.splitlines(keepends=True)
    sums.write_bytes(b"".join(lines[:2]) if left == 1 else content[:left])
    flipped(folder.paths()[0])
    module = build_module(recipe(), build_model(recipe()), likelihood_of(recipe()), 100)
    assert folder.last(module, set_aside=False) == folder.path(2)
    folder.path(2).unlink()
    with pytest.raises(ValueError, match=r"epoch-00001\.ckpt is damaged"):
        folder.last(module, set_aside=False)


def test_a_new_checkpoint_completes_truncated_checksums(stopped, reference):
    sums = stopped / "checkpoints.sha256"
    sums.write_bytes(sums.read_bytes()[:40])
    train(recipe(), stopped, resume=True, progress=False)
    assert_ended_like(stopped, reference)
    test_checksums_are_those_of_other_tools(stopped)


@pytest.mark.tried(
    "Runs",
    what="a result.json with one digit changed",
    holds="refused, unless it is of the first runs, which have no checksum",
)
def test_a_changed_result_is_refused(stopped):
    result = train(recipe(), stopped, resume=True, progress=False)
    file = stopped / "result.json"
    assert Run(stopped).result == result
    subprocess.run(["sha256sum", "-c", "result.sha256"], cwd=stopped, check=True)
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(f'"epochs": {EPOCHS}', '"epochs": 77'), encoding="utf-8")
    with pytest.raises(ValueError, match=r"its checksum is not that in result\.sha256\); resume"):
        Run(stopped).check_result()
    (stopped / "result.sha256").unlink()
    assert Run(stopped).result["epochs"] == 77


def test_checksums_are_those_of_other_tools(stopped):
    subprocess.run(
        ["sha256sum", "--ignore-missing", "-c", "checkpoints.sha256"], cwd=stopped, check=True
    )


@pytest.mark.tried(
    "Runs", what="more than 99,999 epochs", holds="checkpoints are in the order of their numbers"
)
def test_checkpoints_sort_by_number(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for epoch in (100_000, 99_999, 2):
        checkpoints.path(epoch).touch()
    (tmp_path / "epoch-last.ckpt").touch()
    assert checkpoints.paths() == [checkpoints.path(epoch) for epoch in (2, 99_999, 100_000)]
    checkpoints.drop_old()
    assert checkpoints.paths() == [checkpoints.path(epoch) for epoch in (99_999, 100_000)]


def torn(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.tried(
    "Runs",
    what="a sweep whose study is torn or is something else",
    holds="the same result, or one sentence; finished trials are not trained again",
)
@pytest.mark.parametrize(
    "content",
    [
        "a study" * 200,
        "a study\n" * 200,
        "[]\n[]\n",
        "{}\n",
        '{"op_code": 4, "worker_id": "a"}\n\n',
    ],
)
def test_a_damaged_study_is_one_sentence(tmp_path, content, monkeypatch):
    choices = recipe(1, choices={"optimizer.lr": [0.01, 0.02]})
    result = sweep(choices, tmp_path)
    file = tmp_path / "study.journal"
    whole = file.read_bytes()
    at_epoch(monkeypatch, 0, lambda _: pytest.fail("trained again"))
    torn(file)
    assert sweep(choices, tmp_path) == result
    file.write_text(content)
    with pytest.raises(ValueError, match=r"study\.journal is damaged \(.*\); remove it") as caught:
        sweep(choices, tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"study\.journal is damaged .* choose another --output"):
        sweep(choices, tmp_path, 2)
    file.unlink()
    assert sweep(choices, tmp_path) == result
    file.write_bytes(whole[: whole.index(b"\n") + 5])
    assert sweep(choices, tmp_path) == result


def test_a_study_of_an_earlier_version_is_one_sentence(tmp_path):
    choices = recipe(1, choices={"optimizer.lr": [0.01, 0.02]})
    (tmp_path / "study.db").write_bytes(b"SQLite format 3")
    with pytest.raises(ValueError, match=r"study\.db is a study of an earlier .*; remove it"):
        sweep(choices, tmp_path)
    with pytest.raises(ValueError, match=r"study\.db is a study .*; choose another --output"):
        sweep(choices, tmp_path, 2)


# what a result says


@pytest.mark.tried(
    "Runs",
    what="another number of threads, on which the last bits depend",
    holds="result.json records the number",
)
def test_threads_are_recorded(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        train(recipe(1), tmp_path, progress=False)
    finally:
        torch.set_num_threads(before)
    assert json.loads((tmp_path / "result.json").read_text())["threads"] == 2


@pytest.mark.tried(
    "Runs",
    what="a limit beyond the size of the training set",
    holds="compress and train divide the KL by the same number of examples",
)
def test_compress_and_train_agree_on_the_training_size(reference):
    full = compress_run(reference, [1], samples=2)["rows"]["full"]["metrics"]
    assert full == Run(reference).result["metrics"]
