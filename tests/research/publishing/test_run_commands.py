"""Commands below tables: recipe, budget, seeds, and what a run had otherwise."""

import shlex

from leanbayes.lab.files import write_json
from leanbayes.lab.recipe_files import parse_yaml, read_recipe, recipe_to_train
from research.publishing.paper import RECIPES
from research.publishing.run_commands import ArchivedRuns, training_commands

FOLDER = RECIPES / "k_tied"


def values(recipe):
    return parse_yaml(recipe.to_yaml())


def test_seeds_of_a_recipe_share_a_line():
    runs = [read_recipe("k_tied/mnist-mlp-k2", settings={"seed": seed}) for seed in (1, 42, 2)]
    (line,) = training_commands(FOLDER, runs)
    start = "leanbayes train k_tied/mnist-mlp-k2 --budget paper"
    assert line == f"{start} --set seed=42  # and seed 1, 2"


def test_a_command_gives_the_settings_of_the_run():
    settings = {
        "name": "mnist-mlp-k2-odd",
        "training.epochs": 3,
        "optimizer.multipliers": {"scales": 2},
        "prior": {"kind": "Laplace", "scale": 0.5},
    }
    run = read_recipe("k_tied/mnist-mlp-k2", budget="cpu", settings=settings)
    (line,) = training_commands(FOLDER, [run])
    _, _, name, *words = shlex.split(line)
    options = list(zip(words[::2], words[1::2], strict=True))
    changed = dict(value.split("=", 1) for option, value in options if option == "--set")
    again = recipe_to_train(
        name,
        budget=dict(options)["--budget"],
        settings={key: parse_yaml(value) for key, value in changed.items()},
    )
    left_out = {"published", "cut", "budgets", "choices", "measurements"}
    assert again.model_dump(exclude=left_out) == run.model_dump(exclude=left_out)


def test_data_of_another_name_are_said():
    run = read_recipe("rank1/ehr-lstm-gaussian", budget="cpu")
    (line,) = training_commands(RECIPES / "rank1", [run])
    assert line.startswith("python -m research.lab train rank1/ehr-lstm-gaussian --budget cpu")
    assert "--set data.name=ehr-cohort" in line


def test_studies_have_the_options_of_the_archived_ones(tmp_path):
    recipe = values(read_recipe("k_tied/mnist-mlp-full", budget="cpu"))
    archived = {"name": "mnist-mlp-full", "recipe": recipe}
    write_json(tmp_path / "mnist-mlp-full-seed42.json", archived)
    compressed = {**archived, "rows": {}, "samples": 5}
    write_json(tmp_path / "post_training" / "mnist-mlp-full.json", compressed)
    found = ArchivedRuns(tmp_path, FOLDER).commands(["mnist-mlp-full", "all"], "compress")
    assert "leanbayes train k_tied/mnist-mlp-full --budget cpu" in found
    assert "python -m research papers compress runs/mnist-mlp-full --samples 5\n" in found


def test_what_was_not_run_has_its_command_with_the_published_settings(tmp_path):
    found = ArchivedRuns(tmp_path, FOLDER).commands(["mnist-mlp-k2", "not-a-recipe"])
    (line,) = (line for line in found.splitlines() if "train" in line)
    assert line == "leanbayes train k_tied/mnist-mlp-k2 --budget paper --set seed=42"
    assert ArchivedRuns(tmp_path, FOLDER).commands(["not-a-recipe"]) == ""
