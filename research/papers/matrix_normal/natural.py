"""Adam against the natural gradient: the same network, batches and noise, −ELBO over time."""

import io
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from leanbayes.errors import require
from leanbayes.lab.checkpoints import read_checkpoint
from leanbayes.lab.data import Batches
from leanbayes.lab.files import write_bytes
from leanbayes.lab.from_recipe import build_model, likelihood_of, load_data
from leanbayes.lab.path_names import path_name
from leanbayes.lab.recipe import Recipe
from leanbayes.lab.recipe_files import parse_yaml, read_recipe
from leanbayes.lab.train import build_module, provenance
from leanbayes.lightning import BayesianModule
from research.publishing.study_file import StudyFile, Tell

NATURAL = "natural gradient"
WHOLE = " with the whole KL"
_RUNS = ("adam", "natural_epochs", "shorter", "whole_kl")
"""Settings that say which runs there are; a file may get more of them."""
_ADAM_RECIPE, _NATURAL_RECIPE = (f"matrix_normal/mnist-mlp-mn{end}" for end in ("", "-natural"))


@dataclass(frozen=True)
class NaturalSettings:
    """How both optimizers are run and measured.

    Args:
        epochs: of Adam; learning rates fall to zero over them.
        adam: learning rates of Adam, a run for each.
        natural: length of a natural step; that of scales is a quarter, as in the recipe.
        trust: bound on a natural step.
        natural_epochs: of natural gradients, a run for each.
        shorter: epochs of further runs of Adam, for each rate: a schedule that ends sooner is
            ahead of a longer one until then.
        whole_kl: rates of further runs of Adam, with the whole KL from the first step.
        warmup: over which share of its steps the KL comes in, in other runs. Natural steps follow
            the KL from the first step on; with all of it they switch weights off before the data
            speak for them.
        images: how many training images; all if ``None``.
        measured: on how many of them the −ELBO is measured.
        points: how often it is measured in an epoch.
    """

    epochs: int = 30
    adam: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    natural: float = 0.03
    trust: float = 0.05
    natural_epochs: tuple[int, ...] = (8,)
    shorter: tuple[int, ...] = ()
    whole_kl: tuple[float, ...] = ()
    warmup: float = 0.5
    images: int | None = None
    measured: int = 2000
    points: int = 4


def recipes_of(settings: NaturalSettings, seed: int) -> dict[str, Recipe]:
    """Return the recipe of every run of a seed, by the name of its optimizer."""
    common = {
        "kl": {"kind": "constant"},
        "training.epochs": settings.epochs,
        "training.limit": settings.images,
        "seed": seed,
    }
    rates = {f"Adam {rate:g}": rate for rate in settings.adam}
    rates |= {f"Adam {rate:g}{WHOLE}": rate for rate in settings.whole_kl}
    runs = {
        name: read_recipe(_ADAM_RECIPE, settings={**common, "optimizer.lr": rate})
        for name, rate in rates.items()
    }
    for epochs in settings.shorter:
        for rate in settings.adam:
            own = {**common, "training.epochs": epochs, "optimizer.lr": rate}
            runs[f"Adam {rate:g} over {epochs} epochs"] = read_recipe(_ADAM_RECIPE, settings=own)
    steps = {"optimizer.lr": settings.natural, "optimizer.trust": settings.trust}
    for epochs in settings.natural_epochs:
        own = {**common, **steps, "training.epochs": epochs}
        runs[f"{NATURAL} over {epochs} epochs"] = read_recipe(_NATURAL_RECIPE, settings=own)
    return runs


def compare_optimizers(
    settings: NaturalSettings,
    out: str | Path,
    *,
    seeds: int = 1,
    progress: bool = False,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """Train with every optimizer and seed that the file lacks, and measure the −ELBO.

    A run that was stopped goes on from its last epoch, whose state lies beside the file.
    """
    common = {name: value for name, value in asdict(settings).items() if name not in _RUNS}
    file = StudyFile(out, "natural gradients", common)

    def state_of(name: str, recipe: Recipe) -> Path:
        state = path_name(f"{file.path.stem}-{name}-{recipe.seed}".replace(" ", "-"))
        return file.path.with_name(f"{state}.state")

    def part(name: str, recipe: Recipe) -> dict[str, Any]:
        warmup = 0.0 if name.endswith(WHOLE) else settings.warmup
        run = _Run(recipe, settings, state_of(name, recipe), warmup)
        return {"optimizer": name, **run.train(progress, f"{name}, seed {recipe.seed}")}

    runs = [item for seed in range(seeds) for item in recipes_of(settings, seed).items()]
    for name, recipe in runs:
        key = f"{name}, seed {recipe.seed}"
        file.fill({key: partial(part, name, recipe)}, tell)
        state_of(name, recipe).unlink(missing_ok=True)
    return file.study


class _Run:
    """One network on its way: its curve so far, and the seconds of a processor that it took."""

    def __init__(
        self, recipe: Recipe, settings: NaturalSettings, state_file: Path, warmup: float
    ) -> None:
        self.recipe, self.settings, self.state_file = recipe, settings, state_file
        self.warmup = warmup
        examples = load_data(recipe).train[: recipe.training.limit]
        self.batches = Batches(examples, recipe.training.batch_size, seed=recipe.seed)
        self.measured = Batches(examples[: settings.measured], 500)
        model = build_model(recipe)
        self.module: BayesianModule = build_module(
            recipe, model, likelihood_of(recipe), len(examples)
        )
        self.optimizer = self.module.configure_optimizers()
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.seconds, self.first_epoch = 0.0, 0
        self.curve: dict[str, list[float]] = {"steps": [], "seconds": [], "negative_elbo": []}

    def train(self, progress: bool, title: str) -> dict[str, Any]:
        """Go on to the last epoch; what is measured, and what it depends on."""
        if self.state_file.exists():
            self._load()
        else:
            self._measure(0)
        left = range(self.first_epoch, self.recipe.training.epochs)
        for epoch in track(left, title, disable=not progress):
            self._epoch(epoch)
            self._save(epoch + 1)
        return {
            "seed": self.recipe.seed,
            **self.curve,
            "duration": round(self.seconds, 2),
            **provenance(self.recipe),
        }

    def _epoch(self, epoch: int) -> None:
        """The processor's clock runs from batch to batch, and not while the −ELBO is measured."""
        factor = self.recipe.learning_rate(epoch, self.recipe.training.epochs)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        torch.manual_seed((self.recipe.seed * 1_000_003 + epoch) % 2**63)
        size, due = len(self.batches), set(self._due())
        began = time.process_time()
        for number, batch in enumerate(self.batches.epoch(epoch), 1):
            self.optimizer.zero_grad()
            parts = self.module.objective(batch)
            (parts.nll + self._weight(epoch * size + number) * parts.kl).backward()
            self.optimizer.step()
            if number in due:
                self.seconds += time.process_time() - began
                self._measure(epoch * size + number)
                began = time.process_time()

    def _weight(self, step: int) -> float:
        """Of the KL."""
        steps = len(self.batches) * self.recipe.training.epochs
        return min(1.0, step / (self.warmup * steps)) if self.warmup else 1.0

    def _due(self) -> Iterator[int]:
        """After which batches of an epoch the −ELBO is measured: the last is one of them."""
        size, points = len(self.batches), self.settings.points
        return (max(1, size * point // points) for point in range(1, points + 1))

    @torch.no_grad()
    def _measure(self, step: int) -> None:
        """The −ELBO of training images, with the whole KL and the same noise every time."""
        total = 0.0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.recipe.seed)
            for batch in self.measured.in_order():
                parts = self.module.objective(batch)
                total += len(batch[1]) * float(parts.nll + parts.kl)
        self.curve["steps"].append(step)
        self.curve["seconds"].append(round(self.seconds, 3))
        self.curve["negative_elbo"].append(round(total / len(self.measured.examples), 5))

    def _save(self, epochs: int) -> None:
        state = {
            "recipe": self.recipe.to_yaml(),
            "epochs": epochs,
            "seconds": self.seconds,
            "curve": self.curve,
            "model": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_bytes(self.state_file, buffer.getbuffer())

    def _load(self) -> None:
        state = read_checkpoint(self.state_file)
        require(
            parse_yaml(state["recipe"]) == parse_yaml(self.recipe.to_yaml()),
            f"{self.state_file} is of other settings; delete it, or choose another --out",
        )
        self.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.first_epoch, self.seconds = int(state["epochs"]), float(state["seconds"])
        self.curve = {name: list(values) for name, values in state["curve"].items()}
