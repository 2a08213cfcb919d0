"""Names, labels, seeds and files as people and machines really hand them in."""

import io
import json
import shutil
import sys

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import leanbayes as lb
from leanbayes.lab.architectures import ARCHITECTURES, Chain
from leanbayes.lab.console import PlainConsole
from leanbayes.lab.data import Dataset, Examples, load_dataset
from leanbayes.lab.data.sources import SOURCES, Source, register_dataset
from leanbayes.lab.path_names import path_name
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.recipe_names import recipe_names
from leanbayes.lab.report import write_report
from leanbayes.lab.result_files import write_result
from leanbayes.lab.runs import Run
from leanbayes.lab.tables import read_table, write_table
from leanbayes.lab.train import train
from leanbayes_cli import app
from research.__main__ import main as research
from research.publishing.archive import archive
from research.publishing.results import read_compressed

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

SCRIPT, FORMULA, MARKUP, ESCAPE = "<script>x</script>", "=cmd|'x'!A1", "[/red]", "\x1b[31mred"


def command(*arguments):
    """What a command says, all of it, and its exit code; a traceback fails the test."""
    result = CliRunner().invoke(app(), [str(a) for a in arguments], env={"COLUMNS": "300"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    said = result.output
    assert "Traceback" not in said
    return result.exit_code, said


def values(data="table.csv", **changes):
    return {
        "name": "clumsy",
        "data": {"name": str(data), "options": {"test": 0.25, "validation": 0.25}},
        "architecture": {"name": "mlp", "options": {"inputs": 2, "hidden": [3], "outputs": 4}},
        "posterior": "MeanField",
        "prior": {"kind": "Normal", "scale": 1.0},
        "training": {"epochs": 1, "batch_size": 8},
        "evaluation": {"samples": 2},
        **changes,
    }


def table(path, labels):
    lines = [f"{i},{i % 5},{label}" for i, label in enumerate(labels)]
    path.write_text("\n".join(["a,b,y", *lines]) + "\n", encoding="utf-8")
    return path


def recipe_file(path, **changes):
    path.write_text(json.dumps(values(**changes)), encoding="utf-8")  # JSON is YAML
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run whose classes are called what nobody should call a class."""
    folder = tmp_path_factory.mktemp("clumsy")
    data = table(folder / "table.csv", [SCRIPT, FORMULA, MARKUP, ESCAPE] * 10)
    published = {"paper": SCRIPT, "row": SCRIPT, "values": {"nll": 1.0}, "note": SCRIPT}
    recipe = check_recipe(values(data, published=published, cut=SCRIPT))
    train(recipe, folder / "run", progress=False)
    return folder / "run"


@pytest.fixture
def copied(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "copied")


# names

NAMES = ["../../x", "/tmp/x", "a/b", "a\\b", "..", ".", "", " ", "-x", ".x", "a b", "a\n", "C:x"]
NAMES += ["[/red]", "\x1b[31m", "con", "NUL.txt", "lpt1", "x.", "x" * 300]


@pytest.mark.tried(
    "Input", what="a recipe called ../../x", holds="refused: a name begins with a letter or digit"
)
@pytest.mark.parametrize("name", NAMES)
def test_a_name_cannot_be_a_path(name):
    with pytest.raises(ValueError, match="file or folder") as caught:
        check_recipe(values(name=name))
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="file or folder"):
        register_dataset(name, task="regression", license="", source="")(lambda: None)


def test_names_that_are_good():
    for name in ("mnist-mlp-k2", "a", "A_1.b", "überraschung", "con-x", "x" * 200):
        assert path_name(name) == name
    assert all(path_name(name.split("/")[1]) for name in recipe_names())


@pytest.mark.tried(
    "Input", what="train and sweep with --set name=../../x", holds="refused; nothing is written"
)
@pytest.mark.parametrize("which", ["train", "sweep"])
def test_a_name_given_to_a_command_leads_nowhere(tmp_path, monkeypatch, which):
    here = tmp_path / "a" / "b" / "c"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    recipe = recipe_file(here / "r.yaml")
    code, said = command(which, recipe, "--set", "name=../../x")
    assert code == 1
    assert "r.yaml: name: '../../x' cannot name a file or folder" in said
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "a", here.parent, here, recipe]


@pytest.mark.tried(
    "Input", what="archiving a run under the label ../../x", holds="refused; nothing is written"
)
def test_a_label_of_the_archive_leads_nowhere(finished, tmp_path):
    with pytest.raises(ValueError, match="cannot name a file or folder"):
        archive(finished, tmp_path / "out", "../../x")
    assert not list(tmp_path.iterdir())
    assert archive(finished, tmp_path, "cpu").name == "clumsy-cpu-seed42.json"


# what is printed


@pytest.mark.parametrize("text", [MARKUP, "[bold]x[/]", ":smile:", "[link=x]y"])
def test_a_console_shows_markup_as_it_is(text):
    from rich.table import Table

    console = PlainConsole(file=io.StringIO(), width=60)
    shown = Table(text, title=text)
    shown.add_row(text)
    console.print(text)
    console.print(shown)
    assert console.file.getvalue().count(text) == 4


def test_a_console_writes_out_what_a_terminal_would_obey():
    console = PlainConsole(file=io.StringIO(), width=60)
    console.print(f"{ESCAPE} \x9b31m \u202e \udcff \a ü")
    assert console.file.getvalue() == "\\x1b[31mred \\x9b31m \\u202e \\udcff \\x07 ü\n"


def test_a_console_without_unicode():
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    PlainConsole(file=plain).print("a ± b")
    plain.flush()
    assert plain.buffer.getvalue() == b"a \\xb1 b\n"


@pytest.mark.tried(
    "Input",
    what="a run folder called [/red], and one with escape codes",
    holds="shown as it is after training, in every command",
)
@pytest.mark.parametrize("name", [MARKUP, ESCAPE])
def test_paths_are_shown_as_they_are(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    recipe = recipe_file(tmp_path / "r.yaml", data=table(tmp_path / "t.csv", "abab" * 5))
    shown = name.replace("\x1b", "\\x1b")
    code, said = command("train", recipe, "--output", name)
    assert (code, f"clumsy: {shown}" in said) == (0, True)
    np.save("x.npy", np.zeros((2, 2)))
    for arguments in (
        ("evaluate", name, "--samples", 2),
        ("predict", name, "--input", "x.npy", "--output", f"{name}.csv", "--samples", 2),
    ):
        code, said = command(*arguments)
        assert (code, shown in said, "\x1b" in said) == (0, True, False)
    code, said = command("evaluate", f"no{name}")
    assert (code, shown in said, "\x1b" in said) == (1, True, False)


@pytest.mark.tried(
    "Input", what="<script> in labels, notes and rows", holds="text on the page, never an element"
)
def test_a_page_escapes_everything(finished, tmp_path):
    page = write_report([finished], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert page.count("&lt;script&gt;x&lt;/script&gt;") >= 5


# labels in tables


@pytest.mark.tried(
    "Input",
    what="labels that begin with =, +, -, @ or a tab, in a table of predictions",
    holds="a quote before them keeps a spreadsheet from running them, and is taken away on reading",
)
def test_no_cell_of_a_table_is_a_formula(tmp_path):
    labels = [FORMULA, "+a", "-b", "@c", "\td", "\re", "'=f", "''+g", "'h", "－i", "plain", ""]
    numbers = ["-1", "+1.5", "-inf"]
    path = write_table(tmp_path / "t.csv", {"=x": [*labels, *numbers], "n": [-1.0] * 15})
    cells = [line.split(",")[0] for line in path.read_text(encoding="utf-8").split("\n")]
    assert not [c for c in cells if c[:1] in "=+@\t－" and c not in ("", *numbers)]
    read = read_table(path)
    assert list(read["=x"]) == [*labels, *numbers]
    assert set(read["n"]) == {"-1.0"}


def test_predicted_labels_are_no_formulas(finished, tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(0, 30, (60, 2)))
    output = tmp_path / "p.csv"
    assert command("predict", finished, "--input", tmp_path / "x.npy", "--output", output)[0] == 0
    read = read_table(output)
    assert set(read["label"]) <= {SCRIPT, FORMULA, MARKUP, ESCAPE}
    assert f"p_{FORMULA}" in read.names
    code, said = command("predict", finished, "--input", output, "--output", tmp_path / "again.csv")
    assert (code, "and the run was trained on 2 columns" in said) == (1, True)


def test_an_old_or_cut_table_of_predictions_still_reads(tmp_path):
    path = tmp_path / "old.csv"
    path.write_text("label,p_a\n=1+1,0.5\n", encoding="utf-8")
    assert read_table(path)["label"] == ("=1+1",)
    path.write_text("label,p_a\na,0.5\nb", encoding="utf-8")
    with pytest.raises(ValueError, match="has 1 values in row 3, not 2"):
        read_table(path)


def test_large_numbers_keep_apart_as_classes(tmp_path):
    data = table(tmp_path / "t.csv", ["1234567", "1234568"] * 10)
    assert load_dataset(str(data)).classes == ("1234567", "1234568")


# tables that cannot be used

FOUR = "1,2,a\n3,4,b\n5,6,a\n7,8,b\n"
TABLES = {
    "ragged rows": (b"a,b,y\n1,2,3\n1,2\n", "has 2 values in row 3, not 3"),
    "an empty file": (b"", "t.csv is empty"),
    "a mark of UTF-8 alone": (b"\xef\xbb\xbf", "t.csv is empty"),
    "only a header": (b"a,b,y\n", "has 0 rows"),
    "the target's name twice": (b"y,b,y\n" + FOUR.encode(), "has 2 columns 'y'"),
    "text among inputs": (b"a,b,y\n1,x,0\n1,2,1\n1,2,0\n", "has 'x' in column 'b', example 1"),
    "an input too large": (b"a,b,y\n1,1e39,0\n1,2,1\n1,2,0\n", "'1e39' in column 'b', example 1"),
    "a missing target": (b"a,b,y\n1,2,\n3,4,b\n5,6,c\n", "has '' in example 1; targets are"),
    "NaN for a class": (b"a,b,y\n1,2,cat\n3,4,nan\n5,6,dog\n", "has 'nan' in example 2"),
    "an infinite label": (b"a,b,y\n1,2,0\n3,4,1\n5,6,inf\n", "has 'inf' in example 3"),
    "one class": (b"a,b,y\n1,2,cat\n3,4,cat\n5,6,cat\n", "has the one class 'cat'"),
    "UTF-16": ("a,b,y\n1,2,3\n".encode("utf-16"), "is UTF-16; save it as text in UTF-8"),
    "UTF-16 without a mark": ("a,b,y\n1,2,3\n".encode("utf-16-le"), "has NUL bytes"),
    "Latin-1": ("a,b,y\n1,2,ä\n".encode("latin-1"), "line 2 is not UTF-8"),
    "a NUL byte": (b"a,b,y\n1,2,\x003\n", "has NUL bytes"),
    "an endless cell": (b'a,b,y\n"' + b"x" * 200_000, "cannot be read as a table"),
    "numbers with words": (
        "\n".join(["a,b,y", *(f"1,2,{i / 3}" for i in range(30)), "1,2,N/A"]).encode(),
        "has 'N/A' in example 31; targets are either numbers or names",
    ),
}


@pytest.mark.tried(
    "Input",
    what="your own CSV: ragged, empty, UTF-16, NUL bytes, missing or infinite targets, one class",
    holds="refused before training: the sentence names the file, the example and what to do",
)
@pytest.mark.parametrize("case", TABLES)
def test_tables_that_cannot_be_used(tmp_path, case):
    content, sentence = TABLES[case]
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    recipe = recipe_file(tmp_path / "r.yaml", data=path)
    code, said = command("train", recipe, "--output", tmp_path / "run")
    assert code == 1
    assert "t.csv" in said
    assert sentence in said
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_a_mark_of_utf_8_does_no_harm(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbfy,b,c\n" + b"0,1,2\n1,2,3\n" * 10)
    assert load_dataset(str(path), target="y").classes == ("0", "1")


ARRAYS = {
    "NaN labels": ({"y": np.array([0.0, 1.0, np.nan] * 4)}, "y of .* has nan in examples 3, 6, 9"),
    "infinite labels": ({"y": np.array([0.0, np.inf] * 6)}, "has inf in examples 2, 4, 6 and 3"),
    "one class": ({"y": np.zeros(12)}, "has the one class '0'"),
    "complex labels": ({"y": np.zeros(12, complex)}, "holds complex128; targets are numbers"),
    "text for inputs": ({"x": np.array([["a"]] * 12)}, "x of <U1, and inputs are numbers"),
    "dates for labels": ({"y": np.zeros(12, "M8[s]")}, "holds datetime64"),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_arrays_that_cannot_be_used(tmp_path, case):
    arrays, sentence = ARRAYS[case]
    arrays = {"x": np.zeros((12, 2)), "y": np.arange(12) % 2, **arrays}
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(ValueError, match=sentence):
        load_dataset(str(tmp_path / "t.npz"))


def test_bytes_may_name_classes(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.zeros((12, 2)), y=np.array([b"cat", b"dog"] * 6))
    assert load_dataset(str(tmp_path / "t.npz")).classes == ("cat", "dog")


# what is looked at before training


def refused(tmp_path, *arguments, **changes):
    recipe = recipe_file(tmp_path / "r.yaml", **changes)
    code, said = command("train", recipe, "--output", tmp_path / "run", *arguments)
    assert code == 1
    assert not (tmp_path / "run" / "recipe.yaml").exists()
    return said


@pytest.mark.tried(
    "Input",
    what="more labels than outputs",
    holds="refused before training: the sentence says how many outputs there are",
)
def test_more_labels_than_outputs(tmp_path):
    data = table(tmp_path / "t.csv", "abcdef" * 5)
    said = refused(tmp_path, data=data)
    assert (
        "the 4 outputs stand for labels 0 to 3; give the network an output for every class" in said
    )


def test_likelihoods_that_do_not_fit_the_targets(tmp_path):
    data = table(tmp_path / "t.csv", [0.5, -1.5, 2.5] * 5)
    assert "Poisson is for counts" in refused(tmp_path, data=data, likelihood={"kind": "poisson"})


def small(targets):
    examples = Examples(torch.randn(len(targets), 2), targets)
    return lambda: Dataset("small", "classification", examples, examples[:4])


@pytest.mark.tried(
    "Input",
    what="training examples of one class, or with targets that are not finite",
    holds="refused before training",
)
@pytest.mark.parametrize(
    ("targets", "kind", "sentence"),
    [
        (torch.full((9,), 2), "categorical", "all 9 training examples have the class '2'"),
        (torch.tensor([[0.0], [float("nan")], [1.0]]), "gaussian", "not finite, the first at [1]"),
        (torch.tensor([[0.0], [2.0], [1.0]]), "bernoulli", "targets go from 0 to 2"),
    ],
)
def test_data_sets_that_teach_nothing(tmp_path, registered, targets, kind, sentence):
    source = Source("small", "classification", "", "", build=small(targets))
    registered(SOURCES, "small", source)
    outputs = 4 if kind == "categorical" else 1
    options = {"inputs": 2, "hidden": [3], "outputs": outputs}
    architecture = {"name": "mlp", "options": options}
    likelihood = {"kind": kind}
    changes = {"architecture": architecture, "likelihood": likelihood, "data": "small"}
    recipe = {**values(**changes), "data": {"name": "small"}}
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the sentence is compared below)
        train(check_recipe(recipe), tmp_path / "run", progress=False)
    assert sentence in str(caught.value)
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def normalized() -> Chain:
    layers = {"dense": nn.Linear(2, 3), "norm": nn.BatchNorm1d(3), "out": nn.Linear(3, 4)}
    return Chain(
        layers, (2,), {"*": lambda parameter, fan_in, generator: parameter.data.fill_(0.1)}
    )


@pytest.mark.tried(
    "Input",
    what="a last batch of one example with BatchNorm",
    holds="refused before training: the sentence gives a batch size that works",
)
def test_a_last_batch_of_one_with_batch_norm(tmp_path, registered):
    registered(ARCHITECTURES, "normalized", normalized)
    data = table(tmp_path / "t.csv", "abcd" * 8 + "a")  # 33 rows, 17 of them for training
    recipe = values(data, architecture={"name": "normalized"}, posterior="MeanField")
    with pytest.raises(ValueError, match="17 training examples in batches of 8") as caught:
        train(check_recipe(recipe), tmp_path / "run", progress=False)
    assert "set training.batch_size: 7 or training.limit: 16" in str(caught.value)
    assert not (tmp_path / "run" / "recipe.yaml").exists()
    for better in ({"batch_size": 7}, {"batch_size": 8, "limit": 16}):
        good = check_recipe({**recipe, "training": {"epochs": 1, **better}})
        assert train(good, tmp_path / str(better["batch_size"]), progress=False)["metrics"]
    alone = check_recipe({**recipe, "training": {"epochs": 1, "batch_size": 1}})
    with pytest.raises(ValueError, match=r"training\.batch_size is 1, and BatchNorm needs two"):
        train(alone, tmp_path / "alone", progress=False)


@pytest.mark.tried(
    "Input", what="a seed below 0 or above 2**64 - 1", holds="refused with the range of seeds"
)
@pytest.mark.parametrize("seed", [-1, 2**64, 10**30])
def test_seeds_that_no_generator_takes(tmp_path, seed):
    sentence = "it must be a whole number from 0 to 2**64 - 1"
    assert sentence in refused(tmp_path, "--set", f"seed={seed}")
    with pytest.raises(ValueError, match="seed is") as caught:
        lb.predict(nn.Linear(2, 2), torch.zeros(1, 2), samples=1, seed=seed)
    assert sentence in str(caught.value)


def test_the_largest_seed_is_one(tmp_path):
    data = table(tmp_path / "t.csv", "abab" * 5)
    recipe = recipe_file(tmp_path / "r.yaml", data=data, choices={"optimizer.lr": [0.1]})
    code, said = command("sweep", recipe, "--output", tmp_path / "s", "--set", f"seed={2**64 - 1}")
    assert code == 0, said


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("architecture.options.hidden=abc", "architecture.options {"),
        ("data.options.target=null", "target is None; give the name or the number of a column"),
        ("data.options.test=abc", "data.options {"),
        ("data.options.seed=-1", "a split takes a whole number from 0"),
        ("optimizer.lr=.inf", "optimizer.lr: Input should be a finite number"),
        ("optimizer.betas=[2, 0.9]", "optimizer.betas.0: Input should be less than 1"),
        ("posterior={kind: [1]}", "posterior: "),
        ("budgets=3", "budgets: "),
        ("training.epochs=[", "has a value that is not valid YAML"),
    ],
)
def test_settings_of_a_wrong_kind(tmp_path, setting, sentence):
    data = table(tmp_path / "t.csv", "abab" * 5)
    assert sentence in refused(tmp_path, "--set", setting, data=data)


# damaged files

RECIPES = {
    "empty": b"",
    "binary": b"\x80\x81\x00\xff" * 9,
    "a list": b"- 1\n- 2\n",
    "a number": b"3",
    "cut": b"name: x\ndata: {name: dig",
    "wrong types": b"name: 3\ndata: []\ntraining: x\n",
    "NaN": b"name: x\ndata: {name: digits}\narchitecture: {name: mlp}\ntraining: {epochs: .nan}\n",
    "no budgets": b"name: x\nbudgets: {cpu: [1]}\n",
    "a date that is none": b"name: 2020-99-99\n",
    "long digits": b"name: " + b"9" * 5000,
}


@pytest.mark.tried(
    "Files",
    what="a recipe.yaml that is empty, binary, cut, a list, or of wrong types, in every command",
    holds="one sentence with its path, and exit code 1",
)
@pytest.mark.parametrize("case", RECIPES)
def test_a_damaged_recipe(copied, tmp_path, capsys, monkeypatch, case):
    file = copied / "recipe.yaml"
    good = recipe_file(tmp_path / "good.yaml")
    file.write_bytes(RECIPES[case])
    np.save(tmp_path / "x.npy", np.zeros((2, 2)))
    for arguments in (
        ("evaluate", copied),
        ("predict", copied, "--input", tmp_path / "x.npy", "--output", tmp_path / "p.csv"),
        ("report", copied, "-o", tmp_path / "r.html"),
        ("recipes", file),
        ("sweep", file),
        ("train", file),
        ("train", good, "--resume", "--output", copied),
    ):
        code, said = command(*arguments)
        assert (code, str(file) in said, said.count("\n")) == (1, True, 1), said
    for arguments in (
        ("archive", copied, "--out", tmp_path / "out"),
        ("papers", "compress", copied),
    ):
        assert str(file) in papers_say(arguments, capsys, monkeypatch)
    assert not list(tmp_path.glob("[pr].*"))


def papers_say(arguments, capsys, monkeypatch):
    """What the tool of the papers says when it gives up, in one line."""
    monkeypatch.setattr(sys, "argv", ["research", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        research()
    said = str(caught.value) + capsys.readouterr().err
    assert caught.value.code not in (0, None)
    assert "\n" not in said.strip()
    return said


GOOD = {"name": "clumsy", "metrics": {"nll": {"value": 1.0, "error": 0.1}}}
RESULTS = {
    "empty": "",
    "cut": json.dumps(GOOD)[:-9],
    "binary": "\x00\x01",
    "a list": "[1, 2]",
    "nested": "[" * 100_000,
    "no metrics": '{"name": "x"}',
    "text for a metric": json.dumps({**GOOD, "metrics": {"nll": {"value": "low", "error": 0.1}}}),
    "a list for counts": json.dumps({**GOOD, "parameters": [1]}),
    "text for seconds": json.dumps({**GOOD, "seconds": "long"}),
    "a number for versions": json.dumps({**GOOD, "versions": 3}),
    "a list for a recipe": json.dumps({**GOOD, "recipe": [1]}),
}


@pytest.mark.tried(
    "Files",
    what="a result.json that is empty, binary, cut, a list, or of wrong types, in every command",
    holds="one sentence with its path and exit code 1; a report is written without its numbers",
)
@pytest.mark.parametrize("case", RESULTS)
def test_a_damaged_result(copied, tmp_path, capsys, monkeypatch, case):
    file = copied / "result.json"
    file.write_text(RESULTS[case], encoding="utf-8")
    np.save(tmp_path / "x.npy", np.zeros((2, 2)))
    output = tmp_path / "p.csv"
    for arguments in (
        ("evaluate", copied),
        ("predict", copied, "--input", tmp_path / "x.npy", "--output", output),
    ):
        code, said = command(*arguments)
        assert (code, f"{file} is truncated or damaged" in said) == (1, True)
        assert said.count("\n") == 1
    assert not output.exists()
    for arguments in (
        ("archive", copied, "--out", tmp_path / "out"),
        ("papers", "compress", copied),
        ("table", "k_tied", "--runs", copied),
    ):
        assert str(file) in papers_say(arguments, capsys, monkeypatch)
    assert Run(copied).result == {}
    assert [str(file) in said for said in Run(copied).damage] == [True]


def test_a_report_on_damaged_files_says_so(copied, tmp_path):
    (copied / "metrics.csv").write_bytes(b"epoch\n\xff")
    (copied / "result.json").write_text(RESULTS["a list for counts"], encoding="utf-8")
    code, said = command("report", copied, "-o", tmp_path / "r.html")
    assert code == 1
    assert f"{copied / 'result.json'} is truncated or damaged" in said
    assert f"{copied / 'metrics.csv'} is damaged" in said
    assert (tmp_path / "r.html").exists()
    with pytest.raises(ValueError, match=r"metrics\.csv is damaged"):
        archive(copied, tmp_path / "out")


@pytest.mark.parametrize("rows", [[], {"full": 3}, {"full": {"metrics": {}}}, "x"])
def test_a_damaged_file_of_compressed_runs(tmp_path, rows):
    file = tmp_path / "compress.json"
    content = {"name": "x", "rows": rows, "seed": 1, "spectra": {}, "maps": {}}
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=r"compress\.json is not what"):
        read_compressed(file)


def test_a_metric_that_is_no_number_is_shown_as_such(copied, tmp_path):
    result = {**GOOD, "metrics": {"nll": {"value": float("nan"), "error": float("nan")}}}
    write_result(copied / "result.json", result)
    code, said = command("report", copied, "-o", tmp_path / "r.html")
    assert code == 0
    assert "On the test set NLL is nan" in said
