"""A data set or a network of one's own: one function, which recipes then know by its name."""

import numpy as np
import pytest
import torch

from leanbayes.lab import data
from leanbayes.lab.architectures import ARCHITECTURES, build, register_architecture
from leanbayes.lab.architectures.dense import mlp
from leanbayes.lab.data import Dataset, Examples, register_dataset
from leanbayes.lab.data.files import File, Form
from leanbayes.lab.data.sources import SOURCES
from leanbayes.lab.from_recipe import build_model, load_data
from leanbayes.lab.recipe import check_recipe

FACTS = {"task": "regression", "license": "CC0", "source": "made up"}


@pytest.fixture
def forget():
    yield
    for name in ("line", "numbers"):
        if name in SOURCES:
            SOURCES.unregister(name)


def define(**changes):
    @register_dataset("line", **{**FACTS, **changes})
    def line(*, points=10):
        x = torch.linspace(-1, 1, points)[:, None]
        return Dataset("", "regression", Examples(x, 2 * x), Examples(x, 2 * x))

    return line


def test_a_function_is_a_data_set(forget):
    define()
    dataset = data.load_dataset("line", points=7)
    assert (len(dataset.train), dataset.name, dataset.task) == (7, "line", "regression")
    assert (dataset.license, dataset.source) == ("CC0", "made up")
    (entry,) = [entry for entry in data.listing(checksums=True) if entry.name == "line"]
    assert (entry.where, entry.size, entry.state) == (None, 0, "embedded")
    assert data.check("line") == ()
    assert data.fetch("line") is None
    with pytest.raises(ValueError, match="option of line 'pionts' is unknown; did you mean"):
        data.load_dataset("line", pionts=3)


def test_a_definition_may_run_again_and_a_name_is_taken_once(forget):
    define()
    again = define()
    assert SOURCES["line"].build is again
    with pytest.raises(ValueError, match="there is a data set 'line' already"):
        define(license="MIT")


def test_a_function_with_files_gets_their_content(forget, tmp_path, monkeypatch):
    monkeypatch.setenv("LEANBAYES_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    form = Form((File("numbers.txt"),), lambda paths: np.loadtxt(paths[0]), ("numbers",))

    @register_dataset("numbers", **FACTS, forms=(form,))
    def numbers(content, *, last=1):
        rows = torch.from_numpy(content).float()[:, None]
        return Dataset("", "regression", Examples(rows[:-last]), Examples(rows[-last:]))

    with pytest.raises(FileNotFoundError, match="numbers was not found in"):
        data.load_dataset("numbers", download=False)
    (tmp_path / "numbers").mkdir()
    (tmp_path / "numbers" / "numbers.txt").write_text("1\n2\n3\n")
    assert data.load_dataset("numbers", last=2).test.x.tolist() == [[2.0], [3.0]]
    assert [state.state for state in data.check("numbers")] == ["unknown"]


def test_a_recipe_names_what_others_define(forget):
    define()

    @register_architecture("line")
    def line(inputs=1):
        return mlp(inputs=inputs, hidden=(), outputs=1)

    values = {
        "name": "own",
        "data": {"name": "line", "options": {"points": 5}},
        "architecture": {"name": "line"},
        "likelihood": {"kind": "gaussian"},
        "training": {"epochs": 1, "batch_size": 5},
    }
    try:
        recipe = check_recipe(values)
        assert build_model(recipe)(load_data(recipe).train.x).shape == (5, 1)
    finally:
        ARCHITECTURES.unregister("line")
    with pytest.raises(ValueError, match="architecture 'line' is unknown"):
        build("line")
