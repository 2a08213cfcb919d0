"""What a training step and a prediction of every network of the table cost, in turns."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.errors import require
from leanbayes.lab.architectures import Network
from leanbayes.lab.files import write_json
from leanbayes.lab.from_recipe import build_model, likelihood_of
from leanbayes.lab.provenance import environment_facts
from leanbayes.lab.recipe import Budget, Recipe
from leanbayes.lab.recipe_files import read_recipe
from leanbayes.lab.train import build_module
from leanbayes.prediction.predict import predict
from research.measuring.harness import Work, measure


@dataclass(frozen=True)
class CostSettings:
    """How costs are measured.

    Args:
        recipes: whose networks; costs are relative to the first.
        budget: of the recipes.
        rounds: turns of every network.
        images: in a batch.
    """

    recipes: tuple[str, ...]
    budget: Budget = "paper"
    rounds: int = 15
    images: int = 128


def measure_costs(settings: CostSettings, out: Path) -> dict[str, Any]:
    """Median CPU time of steps and predictions relative to the first network's of the same round.

    It runs in one thread. A prediction has as many samples as the recipe says.
    """
    require(len(settings.recipes) >= 2, "give two recipes or more; costs are relative to the first")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        recipes = [read_recipe(name, budget=settings.budget) for name in settings.recipes]
        works = {recipe.name: _works(recipe, settings.images) for recipe in recipes}
        found = {"settings": asdict(settings), "costs": _relative(works, settings.rounds)}
        write_json(out, {**found, **environment_facts()})
    finally:
        torch.set_num_threads(threads)
    return found


def _works(recipe: Recipe, images: int) -> dict[str, Work]:
    model = build_model(recipe)
    module = build_module(recipe, model, likelihood_of(recipe), recipe.training.limit or 50_000)
    optimizer = module.configure_optimizers()
    x, y = _batch(model, recipe, images)

    def step() -> None:
        model.train()
        optimizer.zero_grad()
        module.objective((x, y)).loss.backward()
        optimizer.step()

    def prediction() -> None:
        predict(model, x, samples=recipe.evaluation.samples, seed=0)

    return {"step": step, "prediction": prediction}


def _batch(model: nn.Module, recipe: Recipe, images: int) -> tuple[Tensor, Tensor]:
    """Return random images of the shape that the network takes."""
    shapes = [part.input_shape for part in model.modules() if isinstance(part, Network)]
    outputs = recipe.architecture.options.get("outputs", 10)
    return torch.randn(images, *shapes[0]), torch.randint(outputs, (images,))


def _relative(
    works: Mapping[str, Mapping[str, Work]], rounds: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Return costs of steps and predictions relative to the first network's, by network."""
    first, *others = works
    costs: dict[str, dict[str, dict[str, float]]] = {name: {} for name in works}
    for kind, base in works[first].items():
        methods = {name: works[name][kind] for name in others}
        measured = measure(base, methods, rounds=rounds, clock=time.process_time)
        costs[first][kind] = {"ratio": 1.0}
        for name, cost in measured.items():
            costs[name][kind] = {"ratio": cost.median, "low": cost.low, "high": cost.high}
    return costs
