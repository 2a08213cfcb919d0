"""A run folder: the files it holds, and how they are written, read and loaded."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, nn

from leanbayes.io import load, load_likelihood, save
from leanbayes.lab.build import build_model, likelihood_of, load_data
from leanbayes.lab.data import Dataset, Examples
from leanbayes.lab.files import told_if_full, write_bytes, write_json, write_text
from leanbayes.lab.recipe import Recipe
from leanbayes.lab.recipe_files import parse_yaml, read_recipe
from leanbayes.lab.tables import read_numbers, write_table
from leanbayes.lab.unpickling import read_checkpoint
from leanbayes.likelihoods import Likelihood
from leanbayes.metrics import Score

__all__ = ["Drawing", "Run"]

_KEPT_CHECKPOINTS = 2
_DESCRIBING = {"published", "cut", "choices"}
"""Keys of a recipe that may change before a run is resumed."""


class Drawing(TypedDict):
    """How predictions are drawn, as ``predict`` and ``evaluate`` take it."""

    samples: int
    batch_size: int
    seed: int


class Run:
    """One run and its folder; nothing else knows the names of the files.

    ``recipe.yaml`` is what is run, ``metrics.csv`` has a line an epoch, ``checkpoints/`` the last
    states, ``model.safetensors`` the trained model and ``result.json`` how it was judged.

    Args:
        folder: the run folder.
        recipe: what is to be run; what the folder says, if not given.
    """

    def __init__(self, folder: str | Path, recipe: Recipe | None = None) -> None:
        self.folder = Path(folder)
        self.model_file = self.folder / "model.safetensors"
        self._recipe_file = self.folder / "recipe.yaml"
        self._metrics_file = self.folder / "metrics.csv"
        self._result_file = self.folder / "result.json"
        if recipe is not None:
            self.recipe = recipe

    @cached_property
    def recipe(self) -> Recipe:
        """What is, or was, to be run."""
        if not self._recipe_file.is_file():
            raise FileNotFoundError(
                f"{self.folder} is no run folder: it has no recipe.yaml; give a folder that "
                "leanbayes train has written"
            )
        return read_recipe(self._recipe_file)

    def check(self, *, resume: bool) -> None:
        """Refuse a folder of another recipe, or one that nobody asked to go on with."""
        if not self._recipe_file.exists():
            return
        if not resume:
            raise FileExistsError(
                f"{self.folder} holds a run already; resume it with --resume, or choose another "
                "--out"
            )
        started = Run(self.folder).recipe
        before, now = (parse_yaml(either.to_yaml()) for either in (started, self.recipe))
        for key, value in now.items():
            if key not in _DESCRIBING and before[key] != value:
                raise ValueError(
                    f"{self.folder} was started with another recipe: {key!r} was {before[key]!r} "
                    f"and is now {value!r}; undo the change, or choose another --out"
                )

    def open(self) -> None:
        """Begin the folder with its recipe."""
        if not self._recipe_file.exists():
            write_text(self._recipe_file, self.recipe.to_yaml())

    @cached_property
    def dataset(self) -> Dataset:
        """The data set of the recipe."""
        return load_data(self.recipe)

    @property
    def training_examples(self) -> Examples:
        """What the model learns from: the recipe may limit it."""
        return self.dataset.train[: self.recipe.training.limit]

    @property
    def data_size(self) -> int:
        """How many examples the model learns from."""
        return len(self.training_examples)

    def drawing(self, samples: int | None = None) -> Drawing:
        """How predictions are drawn; with as many samples as the recipe says, if not given."""
        chosen = self.recipe.evaluation
        return {
            "samples": chosen.samples if samples is None else samples,
            "batch_size": chosen.batch_size,
            "seed": self.recipe.seed,
        }

    def save(self, model: nn.Module, likelihood: Likelihood) -> None:
        """Write the trained model, converted or not, and what its outputs mean."""
        with told_if_full(self.model_file):
            if self.recipe.posterior is not None:
                save(model, self.model_file, likelihood)
                return
            parts = nn.ModuleDict({"model": model, "likelihood": likelihood}).state_dict()
            weights = {name: value.cpu().clone() for name, value in parts.items()}
            write_bytes(self.model_file, safetensors.torch.save(weights))

    def load(self) -> tuple[nn.Module, Likelihood]:
        """The trained model of a finished run and what its outputs mean."""
        if not self._result_file.is_file():
            raise FileNotFoundError(
                f"{self.folder} holds no finished run; train or resume it first"
            )
        model = build_model(self.recipe.model_copy(update={"posterior": None, "prior": None}))
        if self.recipe.posterior is None:
            model.load_state_dict(self._weights("model."))
        else:
            model = load(model, self.model_file)
        return model, self._likelihood()

    def _likelihood(self) -> Likelihood:
        """With what it has learnt, which files of the first runs do not hold."""
        likelihood = likelihood_of(self.recipe)
        if not any(True for _ in likelihood.parameters()):
            return likelihood
        if self.recipe.posterior is not None:
            with suppress(ValueError):
                return load_likelihood(self.model_file)
        likelihood.load_state_dict(self._weights("likelihood."))
        return likelihood

    def _weights(self, prefix: str) -> dict[str, Tensor]:
        """One part of a plain network's file, or of the last checkpoint."""
        if self.recipe.posterior is None and self.model_file.is_file():
            try:
                state = safetensors.torch.load_file(self.model_file)
            except SafetensorError as error:
                raise ValueError(f"{self.model_file} is damaged ({error})") from error
        else:
            if not (kept := self.checkpoints()):
                raise FileNotFoundError(
                    f"{self.folder} has no checkpoint any more, which this model needs"
                )
            state = read_checkpoint(kept[-1])["state_dict"]
        return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}

    def checkpoint(self, epoch: int) -> Path:
        """Where the state after an epoch lies."""
        return self.folder / "checkpoints" / f"epoch-{epoch:05d}.ckpt"

    def checkpoints(self) -> list[Path]:
        """All of them, oldest first."""
        return sorted((self.folder / "checkpoints").glob("epoch-*.ckpt"))

    def drop_old_checkpoints(self) -> None:
        """Keep the newest two."""
        for old in self.checkpoints()[:-_KEPT_CHECKPOINTS]:
            old.unlink()

    def last_checkpoint(self, *, set_aside: bool = True) -> Path | None:
        """The newest checkpoint that can be read; says so if one is damaged, and may move it."""
        for path in reversed(self.checkpoints()):
            try:
                read_checkpoint(path)
                return path
            except (RuntimeError, OSError, EOFError, ValueError) as error:
                reason = str(error).splitlines()[0]
                warnings.warn(
                    f"{path} is damaged ({reason}); going on from the one before", stacklevel=2
                )
                if set_aside:
                    path.replace(path.with_suffix(".damaged"))
        return None

    def write_metrics(self, rows: Sequence[Mapping[str, float]]) -> None:
        """One row an epoch; a column that some rows lack is empty there."""
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name, "") for row in rows] for name in names}
        write_table(self._metrics_file, columns)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """The last file of a run: it is finished."""
        write_json(self._result_file, result)

    @property
    def columns(self) -> dict[str, list[float]]:
        """The metrics of every epoch; NaN where a cell is empty, nothing if they are damaged."""
        return self._read_metrics()[0]

    @property
    def result(self) -> dict[str, Any]:
        """What a finished run came to; empty if there is no result that can be read."""
        return self._read_result()[0]

    @property
    def problems(self) -> tuple[str, ...]:
        """One sentence for each file that is missing or damaged."""
        return tuple(filter(None, (self._read_metrics()[1], self._read_result()[1])))

    @property
    def metrics(self) -> dict[str, Score]:
        """The test metrics of the result."""
        return _scores(self.result.get("metrics", {}))

    @property
    def parameters(self) -> int | None:
        """How many numbers were trained."""
        counts = self.result.get("parameters")
        return sum(counts.values()) if counts else None

    def _read_metrics(self) -> tuple[dict[str, list[float]], str]:
        path = self._metrics_file
        if not path.is_file() or not path.stat().st_size:
            return {}, "There is nothing in metrics.csv: no epoch has been finished."
        try:
            return read_numbers(path), ""
        except (OSError, ValueError):
            return {}, "The file metrics.csv is damaged, so there are no learning curves."

    def _read_result(self) -> tuple[dict[str, Any], str]:
        if not self._result_file.is_file():
            return {}, "There is no result.json: the run is not finished; resume it."
        try:
            result = json.loads(self._result_file.read_text(encoding="utf-8"))
            _scores(result["metrics"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}, (
                "The file result.json is truncated or damaged; resume the run to have it written "
                "again."
            )
        return dict(result), ""


def _scores(metrics: Mapping[str, Any]) -> dict[str, Score]:
    return {name: Score(float(m["value"]), float(m["error"])) for name, m in metrics.items()}
