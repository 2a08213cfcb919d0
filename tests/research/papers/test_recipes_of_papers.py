"""Recipes keep what their paper says of the data, and hold only what it printed for their row."""

from functools import cache

import pytest

from leanbayes.lab import data
from leanbayes.lab.recipe_files import read_recipe
from research.papers import PAPERS
from research.publishing.paper import RECIPES

read_recipe = cache(read_recipe)
FILES = sorted(RECIPES.glob("*/*.yaml"))
every_file = pytest.mark.parametrize(
    "file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}"
)

CIFAR_CROPPED = {"augment": "crop-flip-shared", "pad": 4}
RECORDS = {"days": 30, "codes": 32, "measurements": 32, "vocabulary": 10_000}
UNIT = {"scaling": "unit", "validation": 0}  # the matrix-normal paper states neither
DATA = {
    "k_tied/mnist-mlp": ({"scaling": "symmetric", "validation": 10_000}, {}),
    "k_tied/cifar100-lenet": ({"scaling": "unit", "validation": 10_000, "labels": "fine"}, {}),
    "k_tied/imdb-lstm": ({"words": 20_000, "length": 80, "validation": 5_000}, {}),
    "k_tied/cifar10-resnet": ({"scaling": "pixel-mean", "validation": 0}, {}),
    "variance/mnist-lenet5": (UNIT, {}),
    "variance/cifar10-vgg": ({"scaling": "raw", "validation": 0}, CIFAR_CROPPED),
    "variance/cifar100-coarse-vgg": (
        {"scaling": "raw", "validation": 0, "labels": "coarse"},
        CIFAR_CROPPED,
    ),
    "variance/cifar10-attack": ({"scaling": "raw", "validation": 5_000}, {"augment": "flip"}),
    "matrix_normal/mnist-mlp": (UNIT, {}),
    "matrix_normal/fashion-mnist-": (UNIT, {}),
    "matrix_normal/cifar10-vgg-x1-sparse": (UNIT, {"augment": "flip"}),
    "matrix_normal/cifar10-vgg-x2-sparse": (UNIT, {"augment": "flip"}),
    "matrix_normal/cifar10-vgg-x1-diag": (UNIT, {}),
    "matrix_normal/cifar10-vgg-x1-mn": (UNIT, {}),
    "rank1/cifar10-wrn": (
        {"scaling": "cifar-2020", "validation": 0},
        {"augment": "crop-flip", "pad": 2},
    ),
    "rank1/ehr-lstm-cauchy": ({**RECORDS, "older_than": 90}, {}),
    **{f"rank1/ehr-lstm-{row}": (RECORDS, {}) for row in "bdegm"},
    "rank1/fashion-mnist-resnet": (
        {"scaling": "channel", "validation": 1_000},
        {"augment": "flip"},
    ),
    "rank1/imagenet-resnet50": (
        {"scaling": "imagenet", "validation": 0},
        {"augment": "flip"},
    ),
    "rank1/cifar100-wrn": (
        {"scaling": "cifar-2020", "validation": 0, "labels": "fine"},
        {"augment": "crop-flip", "pad": 2},
    ),
}
"""Options of the data set and how images are changed, by the beginning of a recipe's path."""


@pytest.mark.parametrize("name", PAPERS)
def test_every_paper_has_its_folder_and_recipes(name):
    paper = PAPERS[name]
    assert paper.name == name
    assert paper.works[0].cited == paper.short
    assert any(paper.recipes.glob("*.yaml"))


@every_file
def test_its_paper_exists(file):
    assert file.parent.name in PAPERS
    assert read_recipe(file).published.paper == file.parent.name


@every_file
def test_its_data_are_those_of_the_paper(file):
    path = f"{file.parent.name}/{file.stem}"
    (expected,) = [DATA[start] for start in DATA if path.startswith(start)]
    given = read_recipe(file).data
    changed = given.model_dump(exclude={"name", "options"}, exclude_defaults=True)
    assert (given.options, changed) == expected


@every_file
def test_only_a_row_that_was_printed_has_published_values(file):
    """A variant of another recipe is no row of the paper; its note begins with that recipe."""
    published = read_recipe(file).published
    names = {f"{other.stem} " for other in file.parent.glob("*.yaml")}
    if published.note.startswith((*names, "Not in the papers")):
        assert published.values == {}


KINDS = {repr(recipe.data): recipe.data for recipe in map(read_recipe, FILES)}
SIZES = {
    "mnist": 60_000,
    "fashion-mnist": 60_000,
    "imdb": 25_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "imagenet": 1_281_167,
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: KINDS[kind].name)
def test_its_data_can_be_loaded(kind):
    given = KINDS[kind]
    try:
        dataset = data.load_dataset(given.name, download=False, **given.options)
    except FileNotFoundError:
        pytest.skip(f"{given.name} is not here")
    held_out = 0 if dataset.validation is None else len(dataset.validation)
    trained = len(dataset.train) + held_out
    assert trained == SIZES.get(given.name, trained)  # MIMIC-III comes in several versions
    augment = data.augmentation(given.augment, dataset, given.pad)
    x, y = next(iter(data.Batches(dataset.train, 64, augment=augment).epoch(0)))
    assert x.shape == (64, *dataset.input_shape)
    assert len(y) == 64
