"""Every published row that can run: it parses, has the published counts, and trains two steps."""

import math
import re
from collections import Counter
from fnmatch import fnmatch
from functools import cache

import pytest
import torch
from torch import nn

import leanbayes as lb
import research.extensions  # noqa: F401
from leanbayes.conversion.convert import plan
from leanbayes.lab import recipe_files, recipe_names
from leanbayes.lab.architectures import build
from leanbayes.lab.data import names
from leanbayes.lab.from_recipe import build_model, likelihood_of
from leanbayes.lab.train import build_module

read_recipe = cache(recipe_files.read_recipe)
RECIPES = recipe_names.RECIPES
IDS = recipe_names.recipe_names()
FILES = [recipe_names.recipe_path(name) for name in IDS]
BUDGETS = ("paper", "cpu")
NARROW = {
    "wrn-28": {"width": 1, "depth": 10},
    "resnet-tfp": {"filters": (8, 16, 32, 64)},
    "vgg": {"width": 0.125},
    "imdb-lstm": {"vocabulary": 100},
    "ehr-rnn": {"vocabulary": 100, "ranges": 100, "rnn_dim": 16, "hidden_layer_dim": 16},
}
INDICES = {"imdb": (80,), "mimic-iii": (31, 64), "ehr-cohort": (11, 14)}
SHAPES = {
    "mnist": (1, 28, 28),
    "fashion-mnist": (1, 28, 28),
    "cifar10": (3, 32, 32),
    "cifar100": (3, 32, 32),
    "imagenet": (3, 32, 32),
    **INDICES,
}

HIGHEST = {
    "accuracy": 1,
    "brier": 1,
    "ece": 1,
    "auc_pr": 1,
    "nll": math.log(100),
    "negative_elbo": 200,
    "parameters": 1e8,
    "snr": 1e4,
}

every_file = pytest.mark.parametrize("file", FILES, ids=IDS)


def narrow(file, budget):
    """The recipe with a network that is quick to build, but for that as it is.

    The learning rate of a batch of 1024 would settle two images in one step.
    """
    recipe = read_recipe(file, budget=budget)
    if recipe.training.batch_size > 1000 and recipe.optimizer.name == "sgd":
        slow = recipe.optimizer.model_copy(update={"lr": 1e-3})
        recipe = recipe.model_copy(update={"optimizer": slow})
    architecture = recipe.architecture
    changes, options = NARROW.get(architecture.name, {}), architecture.options
    options = {**options, **changes} if budget == "paper" else {**changes, **options}
    return recipe.model_copy(
        update={"architecture": architecture.model_copy(update={"options": options})}
    )


def runs():
    """Published settings, and the others where they train another network."""
    for file in FILES:
        settings = read_recipe(file).budgets.get("cpu", {})
        differs = any(key.startswith(("architecture", "estimator")) for key in settings)
        for budget in BUDGETS if differs else BUDGETS[:1]:
            yield pytest.param(file, budget, id=f"{file.parent.name}/{file.stem}-{budget}")


def whole(file):
    """The converted network of the paper, without the time it takes to draw its weights."""
    recipe = read_recipe(file)
    with torch.device("meta"):
        net = build(recipe.architecture.name, **recipe.architecture.options)
    net.to_empty(device="cpu")
    for tensor in (*net.parameters(), *net.buffers()):
        tensor.detach().zero_()
    return lb.convert(net, recipe.posterior, recipe.prior, **choices(recipe), inplace=True)


def choices(recipe):
    return {
        "bias": recipe.bias,
        "bias_prior": recipe.bias_prior,
        "include": recipe.include,
        "exclude": recipe.exclude,
        "overrides": {pattern: layer.choices() for pattern, layer in recipe.layers.items()},
    }


def batch_of(recipe, size):
    shape = SHAPES[recipe.data.name]
    if recipe.data.name in INDICES:
        return torch.randint(1, 40, (size, *shape)), torch.randint(0, 2, (size,))
    classes = 20 if recipe.data.options.get("labels") == "coarse" else 10
    return torch.rand(size, *shape), torch.randint(0, classes, (size,))


def two_steps(recipe):
    """What training does with the first two batches."""
    model = build_model(recipe).train()
    module = build_module(recipe, model, likelihood_of(recipe), 50_000)
    optimizer = module.configure_optimizers()
    batch = batch_of(recipe, 2)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        parts = module.objective(batch)
        parts.loss.backward()
        optimizer.step()
        losses.append(parts)
    return model, losses


def test_names_and_rows_are_unique():
    recipes = [read_recipe(file) for file in FILES]
    for values in (
        [r.name for r in recipes],
        [(r.published.paper, r.published.row) for r in recipes],
    ):
        assert [value for value, count in Counter(values).items() if count > 1] == []


@every_file
def test_it_parses_in_both_budgets_and_says_what_it_is(file):
    paper, cpu = (read_recipe(file, budget=budget) for budget in BUDGETS)
    assert paper.name == file.stem
    assert paper.published.paper == file.parent.name
    assert paper.data.name in names()
    assert bool(paper.budgets) != cpu.cut.startswith("nothing")
    if paper.budgets:
        assert cpu.cut
        assert not paper.cut
        assert cpu.training.epochs < paper.training.epochs or cpu.data.name != paper.data.name
    for name, value in paper.published.values.items():
        assert 0 < value < HIGHEST[re.sub(r"_\d+$", "", name)]  # at a step


@every_file
def test_milestones_and_annealing_end_before_training_does(file):
    for budget in BUDGETS:
        recipe = read_recipe(file, budget=budget)
        assert all(m < recipe.training.epochs for m in recipe.learning_rate.milestones)
        if recipe.kl.kind in ("linear", "exponential"):
            images = recipe.training.limit or 50_000
            per_epoch = math.ceil(images / recipe.training.batch_size)
            epochs = recipe.kl.options["steps"] / (per_epoch if recipe.kl.unit == "step" else 1)
            unfinished = file.stem == "ehr-lstm-cauchy"  # as published (E19)
            assert (0 < epochs < recipe.training.epochs) != unfinished


@every_file
def test_its_whole_network_can_be_converted(file):
    for budget in BUDGETS:
        recipe = read_recipe(file, budget=budget)
        with torch.device("meta"):
            net = build(recipe.architecture.name, **recipe.architecture.options)
        planned = plan(net, recipe.posterior, recipe.prior, **choices(recipe)).layers
        kinds = nn.Linear | nn.Conv2d | nn.LSTM | nn.Embedding
        layers = [name for name, part in net.named_modules() if isinstance(part, kinds)]
        layers = [name for name in layers if not any(fnmatch(name, e) for e in recipe.exclude)]
        expected = layers if recipe.include == ("**",) else recipe.include
        assert len(planned) == len(expected)


@pytest.mark.parametrize(("file", "budget"), list(runs()))
def test_it_trains_two_steps(file, budget):
    recipe = narrow(file, budget)
    model, (first, second) = two_steps(recipe)
    assert torch.isfinite(first.loss)
    assert torch.isfinite(second.loss)
    trained = [p for p in model.parameters() if p.requires_grad]
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in trained)
    assert all(torch.isfinite(p).all() for p in trained)
    moved = [p for p in trained if p.grad is not None and p.grad.any()]
    assert len(moved) >= len(trained) / 2
    assert lb.extend.members(model) == recipe.ensemble * getattr(recipe.posterior, "members", 1)


def tied(prefix, *counts):
    return {f"{prefix}-{row}": n for row, n in zip(("full", "k1", "k2", "k3"), counts, strict=True)}


COUNTS = {
    **tied("k_tied/mnist-mlp", 956_820, 481_614, 484_008, 486_402),
    **tied("k_tied/cifar100-lenet", 4_405_320, 2_262_188, 2_267_408, 2_272_628),
    **tied("k_tied/imdb-lstm", 2_822_656, 2_692_864, 2_694_144, 2_695_424),
    "k_tied/cifar10-resnet-full": 9_814_026,
    "k_tied/cifar10-resnet-he-full": 9_814_026,
}


@pytest.mark.checklist("KT4", "KT13")
@pytest.mark.parametrize("name", COUNTS)
def test_parameters_are_as_many_as_published(name):
    """The paper counts moving statistics, and leaves out the dense layer of the LSTM."""
    model = whole(RECIPES / f"{name}.yaml")
    statistics = sum(b.numel() for n, b in model.named_buffers() if "running" in n)
    dense = sum(p.numel() for p in model.dense.parameters()) if "lstm" in name else 0
    assert lb.count_parameters(model).total + statistics - dense == COUNTS[name]


def random_weights(model):
    return sum(
        math.prod(layer.posterior().event_shape) for _, layer in lb.extend.random_maps(model)
    )


@pytest.mark.checklist("MN8")
@pytest.mark.parametrize(
    "file", sorted(RECIPES.glob("matrix_normal/cifar10-vgg-*")), ids=lambda path: path.stem
)
def test_weights_are_as_many_as_published(file):
    assert random_weights(whole(file)) == (246_940 if "-x2-" in file.stem else 62_270)


@pytest.mark.parametrize(
    "file", sorted(RECIPES.glob("variance/mnist-lenet5-*")), ids=lambda path: path.stem
)
def test_dense1_alone_holds_400_000_random_weights(file):
    random = dict(lb.extend.random_maps(whole(file)))
    sizes = {name: math.prod(layer.posterior().event_shape) for name, layer in random.items()}
    assert sizes.get("dense1", 400_000) == 400_000
    if read_recipe(file).include == ("dense1",):
        assert set(sizes) == {"dense1"}


MILLIONS = {
    "deterministic": 36.5,
    "batchensemble": 36.6,
    "gaussian": 36.6,
}


@pytest.mark.checklist("R11")
@pytest.mark.parametrize("row", MILLIONS)
def test_parameters_of_the_wide_network_in_millions(row):
    model = whole(RECIPES / f"rank1/cifar10-wrn-{row}.yaml")
    total = lb.count_parameters(model).total / 1e6
    assert round(total, 1) == MILLIONS[row]


@pytest.mark.checklist("R11")
@pytest.mark.parametrize("row", ["gaussian", "cauchy"])
def test_parameters_of_resnet50_in_millions(row):
    model = whole(RECIPES / f"rank1/imagenet-resnet50-{row}.yaml")
    assert round(lb.count_parameters(model).total / 1e6, 1) == 26.0


@pytest.mark.checklist("R11")
def test_the_whole_wide_network_takes_a_step():
    """WRN-28-10 with four members and two images, of 16 pixels a side to be done in seconds."""
    recipe = read_recipe(RECIPES / "rank1/cifar10-wrn-gaussian.yaml")
    model = build_model(recipe).train()
    module = build_module(recipe, model, likelihood_of(recipe), 50_000)
    optimizer = module.configure_optimizers()
    before = model.dense.posterior.get_parameter("weight").detach().clone()
    parts = module.objective((torch.rand(2, 3, 16, 16), torch.tensor([1, 2])))
    parts.loss.backward()
    optimizer.step()
    assert torch.isfinite(parts.loss)
    assert sum(p.numel() for p in model.parameters()) > 36e6
    after = model.dense.posterior.get_parameter("weight").detach()
    assert torch.isfinite(after).all()
    assert not torch.equal(after, before)


@every_file
def test_it_says_nothing_twice(file):
    """What a budget sets differs from the published setting."""
    paper, cpu = (read_recipe(file, budget=budget).model_dump() for budget in BUDGETS)
    for dotted in read_recipe(file).budgets.get("cpu", {}):
        before, after = paper, cpu
        for key in dotted.split("."):
            before, after = (before or {}).get(key), after[key]
        assert before != after, dotted
