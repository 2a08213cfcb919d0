"""A full disk costs no good checkpoint, is said in one sentence, and can be resumed from."""

import errno
import os

import pytest
import torch
from typer.testing import CliRunner

from leanbayes.export.onnx import write_onnx
from leanbayes.lab.files import write_bytes, write_text
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.train import train
from leanbayes.saving.files import DiskFullError, naming_full_disk
from leanbayes_cli import app

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

EPOCHS = 5


@pytest.fixture(scope="module")
def recipe():
    return check_recipe(
        {
            "name": "digits-on-a-full-disk",
            "data": {"name": "digits"},
            "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [8]}},
            "posterior": {"kind": "KTied", "rank": 1},
            "prior": {"kind": "Normal", "scale": 0.3},
            "training": {"epochs": EPOCHS, "batch_size": 400},
            "evaluation": {"samples": 2},
        }
    )


@pytest.fixture(scope="module")
def reference(recipe, tmp_path_factory):
    return train(recipe, tmp_path_factory.mktemp("reference"), progress=False)


def fill(path):
    """Let the next write of a file end in the kernel's device that is always full."""
    path.parent.mkdir(parents=True, exist_ok=True)
    neighbor = path.with_name(f".{path.name}.{os.getpid()}.partial")
    neighbor.symlink_to("/dev/full")


def checkpoints(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("file", "kept"),
    [
        ("checkpoints/epoch-00003.ckpt", ["epoch-00001.ckpt", "epoch-00002.ckpt"]),
        ("checkpoints/epoch-00000.ckpt", []),
        ("metrics.csv", ["epoch-00000.ckpt"]),
        ("model.safetensors", ["epoch-00003.ckpt", "epoch-00004.ckpt"]),
        ("result.json", ["epoch-00003.ckpt", "epoch-00004.ckpt"]),
    ],
)
def test_a_full_disk_is_said_and_a_resumed_run_ends_the_same(
    recipe, reference, tmp_path, file, kept
):
    path = tmp_path / file
    fill(path)
    with pytest.raises(DiskFullError) as caught:
        train(recipe, tmp_path, progress=False)
    assert str(caught.value) == f"no space is left in {path.parent} to write {path.name}; free some"
    assert checkpoints(tmp_path) == kept
    for name in kept:
        state = torch.load(tmp_path / "checkpoints" / name, weights_only=True)
        assert state["epoch"] == int(name[6:11])
    again = train(recipe, tmp_path, resume=True, progress=False)
    assert again["metrics"] == reference["metrics"]
    assert again["epochs"] == EPOCHS
    assert not list(tmp_path.rglob("*.partial"))


def test_the_command_says_it_without_a_traceback(recipe, tmp_path):
    file, out = tmp_path / "recipe.yaml", tmp_path / "run"
    file.write_text(recipe.to_yaml(), encoding="utf-8")
    fill(out / "checkpoints" / "epoch-00001.ckpt")
    result = CliRunner().invoke(app(), ["train", str(file), "--output", str(out)])
    assert isinstance(result.exception, SystemExit)
    said = str(result.exception)
    assert said.startswith(f"leanbayes: no space is left in {out}/checkpoints")
    assert "; free some, then go on with: leanbayes" in said
    assert said.endswith("--resume")
    assert "\n" not in said
    assert "Traceback" not in result.output
    assert checkpoints(out) == ["epoch-00000.ckpt"]


def test_a_command_without_resume_advises_none(recipe, reference, tmp_path):
    train(recipe, tmp_path / "run", progress=False)
    page = tmp_path / "report.html"
    fill(page)
    result = CliRunner().invoke(app(), ["report", str(tmp_path / "run"), "-o", str(page)])
    assert str(result.exception) == (
        f"leanbayes: no space is left in {tmp_path} to write report.html; free some, then start "
        "it again"
    )


class _Network:
    """What the package onnx makes, as far as it is written."""

    def ByteSize(self):
        return 100

    def SerializeToString(self):
        return bytes(100)


def test_an_export_names_the_file(tmp_path):
    fill(tmp_path / "m.onnx")
    with pytest.raises(DiskFullError, match=f"no space is left in {tmp_path} to write m.onnx"):
        write_onnx(_Network(), tmp_path / "m.onnx")


def test_an_old_file_survives_a_write_that_does_not_fit(tmp_path):
    path = write_text(tmp_path / "notes.txt", "old")
    fill(path)
    with pytest.raises(OSError, match="no space is left"):
        write_bytes(path, b"new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(("number", "told"), [(errno.EDQUOT, True), (errno.EACCES, False)])
def test_a_quota_counts_as_a_full_disk_and_other_errors_stay(tmp_path, number, told):
    with pytest.raises(OSError, match=r".") as caught, naming_full_disk(tmp_path / "a.txt"):
        raise OSError(number, os.strerror(number))
    assert ("free some" in str(caught.value)) == told
    assert (caught.value.errno == number) != told
