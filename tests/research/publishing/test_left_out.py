"""Trainings that were left out are listed with what they would take."""

import json

import pytest

from leanbayes.lab.recipe_files import read_recipe
from research.papers import PAPERS
from research.publishing.left_out import left_out, left_out_table
from research.publishing.provenance_table import provenance_table

HOUR = 3600.0


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """Write one run of a recipe of the matrix-normal paper, with some settings changed."""
    monkeypatch.setattr(type(PAPERS["matrix_normal"]), "results", tmp_path)

    def write(name, seconds, **training):
        values = read_recipe(f"matrix_normal/{name}").model_dump(mode="json")
        values["training"] |= training
        run = {"seed": values["seed"], "seconds": seconds, "recipe": values, "revision": "a1"}
        (tmp_path / f"{name}-seed{values['seed']}.json").write_text(json.dumps(run))

    return write


def rows():
    return {row.recipe.partition("/")[2]: row for row in left_out(PAPERS["matrix_normal"])}


def test_hours_are_in_proportion_to_epochs_and_examples(archive):
    archive("fashion-mnist-cnn-mn", HOUR, epochs=20, limit=None)
    archive("fashion-mnist-cnn-diag", HOUR, epochs=200, limit=6000)
    found = rows()
    assert found["fashion-mnist-cnn-mn"].hours == pytest.approx(10.0)
    validation = read_recipe("matrix_normal/fashion-mnist-cnn-diag").data.options["validation"]
    assert found["fashion-mnist-cnn-diag"].hours == pytest.approx((60_000 - validation) / 6000)
    assert found["fashion-mnist-cnn-diag"].ran == "200 epochs of 6,000 examples"
    assert found["fashion-mnist-cnn-diag"].seeds == 1


def test_a_recipe_that_ran_as_published_is_not_listed(archive):
    archive("fashion-mnist-cnn-mn", HOUR)
    assert "fashion-mnist-cnn-mn" not in rows()


def test_what_was_not_run_has_no_hours(archive):
    assert rows()["mnist-mlp-mn"].hours is None
    assert "| matrix_normal/mnist-mlp-mn | not run | 200 epochs | not measured | 0 |" in (
        left_out_table([PAPERS["matrix_normal"]])
    )


def test_files_are_counted_by_what_they_record(archive, tmp_path):
    archive("fashion-mnist-cnn-mn", HOUR)
    (tmp_path / "with_tree.json").write_text(
        json.dumps({"parts": [{"revision": "a", "tree": "b"}]})
    )
    (tmp_path / "without.json").write_text(json.dumps({"revision": None}))
    assert provenance_table([PAPERS["matrix_normal"]]).endswith("| 3 | 1 | 1 | 1 |")
