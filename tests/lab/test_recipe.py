"""A recipe is read whole or refused in one sentence that names the nearest right key."""

import math

import pytest

import leanbayes as lb
from leanbayes.lab.recipe import LearningRate, Recipe, check_recipe
from leanbayes.lab.recipe_files import (
    apply_settings,
    parse_yaml,
    read_recipe,
)
from leanbayes.lab.recipe_names import recipe_names, recipe_path

TEXT = """
name: mnist-mlp-k2
data: {name: mnist, options: {scaling: symmetric}}
architecture: {name: mlp}
posterior: {kind: KTied, rank: 2}
prior: {kind: Normal, scale: 2e-1}
bias: MeanField
layers:
  "dense3": {posterior: {kind: MeanField, scale: {kind: Scale, start: 0.02}}, estimator: flipout}
optimizer: {lr: 1e-3, multipliers: {factors: 0.5}}
kl: {kind: stepwise, options: {rate: 5e-5, every: 100}}
training: {epochs: 300, batch_size: 1024}
published: {paper: k_tied, row: k=2, values: {nll: 0.129}}
cut: 30 epochs instead of 300
budgets: {cpu: {training.epochs: 30}}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_it_speaks_the_library_s_own_specs(file):
    recipe = read_recipe(file)
    assert recipe.posterior == lb.KTied(rank=2)
    assert recipe.prior == lb.priors.Normal(0.2)
    assert recipe.bias == lb.MeanField()
    choices = recipe.layers["dense3"].choices()
    assert choices == {
        "posterior": lb.MeanField(lb.posteriors.Scale(0.02)),
        "estimator": lb.estimators.flipout,
    }
    assert recipe.optimizer.lr == 1e-3
    assert recipe.optimizer.multipliers == {"factors": 0.5}


def test_budgets_and_settings_change_single_keys(file):
    assert read_recipe(file).training.epochs == 300
    assert read_recipe(file, budget="cpu").training.epochs == 30
    changed = read_recipe(file, budget="cpu", settings={"training.epochs": 2, "seed": 7})
    assert (changed.training.epochs, changed.seed) == (2, 7)


def test_a_recipe_with_the_earlier_spelling_of_learned_reads_as_the_new_one(file):
    likelihood = "\nlikelihood: {kind: gaussian, scale: 0.5, noise: %s}\n"
    read = []
    for spelling in ("learnt", "learned"):
        file.write_text(TEXT + likelihood % spelling, encoding="utf-8")
        read.append(read_recipe(file))
    assert read[0] == read[1]
    assert read[0].likelihood.make().noise == "learned"


def test_a_written_recipe_reads_back_the_same(file):
    recipe = read_recipe(file, budget="cpu")
    again = check_recipe(parse_yaml(recipe.to_yaml()))
    assert again == recipe.model_copy(update={"budgets": {}})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"trainign.epochs": 3}, "key 'trainign' is unknown; did you mean 'training'?"),
        ({"training.epoch": 3}, "key 'training.epoch' is unknown; did you mean 'epochs'?"),
        ({"posterior.rnk": 1}, "KTied has no argument 'rnk'; did you mean 'rank'?"),
        ({"prior.kind": "Norml"}, "'Norml' is unknown; did you mean 'Normal'?"),
        ({"prior": {"kind": "Normal"}}, "Normal is not complete"),
        ({"estimator": "locl"}, "estimator 'locl' is unknown; did you mean 'local'?"),
        ({"training.epochs": 0}, "training.epochs: Input should be greater than or equal to 1"),
        ({"posterior.rank": 0}, "rank is 0; it must be at least 1"),
        ({"optimizer.multipliers": {"fast": 2.0}}, "optimizer.multipliers"),
        ({"layers": {"a": {"priror": "He"}}}, "did you mean 'prior'?"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(file, settings, sentence):
    with pytest.raises(ValueError, match=r"recipe\.yaml: ") as caught:
        read_recipe(file, settings=settings)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_keys_and_files_are_named(tmp_path):
    with pytest.raises(ValueError, match="key 'training' is missing"):
        check_recipe({"name": "x", "data": {"name": "a"}, "architecture": {"name": "b"}})
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_recipe(tmp_path / "nothing.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1, 2", encoding="utf-8")
    with pytest.raises(ValueError, match="not valid YAML") as caught:
        read_recipe(broken)
    assert "\n" not in str(caught.value)
    broken.write_text("- 1", encoding="utf-8")
    with pytest.raises(ValueError, match="not a mapping"):
        read_recipe(broken)


def test_a_recipe_of_the_package_has_a_name():
    assert read_recipe("k_tied/mnist-mlp-k2", budget="cpu").training.epochs == 80
    assert read_recipe(recipe_path("k_tied/mnist-mlp-k2")) == read_recipe("k_tied/mnist-mlp-k2")
    assert {name.split("/")[0] for name in recipe_names("k_tied/")} == {"k_tied"}


def test_a_file_goes_before_a_name(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    assert recipe_path("recipe.yaml").samefile(file)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("k_tied/mnist-mlp-k4", "did you mean 'k_tied/mnist-mlp-k3'?"),
        ("xyz", "leanbayes recipes lists them"),
    ],
)
def test_a_wrong_name_gets_one_sentence(name, remedy):
    with pytest.raises(FileNotFoundError) as caught:
        read_recipe(name)
    assert str(caught.value) == f"recipe '{name}' is unknown; {remedy}"


def test_yaml_cannot_construct_objects():
    with pytest.raises(Exception, match="could not determine a constructor"):
        parse_yaml("!!python/object/apply:os.getcwd []")


def test_settings_leave_the_given_values_alone():
    values = {"a": {"b": 1}}
    assert apply_settings(values, {"a.b": 2}) == {"a": {"b": 2}}
    assert values == {"a": {"b": 1}}


@pytest.mark.checklist("R17")
def test_step_schedule_with_warm_up():
    """Rank-1: one warm-up epoch, × 0.2 at epochs 100, 200 and 225 of 250."""
    steps = LearningRate(kind="steps", milestones=(100, 200, 225), factor=0.2, warmup=1)
    factors = [steps(epoch, 250) for epoch in (0, 1, 99, 100, 199, 200, 225, 249)]
    assert factors == pytest.approx([0.5, 1, 1, 0.2, 0.2, 0.04, 0.008, 0.008])


def test_linear_learning_rate_ends_at_its_floor():
    linear = LearningRate(kind="linear", floor=0.01)
    assert linear(0, 200) == 1
    assert linear(100, 200) == 0.5
    assert math.isclose(linear(200, 200), 0.01)


def test_defaults_are_a_plain_network():
    values = {"name": "x", "data": {"name": "digits"}, "architecture": {"name": "mlp"}}
    recipe = check_recipe({**values, "training": {"epochs": 1}})
    assert isinstance(recipe, Recipe)
    assert recipe.posterior is None
