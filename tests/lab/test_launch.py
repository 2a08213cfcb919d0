"""Two processes from the command line train what one process trains."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from leanbayes.lab.evaluation import evaluate_run
from leanbayes.lab.launch import Processes, processes
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.recipe_files import parse_yaml
from leanbayes.lab.train import train

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

RECIPE = """
name: digits-without-noise
data: {name: digits}
architecture: {name: mlp, options: {inputs: 64, hidden: [16]}}
posterior: {kind: KTied, rank: 2}
prior: {kind: Normal, scale: 0.3}
estimator: mean
optimizer: {name: sgd, lr: 0.2}
training: {epochs: 4, batch_size: 200, limit: 1000, precision: "64"}
evaluation: {samples: 2}
"""
"""Without noise, in double precision, on batches that two can share, and with the KL counted once,
a step of two processes is that of one."""

BIN = Path(sys.executable).parent
COMMANDS = {
    "devices": ([BIN / "leanbayes"], ["--devices", "2"]),
    "torchrun": ([BIN / "torchrun", "--nproc-per-node=2", "-m", "leanbayes"], []),
}


def start(name, file, folder):
    before, after = COMMANDS[name]
    command = [*before, "train", file, "--output", folder / name, *after]
    alone = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "TORCHELASTIC"))}
    return subprocess.Popen(
        [str(part) for part in command],
        env={**alone, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return train(check_recipe(parse_yaml(RECIPE)), tmp_path_factory.mktemp("one"), progress=False)


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Folders and what was printed, of all commands at once."""
    folder = tmp_path_factory.mktemp("two")
    file = folder / "recipe.yaml"
    file.write_text(RECIPE, encoding="utf-8")
    running = {name: start(name, file, folder) for name in COMMANDS}
    said = {name: process.communicate(timeout=120)[0] for name, process in running.items()}
    for name, process in running.items():
        assert process.returncode == 0, said[name]
    return {name: (folder / name, said[name]) for name in COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
def test_two_processes_end_as_one(alone, together, name):
    folder, _ = together[name]
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert result["epochs"] == alone["epochs"]
    assert result["parameters"] == alone["parameters"]
    assert set(result["metrics"]) == set(alone["metrics"])
    for metric, estimate in alone["metrics"].items():
        assert result["metrics"][metric] == pytest.approx(estimate, rel=1e-5, abs=1e-8), metric
    assert alone["metrics"]["accuracy"]["value"] > 0.8
    assert alone["metrics"]["kl"]["value"] > 0.1


@pytest.mark.parametrize("name", COMMANDS)
def test_one_result_is_written_and_printed(together, name):
    folder, said = together[name]
    assert said.count("negative_elbo") == 1
    assert len(list(folder.rglob("result.json"))) == 1
    assert len((folder / "metrics.csv").read_text().splitlines()) == 5
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    again = evaluate_run(folder, samples=2)
    for metric, estimate in result["metrics"].items():
        assert again[metric] == pytest.approx(estimate, rel=1e-5, abs=1e-6), metric


TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "6"}
SLURM = {"SLURM_NTASKS": "8", "SLURM_NNODES": "2", "SLURM_JOB_NAME": "train"}


@pytest.mark.parametrize(
    ("asked", "started", "expected"),
    [
        (None, {}, (1, 1)),
        (3, {}, (3, 1)),
        (None, TORCHRUN, (2, 3)),
        (2, TORCHRUN, (2, 3)),
        (None, SLURM, (4, 2)),
        (4, SLURM, (4, 2)),
        (None, {"SLURM_NTASKS": "1"}, (1, 1)),
        (2, {**SLURM, "SLURM_JOB_NAME": "bash"}, (2, 1)),
    ],
)
def test_processes_are_those_that_were_started(asked, started, expected):
    assert processes(asked, started) == Processes(*expected)


@pytest.mark.parametrize(("starter", "started"), [("torchrun", TORCHRUN), ("SLURM", SLURM)])
def test_other_numbers_than_those_started_are_refused(starter, started):
    with pytest.raises(ValueError, match=rf"{starter} started \d processes.* leave --devices out"):
        processes(7, started)
