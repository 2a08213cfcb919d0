"""One's own table from ``new`` to ``predict`` and ``export``, and tables that cannot be learned."""

import csv
import json
import random

import numpy as np
import pytest
from torch import nn
from typer.testing import CliRunner

import leanbayes as lb
from leanbayes.lab.from_recipe import load_data
from leanbayes.lab.recipe_files import read_recipe
from leanbayes_cli import app

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

NAMES = ["Größe, m²", "color: door", "year #1", "country", "note", "price (k€)"]


def run(*arguments):
    return CliRunner().invoke(app(), [str(a) for a in arguments], env={"COLUMNS": "120"})


def write(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


def houses(count, seed=0):
    """Odd names, text, a constant column, free text, and sizes that are missing."""
    draw = random.Random(seed)
    rows = [NAMES]
    for number in range(count):
        size, color = draw.uniform(30, 200), draw.choice(["red", "blue", "sea green"])
        price = 1000 + 30 * size + 400 * (color == "red") + draw.gauss(0, 100)
        cell = "NA" if draw.random() < 0.1 else f"{size:.1f}"
        rows.append([cell, color, draw.randint(1900, 2020), "DE", f"house {number}", price])
    return rows


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A table, its recipe, a finished run, and what ``new`` said."""
    folder = tmp_path_factory.mktemp("own")
    table = write(folder / "my houses.csv", houses(150))
    recipe, out = folder / "houses.yaml", folder / "run"
    said = run("new", table, "--output", recipe)
    assert said.exit_code == 0, said.output
    result = run("train", recipe, "--output", out, "--set", "training.epochs=150")
    assert result.exit_code == 0, result.output
    return table, recipe, out, said.output


def test_new_says_what_the_columns_are(trained):
    told = trained[3]
    assert "150 rows; the target 'price (k€)' is a number, from 3 columns (6 numbers)." in told
    assert "Categories are 'color: door'." in told
    assert "never vary: 'country'" in told
    assert "many different texts: 'note'" in told
    assert "Numbers are missing in 'Größe, m²'" in told
    assert "Next: leanbayes train" in told


def test_new_writes_sizes_and_likelihood(trained):
    recipe = read_recipe(trained[1])
    assert recipe.name == "my-houses"
    assert recipe.architecture.options["inputs"] == 6
    assert recipe.likelihood.kind == "gaussian"
    net = nn.Sequential(nn.Linear(6, 50), nn.Linear(50, 1))
    (layer, _) = lb.plan(net).layers
    assert (recipe.posterior, recipe.prior) == (layer.choice.posterior, layer.choice.prior)
    weight = lb.training.recommended_kl_weight(lb.convert(net), len(load_data(recipe).train))
    assert recipe.kl.make()(10**9) == pytest.approx(weight)
    assert recipe.learning_rate(5.0, 10) == pytest.approx(0.5)
    dataset = load_data(recipe)
    parts = [part for column in dataset.columns for part in column.parts]
    colors = [f"color: door={name}" for name in ("blue", "red", "sea green")]
    assert parts == ["Größe, m²", "Größe, m² is missing", *colors, "year #1"]
    known = [float(row[0]) for row in houses(150)[1:] if row[0] != "NA"]
    assert dataset.columns[0].fill == pytest.approx(np.mean(known), rel=0.1)


def test_predictions_are_in_the_units_of_the_table(trained, tmp_path):
    rows = houses(60, seed=1)
    shuffled = [[row[i] for i in (3, 1, 5, 0, 2)] for row in rows]  # by name, in any order
    table = write(tmp_path / "new.csv", shuffled)
    result = run("predict", trained[2], "--input", table, "--output", tmp_path / "p.csv")
    assert result.exit_code == 0, result.output
    with (tmp_path / "p.csv").open(encoding="utf-8") as file:
        said = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
    prices = np.array([row[5] for row in rows[1:]], float)
    means = np.array([row["mean"] for row in said])
    assert np.abs(means - prices).mean() < 0.5 * np.abs(prices - prices.mean()).mean()
    held = [row["q05"] <= price <= row["q95"] for row, price in zip(said, prices, strict=True)]
    assert np.mean(held) > 0.6
    unsure = np.array([row["epistemic"] for row in said])
    missing = np.array([row[0] == "NA" for row in rows[1:]])
    assert unsure[missing].mean() > unsure[~missing].mean()


def test_another_table_is_judged_as_the_first(trained, tmp_path):
    """Of the categories one is absent, and columns are in another order."""
    rows = [row for row in houses(200, seed=2) if row[1] != "blue"]
    table = write(tmp_path / "other.csv", [[row[i] for i in (5, 2, 1, 0)] for row in rows])
    result = run("evaluate", trained[2], "--data", table, "--json", tmp_path / "m.json")
    assert result.exit_code == 0, result.output
    metrics = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))
    assert metrics["squared_error"]["value"] < 0.5  # of a variance of about one


def test_a_column_that_is_gone_is_named(trained, tmp_path):
    table = write(tmp_path / "new.csv", [row[1:] for row in houses(5)])
    result = run("predict", trained[2], "--input", table, "--output", tmp_path / "p.csv")
    assert result.exit_code != 0
    assert "has no column 'Größe, m²', which the run was trained on" in str(result.exception)


def test_export_takes_raw_numbers_and_answers_in_units(trained, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    file = tmp_path / "m.onnx"
    result = run("export", trained[2], "-o", file, "--samples", 200)
    assert result.exit_code == 0, result.output
    running = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
    notes = running.get_modelmeta().custom_metadata_map
    inputs, columns = json.loads(notes["inputs"]), json.loads(notes["columns"])
    assert len(inputs) == 6
    assert columns[1]["levels"] == ["blue", "red", "sea green"]
    x = np.array([[80.0, 0, 0, 1, 0, 1980], [150.0, 0, 1, 0, 0, 1950]], np.float32)
    names = [value.name for value in running.get_outputs()]
    said = dict(zip(names, running.run(None, {"x": x}), strict=True))
    rows = [[80.0, "red", 1980], [150.0, "blue", 1950]]
    table = write(tmp_path / "new.csv", [NAMES[:3], *rows])
    run("predict", trained[2], "--input", table, "--output", tmp_path / "p.csv", "--samples", 2000)
    with (tmp_path / "p.csv").open(encoding="utf-8") as written:
        wanted = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(written)]
    for i, row in enumerate(wanted):
        std = np.sqrt(row["aleatoric"] + row["epistemic"])
        assert said["mean"][i, 0] == pytest.approx(row["mean"], abs=0.4 * std)
        assert said["standard_deviation"][i, 0] == pytest.approx(std, rel=0.3)
        assert said["aleatoric"][i, 0] == pytest.approx(row["aleatoric"], rel=1e-3)
        assert said["quantiles"][2, i, 0] == pytest.approx(row["q95"], abs=0.6 * std)


def test_text_classes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    rows = [["kind", "a", "b"]]
    for _ in range(60):
        kind = draw.choice(["cat, tabby", "dog", "=horse"])
        place = {"cat, tabby": -2, "dog": 0, "=horse": 2}[kind]
        rows.append([kind, place + draw.gauss(0, 0.3), draw.gauss(0, 1)])
    write(tmp_path / "pets.csv", rows)
    said = run("new", "pets.csv", "--target", "kind")
    assert "the target 'kind' is 3 classes, from 2 columns." in said.output
    assert read_recipe("pets.yaml").architecture.options["outputs"] == 3
    result = run("train", "pets.yaml", "--set", "training.epochs=60")
    assert result.exit_code == 0, result.output
    result = run("predict", "runs/pets", "--input", "pets.csv", "--output", "p.csv")
    assert result.exit_code == 0, result.output
    with open("p.csv", encoding="utf-8") as file:
        labels = [row["label"].removeprefix("'") for row in csv.DictReader(file)]
    assert np.mean([a == row[0] for a, row in zip(labels, rows[1:], strict=True)]) > 0.8


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_a_table_between_semicolons_or_tabs(tmp_path, monkeypatch, delimiter):
    monkeypatch.chdir(tmp_path)
    lines = ["a,b,y", *(f"{i},{i % 7},{i * 1.5}" for i in range(40))]
    (tmp_path / "t.csv").write_text("\n".join(lines).replace(",", delimiter))
    result = run("new", "t.csv")
    assert result.exit_code == 0, result.output
    assert "from 2 columns" in result.output


BAD = {
    "an empty file": ("", "is empty"),
    "names alone": ("a,b\n", "no column to learn from"),
    "a truncated line": ("a,b\n1,2\n3,4\n5\n", "has 1 values in row 4, not 2"),
    "one class": ("a,b\n1,x\n2,x\n3,x\n4,x\n", "has the one class 'x', and there is nothing"),
    "one column": ("a\n1\n2\n3\n", "has one column; inputs and a target need two"),
    "constant inputs": ("a,b\n1,1\n1,2\n1,4\n", "no column to learn from: 'a' never vary"),
    "no target": ("a,b\n1,0.5\n2,\n3,1.5\n", "targets are never missing; delete these"),
    "two rows": ("a,b\n1,0.5\n2,1.5\n", "has 2 rows; train and test need at least three"),
    "a number of bytes": ("a,b\n\0,1\n", "has NUL bytes, so it is not a text table"),
}


@pytest.mark.parametrize("case", BAD)
def test_tables_that_cannot_be_learned(case, tmp_path, monkeypatch):
    text, sentence = BAD[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.csv").write_text(text, encoding="utf-8")
    result = run("new", "bad.csv")
    assert result.exit_code != 0
    assert isinstance(result.exception, SystemExit)
    assert sentence in str(result.exception)
    assert "\n" not in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.csv"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("absent.csv",), "absent.csv does not exist"),
        (("good.txt",), "is not a .csv file"),
        (("good.csv", "--target", "prise"), "did you mean 'price'?"),
        (("good.csv", "--output", "good.txt"), "exists already; delete it"),
    ],
)
def test_mistakes_in_new_get_one_sentence(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("good.csv", "good.txt"):
        write(tmp_path / name, [["size", "price"], *([i, i + 0.5] for i in range(40))])
    result = run("new", *arguments)
    assert result.exit_code != 0
    assert sentence in str(result.exception)
    assert not (tmp_path / "good.yaml").exists()


def test_the_same_recipe_may_be_written_again(tmp_path, monkeypatch):
    """As after a call that was stopped between writing it and saying so."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "line.csv", [["a", "b"], *([i, 2 * i + 0.5] for i in range(40))])
    assert run("new", "line.csv").exit_code == run("new", "line.csv").exit_code == 0
    write(tmp_path / "line.csv", [["a", "b"], *([i, 2 * i + 0.5] for i in range(400))])
    assert "exists already" in str(run("new", "line.csv").exception)


def test_a_failed_start_does_not_block_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [["a", "b"], *([i, 2 * i + 0.5] for i in range(40))]
    write(tmp_path / "line.csv", rows)
    assert run("new", "line.csv").exit_code == 0
    wrong = run("train", "line.yaml", "--set", "architecture.options.inputs=7")
    assert wrong.exit_code != 0
    (tmp_path / "line.csv").rename(tmp_path / "moved.csv")
    assert "does not exist" in str(run("train", "line.yaml").exception)
    (tmp_path / "moved.csv").rename(tmp_path / "line.csv")
    right = run("train", "line.yaml", "--set", "training.epochs=2")
    assert right.exit_code == 0, right.output
