"""Everything in the wheel works without a checkout."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROJECT = Path(__file__).parents[1]

RECIPE = """
name: digits-tiny
data: {name: digits}
architecture: {name: mlp, options: {inputs: 64, hidden: [16]}}
posterior: {kind: KTied, rank: 2}
prior: {kind: Normal, scale: 0.3}
training: {epochs: 30, batch_size: 200}
evaluation: {samples: 2}
"""


def pip(*arguments):
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-index")
    command = [sys.executable, "-m", "pip", *arguments[:1], *options, *map(str, arguments[1:])]
    subprocess.run(command, check=True)


def copy_of_the_project(folder):
    """What a wheel is made of; building it leaves files behind, which a checkout need not have."""
    for package in ("leanbayes", "leanbayes_cli"):
        shutil.copytree(PROJECT / "src" / package, folder / "src" / package)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, folder)
    return folder


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Runs Python where only the wheel and its dependencies are, in an empty folder."""
    folder = tmp_path_factory.mktemp("wheel")
    project = copy_of_the_project(folder / "project")
    pip("wheel", project, "--no-build-isolation", "--wheel-dir", folder)
    (wheel,) = folder.glob("*.whl")
    pip("install", wheel, "--target", folder / "installed")
    here = folder / "empty"
    here.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(folder / "installed"), "OMP_NUM_THREADS": "1"}

    def run(*arguments):
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    for package in ("leanbayes", "leanbayes_cli"):
        used = run("-c", f"import {package}; print({package}.__file__)")
        assert Path(used.strip()).is_relative_to(folder / "installed")
    return run


def test_every_command_works_from_the_wheel(python, tmp_path):
    """In one process: what takes long is to import torch."""
    recipe, inputs = tmp_path / "tiny.yaml", tmp_path / "new.npy"
    recipe.write_text(RECIPE, encoding="utf-8")
    np.save(inputs, np.zeros((2, 1, 8, 8), dtype=np.float32))
    run, page, table = (tmp_path / name for name in ("run", "report.html", "predictions.csv"))
    commands = [
        ["demo", "--quick", "--samples", "1", "--output", tmp_path / "demo"],
        ["data", "list"],
        ["recipes"],
        ["recipes", "k_tied/mnist-mlp-k2", "--show"],
        ["train", recipe, "--set", "training.epochs=1", "--output", run],
        ["evaluate", run, "--samples", "2"],
        ["predict", run, "--input", inputs, "--output", table, "--samples", "2"],
        ["report", run, "-o", page],
    ]
    script = (
        "from leanbayes_cli import app\n"
        "application = app()\n"
        f"for command in {[[str(word) for word in command] for command in commands]}:\n"
        "    assert not application(command, standalone_mode=False), command\n"
    )
    output = python("-c", script)
    for shown in ("rank-1 normal", "fashion-mnist", "variance/mnist-lenet5-weight", "row: MLP on"):
        assert shown in output
    assert (tmp_path / "demo" / "report.html").is_file()
    assert page.is_file()
    assert len(table.read_text(encoding="utf-8").splitlines()) == 3


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_a_page_runs_in_an_empty_folder(python, page):
    """Its Python blocks, and the text of its other blocks up to digits if it shows outputs."""
    text = (PROJECT / page).read_text(encoding="utf-8")
    blocks = dict.fromkeys(("python", ""), "")
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language in blocks:
            blocks[language] += block
    printed = python("-c", blocks["python"])
    assert printed
    if page != "README.md":  # its other block is a difference between two programs
        assert re.sub(r"\d", "", printed).split() == re.sub(r"\d", "", blocks[""]).split()


def test_the_command_itself_starts(python):
    assert "recipes" in python("-m", "leanbayes", "--help")
