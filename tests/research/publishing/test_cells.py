"""Tables: ours next to published, from files; rows without a run say so."""

import json
import shutil

import pytest

from leanbayes.lab import recipe_files
from leanbayes.lab.files import write_json, write_text
from leanbayes.lab.recipe_files import read_recipe
from research.papers import PAPERS
from research.publishing import paper as places
from research.publishing.cells import Cell, Row, experiments, merge_seeds, rows_table
from research.publishing.results import _settings, find_results, recipes_by_budget, table

K_TIED = PAPERS["k_tied"]
NAME = "mnist-mlp-k2"
FILE = K_TIED.recipes / f"{NAME}.yaml"
METRICS = {
    "accuracy": {"value": 0.9712, "error": 0.0017},
    "nll": {"value": 0.1312, "error": 0.0034},
    "ece": {"value": 0.01, "error": 0.0},
}


def result(name=NAME, seed=42, **metrics):
    return {"name": name, "metrics": {**METRICS, **metrics}, "seed": seed}


def run_folder(folder, *, budget="cpu", settings=None, seed=42):
    """What a run leaves behind that a table reads."""
    recipe = read_recipe(FILE, budget=budget, settings={**(settings or {}), "seed": seed})
    write_text(folder / "recipe.yaml", recipe.to_yaml())
    write_json(folder / "result.json", result(seed=seed))
    return folder


def row_of(rows, name=NAME):
    (row,) = [row for row in rows if row.name == name]
    return row


@pytest.mark.parametrize("paper", PAPERS.values(), ids=PAPERS)
def test_without_runs_every_row_is_published_and_not_run(paper):
    rows = table(paper, [])
    assert [row.name for row in rows] == sorted(f.stem for f in paper.recipes.glob("*.yaml"))
    for row in rows:
        published = read_recipe(paper.recipes / f"{row.name}.yaml").published
        assert row.title == published.row
        assert all(cell.ours is None for cell in row.cells.values())
        given = {name: c.published for name, c in row.cells.items() if c.published is not None}
        assert given == published.values
    assert rows_table(rows).count("not run") == len(rows)


def test_a_run_stands_next_to_the_published_row(tmp_path):
    row = row_of(table(K_TIED, [run_folder(tmp_path / "a")]))
    assert row.cells["nll"] == Cell(0.1312, 0.0034, 0.129)
    assert row.cells["accuracy"] == Cell(0.9712, 0.0017, 0.968)
    assert row.cells["negative_elbo"] == Cell(None, None, 0.52)
    assert row.title == "MLP on MNIST, k = 2"


@pytest.mark.parametrize(
    ("budget", "settings", "expected"),
    [
        ("paper", {}, "paper"),
        ("cpu", {}, "cpu"),
        ("cpu", {"optimizer.lr": 3e-3}, "other"),
        ("paper", {"training.limit": 100}, "other"),
    ],
)
def test_it_says_under_which_settings_a_run_was_made(tmp_path, budget, settings, expected):
    folder = run_folder(tmp_path / "a", budget=budget, settings=settings, seed=3)
    row = row_of(table(K_TIED, [folder]))
    assert (row.budget, row.seeds) == (expected, (3,))
    assert row.run == f"{expected}, seed 3"


def test_every_run_of_a_recipe_has_a_line(tmp_path):
    for seed in (1, 2):
        run_folder(tmp_path / f"seed{seed}", seed=seed)
    rows = table(K_TIED, [tmp_path])
    assert [row.seeds for row in rows if row.name == NAME] == [(1,), (2,)]
    assert len(rows) == len(table(K_TIED, [])) + 1


def test_results_may_lie_in_one_folder_by_any_name(tmp_path):
    for name in (NAME, "mnist-mlp-k3"):
        write_json(tmp_path / f"{name}.json", result(name))
    rows = table(K_TIED, [tmp_path])
    assert sorted(row.name for row in rows if row.seeds) == [NAME, "mnist-mlp-k3"]
    assert row_of(rows).budget == ""
    assert row_of(rows).run == "seed 42"


def test_a_folder_named_twice_counts_once(tmp_path):
    folder = run_folder(tmp_path / "a")
    assert find_results([folder, tmp_path, folder / "result.json"]) == [folder / "result.json"]
    assert sum(len(row.seeds) for row in table(K_TIED, [folder, tmp_path])) == 1


def test_a_run_of_another_paper_changes_nothing(tmp_path):
    assert table(PAPERS["rank1"], [run_folder(tmp_path / "a")]) == table(PAPERS["rank1"], [])


def test_published_values_come_from_the_recipes(tmp_path, monkeypatch):
    shutil.copytree(K_TIED.recipes, tmp_path / "k_tied")
    monkeypatch.setattr(places, "RECIPES", tmp_path)
    file = tmp_path / "k_tied" / f"{NAME}.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("nll: 0.129", "nll: 0.77"), "utf-8")
    assert row_of(table(K_TIED, [])).cells["nll"].published == 0.77


def test_seeds_are_averaged(tmp_path):
    for seed, nll in ((1, 0.1), (2, 0.3)):
        folder = run_folder(tmp_path / str(seed), seed=seed)
        metrics = {"nll": {"value": nll, "error": nll / 10}}
        parameters = {"means": 3, "scales": 4}
        write_json(
            folder / "result.json",
            {"name": NAME, "metrics": metrics, "seed": seed, "parameters": parameters},
        )
    merged = row_of(merge_seeds(table(K_TIED, [tmp_path])))
    assert merged.run == "cpu, 2 seeds"
    assert merged.cells["nll"] == Cell(pytest.approx(0.2), pytest.approx(0.1), 0.129, 2)
    assert merged.cells["parameters"].ours == 7


def test_rows_are_grouped_by_experiment():
    rows = table(K_TIED, [])
    groups = experiments(rows)
    for name, group in groups.items():
        assert all(row.title.startswith(name) for row in group)
    published = [f"MLP on MNIST, {k}" for k in ("full", "k = 1", "k = 2", "k = 3")]
    assert [row.title for row in groups["MLP on MNIST"] if row.title in published] == published
    assert sum(map(len, groups.values())) == len(rows)


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        (Cell(), "–"),
        (Cell(published=0.129), "– (0.129)"),
        (Cell(0.97123, 0.00171, 0.968), "0.9712 ± 0.0017 (0.968)"),
        (Cell(122.6123, 0.0119), "122.612 ± 0.012"),
        (Cell(0.01234, 0.0, 0.01), "0.01234 (0.01)"),
        (Cell(15.3, 12.0), "15 ± 12"),
        (Cell(484_008, None, 484_000), "484,008 (484,000)"),
    ],
)
def test_cells_show_two_digits_of_the_error(cell, written):
    assert str(cell) == written


ROWS = [
    Row("a", "mean field", {"nll": Cell(0.5, 0.01, 0.4), "brier": Cell()}, "cpu", (1,)),
    Row("b", "k = 2", {"nll": Cell(published=0.3)}),
]


def test_markdown_has_only_columns_with_something_in_them():
    assert rows_table(ROWS).splitlines() == [
        "| row | run | nll |",
        "| --- | --- | --- |",
        "| mean field | cpu, seed 1 | 0.500 ± 0.010 (0.4) |",
        "| k = 2 | not run | – (0.3) |",
    ]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"name": ', "is truncated or damaged"),
        ("[1, 2]", "is not the result of a run"),
        (json.dumps({"name": NAME}), "it needs a name and metrics"),
    ],
)
def test_a_file_that_is_no_result_is_named(tmp_path, content, sentence):
    (tmp_path / "result.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=sentence) as caught:
        table(K_TIED, [tmp_path])
    assert "result.json" in str(caught.value)


def test_what_does_not_exist_is_named(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        table(K_TIED, [tmp_path / "nowhere"])
    monkeypatch.setattr(places, "RECIPES", tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no recipes"):
        table(K_TIED, [])


def test_recipes_are_parsed_once(tmp_path, monkeypatch):
    shutil.copytree(K_TIED.recipes, tmp_path / "k_tied")
    monkeypatch.setattr(places, "RECIPES", tmp_path)
    parsed = []
    parse = recipe_files.parse_yaml
    monkeypatch.setattr(recipe_files, "parse_yaml", lambda text: parsed.append(text) or parse(text))
    first, again = (table(K_TIED, []) for _ in range(2))
    assert first == again
    assert len(parsed) == len(list((tmp_path / "k_tied").glob("*.yaml"))) > 1


def test_budgets_are_those_of_the_recipes():
    for file in K_TIED.recipes.glob("*.yaml"):
        for budget, recipe in recipes_by_budget(file).items():
            assert _settings(recipe) == _settings(read_recipe(file, budget=budget))
