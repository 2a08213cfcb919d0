"""What is kept of a finished run."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from research.__main__ import app
from research.publishing.archive import archive

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")


def test_an_archived_run_is_its_result_and_its_curves(runs, results):
    kept = json.loads((results / "mnist-mlp-full-seed1.json").read_text())
    history = kept.pop("history")
    assert kept == json.loads((runs / "1" / "result.json").read_text())
    assert history["epoch"] == [0, 1, 2]
    assert all(len(column) == 3 for column in history.values())


def test_stops_and_changed_settings_stay_beside_the_curves(runs, tmp_path):
    shutil.copytree(runs / "1", tmp_path / "run")
    result = json.loads((runs / "1" / "result.json").read_text())
    incidents = {"stopped": [{"epoch": 1}], "changed": [{"epoch": 1, "optimizer.lr": 0.1}]}
    (tmp_path / "run" / "result.json").write_text(json.dumps({**result, "history": incidents}))
    (tmp_path / "run" / "result.sha256").unlink()
    kept = json.loads(archive(tmp_path / "run", tmp_path).read_text())
    assert kept["incidents"] == incidents
    assert kept["history"]["epoch"] == [0, 1, 2]


def test_a_run_that_is_not_finished_is_not_archived(runs, tmp_path):
    (tmp_path / "recipe.yaml").write_bytes((runs / "1" / "recipe.yaml").read_bytes())
    with pytest.raises(FileNotFoundError, match="no finished run"):
        archive(tmp_path, tmp_path / "results")


def test_the_command_archives(runs, tmp_path):
    done = CliRunner().invoke(app, ["archive", str(runs / "1"), "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "mnist-mlp-full-seed1.json").is_file()
