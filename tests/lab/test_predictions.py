"""Predictions for files of new inputs, and damaged images."""

import csv
import math

import numpy as np
import pytest
import torch

import leanbayes as lb
from leanbayes.lab.data import load_dataset
from leanbayes.lab.predictions import predict_file
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.runs import Run
from leanbayes.lab.train import train

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")


def run_of(folder, **changes):
    values = {
        "name": "small",
        "data": {"name": "digits"},
        "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [16]}},
        "posterior": {"kind": "KTied", "rank": 2},
        "prior": {"kind": "Normal", "scale": 0.3},
        "optimizer": {"lr": 0.02},
        "training": {"epochs": 4, "batch_size": 200},
        "evaluation": {"samples": 5, "batch_size": 100},
    }
    train(check_recipe({**values, **changes}), folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    """A run on a user's table with one target far from zero, and new inputs."""
    folder = tmp_path_factory.mktemp("regression")
    rng = np.random.default_rng(0)
    x = rng.normal(5.0, 3.0, (300, 2))
    y = 100 + 20 * x[:, 0] + rng.normal(0, 4, 300)
    np.savetxt(folder / "train.csv", np.column_stack([x, y]), delimiter=",")
    run = run_of(
        folder / "run",
        data={"name": str(folder / "train.csv"), "options": {"task": "regression"}},
        architecture={"name": "mlp", "options": {"inputs": 2, "hidden": [8], "outputs": 1}},
        likelihood={"kind": "gaussian", "scale": 0.5, "noise": "learned"},
        training={"epochs": 30, "batch_size": 60},
    )
    new = np.array([[5.0, 5.0], [8.0, 5.0], [2.0, 2.0]])
    np.savetxt(folder / "new.csv", new, delimiter=",", header="a,b", comments="")
    return run, folder / "new.csv", new


def table_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def raw_digits(count=20):
    return load_dataset("digits").test.stored[:count].numpy()


def right_labels(rows):
    y = load_dataset("digits").test.y[: len(rows)].tolist()
    return sum(row["label"] == str(label) for row, label in zip(rows, y, strict=True))


def write(folder, kind, pixels):
    flat = pixels.reshape(len(pixels), -1)
    path = folder / f"new.{kind}"
    if kind == "csv":
        np.savetxt(path, flat, delimiter=",", fmt="%d")
    elif kind == "npy":
        np.save(path, pixels)
    else:
        np.savez(path, x=pixels, other=flat)
    return path


@pytest.mark.parametrize("kind", ["csv", "npy", "npz"])
def test_classes_are_those_of_the_scaled_inputs(digits_run, tmp_path, kind):
    source = write(tmp_path, kind, raw_digits())
    rows = table_of(predict_file(digits_run, source, tmp_path / "out.csv", samples=7))
    model, _ = Run(digits_run).load()
    expected = lb.predict(
        model, load_dataset("digits").test.x[:20], samples=7, batch_size=100, seed=42
    )
    assert list(rows[0]) == [
        "label",
        *(f"p_{i}" for i in range(10)),
        "entropy",
        "mutual_information",
    ]
    probs = torch.tensor([[float(row[f"p_{i}"]) for i in range(10)] for row in rows])
    torch.testing.assert_close(probs, expected.probs, rtol=1e-4, atol=1e-6)
    assert [int(row["label"]) for row in rows] == probs.argmax(1).tolist()
    entropy = torch.tensor([float(row["entropy"]) for row in rows])
    torch.testing.assert_close(entropy, -(probs * probs.log()).sum(1), rtol=1e-3, atol=1e-5)
    assert all(0 <= float(row["mutual_information"]) <= float(row["entropy"]) for row in rows)
    assert right_labels(rows) >= 12


def test_a_plain_network_predicts(tmp_path):
    run = run_of(tmp_path / "run", posterior=None, prior=None)
    source = write(tmp_path, "npy", raw_digits(50))
    rows = table_of(predict_file(run, source, tmp_path / "out.csv", samples=2))
    assert right_labels(rows) >= 35
    assert all(float(row["mutual_information"]) < 1e-5 for row in rows)


def test_numbers_come_in_the_units_of_the_targets(regression, tmp_path):
    run, source, new = regression
    rows = table_of(predict_file(run, source, tmp_path / "out.csv"))
    assert list(rows[0]) == ["mean", "aleatoric", "epistemic", "q05", "q50", "q95"]
    means = np.array([float(row["mean"]) for row in rows])
    np.testing.assert_allclose(means, 100 + 20 * new[:, 0], atol=25)
    for row in rows:
        values = {name: float(text) for name, text in row.items()}
        assert values["q05"] < values["q50"] < values["q95"]
        width = 2 * 1.6449 * math.sqrt(values["aleatoric"] + values["epistemic"])
        assert values["q95"] - values["q05"] == pytest.approx(width, rel=0.15)  # nearly normal
    _, likelihood = Run(run).load()
    stretch = float(
        load_dataset(str(source.parent / "train.csv"), task="regression").target_scaling.scale
    )
    learned = float(likelihood.log_scale.detach().exp())
    assert learned != pytest.approx(0.5)
    assert float(rows[0]["aleatoric"]) == pytest.approx((learned * stretch) ** 2, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("absent.csv", None, "does not exist"),
        ("new.txt", "1,2\n", r"kind of input file '\.txt' is unknown"),
        ("new.csv", "1,2,3\n", "has 3 columns, and the run was trained on 2 columns"),
        ("new.csv", "1,2\n1\n", "has 1 values in row 2, not 2"),
        ("new.csv", "1,2\n1,nan\n", "has 'nan' in column '.*', example 2; inputs are finite"),
        ("new.csv", "1,2\n1,red\n", "has 'red' in column '.*', example 2; inputs are finite"),
        ("new.csv", "a,b\n", "has no rows to predict"),
        ("new.npy", "rubbish", "truncated or damaged"),
        ("new.npz", "rubbish", "truncated or damaged"),
    ],
)
def test_bad_files_give_one_sentence(regression, tmp_path, name, text, sentence):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=sentence) as caught:
        predict_file(regression[0], tmp_path / name, tmp_path / "out.csv", samples=2)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.zeros((2, 3, 4)), r"has shape \(2, 3, 4\)"),
        (np.array([["a", "b"]]), "give numbers, one example per row"),
        (np.array([[1.0, np.inf]]), "row 1 that is not a finite number"),
        (np.zeros(2), "one example per row"),
    ],
)
def test_bad_arrays_give_one_sentence(regression, tmp_path, array, sentence):
    np.save(tmp_path / "new.npy", array)
    with pytest.raises(ValueError, match=sentence):
        predict_file(regression[0], tmp_path / "new.npy", tmp_path / "out.csv", samples=2)


def test_a_folder_without_a_result_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no finished run; train or resume"):
        predict_file(tmp_path, tmp_path / "new.csv", tmp_path / "out.csv")
