"""A run folder: the files it holds, and how they are written, read and loaded."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, nn

from leanbayes.lab.checkpoints import Checkpoints, read_checkpoint
from leanbayes.lab.data import Dataset, Examples
from leanbayes.lab.files import locked, write_bytes, write_text
from leanbayes.lab.from_recipe import build_model, likelihood_of, load_data
from leanbayes.lab.recipe import Recipe
from leanbayes.lab.recipe_files import parse_yaml, read_recipe
from leanbayes.lab.result_files import IncidentLog, read_result, write_result
from leanbayes.lab.tables import read_numbers, write_table
from leanbayes.likelihoods import Likelihood
from leanbayes.metrics import Score
from leanbayes.saving.files import remove_partial_files
from leanbayes.saving.io import load, load_likelihood, save

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
    states, ``model.safetensors`` the trained model and ``result.json`` how it was judged. A run
    whose numbers were once not finite has a ``history.json``.
    """

    def __init__(self, folder: str | Path, recipe: Recipe | None = None) -> None:
        self.folder = Path(folder)
        self.model_file = self.folder / "model.safetensors"
        self._recipe_file = self.folder / "recipe.yaml"
        self._metrics_file = self.folder / "metrics.csv"
        self._result_file = self.folder / "result.json"
        self.checkpoints = Checkpoints(self.folder / "checkpoints")
        self.history = IncidentLog(self.folder / "history.json")
        if recipe is not None:
            self.recipe = recipe

    @cached_property
    def recipe(self) -> Recipe:
        """What is, or was, to be run."""
        if not self._recipe_file.is_file():
            raise FileNotFoundError(
                f"{self.folder} is not a run folder (no recipe.yaml); give a folder that "
                "leanbayes train has written"
            )
        return read_recipe(self._recipe_file)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes out of the folder, and clear away what killed ones left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        taken = (
            f"{self.folder} is in use: another process trains there; wait until it has ended, or "
            "choose another --output"
        )
        with locked(self.folder / ".lock", taken):
            remove_partial_files(self.folder)
            remove_partial_files(self.checkpoints.folder)
            yield

    def check(self, *, resume: bool) -> None:
        """Refuse a folder of another recipe, or one that nobody asked to go on with.

        A run that has finished no epoch may be replaced. After numbers that were not finite, the
        learning rate and the clipping of gradients may change.
        """
        if not self._has_begun:
            return
        if not self._recipe_file.exists():
            raise FileExistsError(
                f"{self.folder} holds checkpoints or results but no recipe.yaml; "
                "put it back, or choose another --output"
            )
        if not resume:
            raise FileExistsError(
                f"{self.folder} holds a run already; resume it with --resume, or choose another "
                "--output"
            )
        for key, (before, now) in self._changes().items():
            if self._result_file.exists() or not self.history.may_change(key):
                raise ValueError(
                    f"{self.folder} was started with another recipe: {key!r} was {before!r} and is "
                    f"now {now!r}; undo the change, or choose another --output"
                )

    @property
    def _has_begun(self) -> bool:
        """Whether there is anything to lose."""
        written = (self._metrics_file, self._result_file, self.model_file)
        return bool(self.checkpoints.paths()) or any(path.exists() for path in written)

    def _changes(self) -> dict[str, tuple[Any, Any]]:
        """Return keys that differ from the recipe of the folder, with their values then and now."""
        started = Run(self.folder).recipe
        before, now = (_flat(parse_yaml(either.to_yaml())) for either in (started, self.recipe))
        return {
            key: (before.get(key), now.get(key))
            for key in sorted(before.keys() | now.keys())
            if key.partition(".")[0] not in _DESCRIBING and before.get(key) != now.get(key)
        }

    def open(self, epoch: int = 0) -> None:
        """Begin the folder with its recipe; what a run that goes on has changed is noted."""
        changes = self._changes() if self._recipe_file.exists() else None
        if changes == {}:
            return
        if changes and self._has_begun:
            self.history.note_changes(epoch, changes)
        elif changes:
            self.history.clear()
            warnings.warn(
                f"{self.folder} held a run of another recipe, which had finished no epoch; it is "
                "replaced",
                stacklevel=2,
            )
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
        """Return how predictions are drawn; the recipe has the default number of samples."""
        chosen = self.recipe.evaluation
        return {
            "samples": chosen.samples if samples is None else samples,
            "batch_size": chosen.batch_size,
            "seed": self.recipe.seed,
        }

    def save(self, model: nn.Module, likelihood: Likelihood) -> None:
        """Write the trained model, converted or not, and what its outputs mean."""
        if self.recipe.posterior is not None:
            save(model, self.model_file, likelihood)
            return
        parts = nn.ModuleDict({"model": model, "likelihood": likelihood}).state_dict()
        weights = {name: value.cpu().contiguous().clone() for name, value in parts.items()}
        write_bytes(self.model_file, safetensors.torch.save(weights))

    def load(self) -> tuple[nn.Module, Likelihood]:
        """Return the trained model of a finished run and what its outputs mean."""
        if not self._result_file.is_file():
            raise FileNotFoundError(
                f"{self.folder} holds no finished run; train or resume it first"
            )
        model = build_model(self.recipe.model_copy(update={"posterior": None, "prior": None}))
        if self.recipe.training.precision == "64":
            model = model.double()
        if self.recipe.posterior is None:
            model.load_state_dict(self._weights("model."))
        else:
            model = load(model, self.model_file)
        return model, self._likelihood()

    def _likelihood(self) -> Likelihood:
        """With what it has learned, which files of the first runs do not hold."""
        likelihood = likelihood_of(self.recipe)
        if not any(True for _ in likelihood.parameters()):
            return likelihood
        if self.recipe.posterior is not None:
            with suppress(ValueError):
                return load_likelihood(self.model_file)
        likelihood.load_state_dict(self._weights("likelihood."))
        return likelihood

    def _weights(self, prefix: str) -> dict[str, Tensor]:
        """Return one part of a plain network's file, or of the last checkpoint."""
        if self.recipe.posterior is None and self.model_file.is_file():
            try:
                state = safetensors.torch.load_file(self.model_file)
            except SafetensorError as error:
                raise ValueError(f"{self.model_file} is damaged ({error})") from error
        else:
            if not (kept := self.checkpoints.paths()):
                raise FileNotFoundError(
                    f"{self.folder} has no checkpoint any more, which this model needs"
                )
            state = read_checkpoint(kept[-1])["state_dict"]
        return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}

    def write_metrics(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Write one row per epoch; a column that some rows lack is empty there."""
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name, "") for row in rows] for name in names}
        write_table(self._metrics_file, columns)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write the last file of a run: it is finished."""
        write_result(self._result_file, result)

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
        """One sentence for each file that is missing or damaged, and for each changed setting."""
        damaged = filter(None, (self._read_metrics()[1], self._read_result()[1]))
        return (*damaged, *self.history.sentences())

    @property
    def damage(self) -> tuple[str, ...]:
        """One sentence for each file that is there and cannot be read."""
        files = (self._metrics_file, self._read_metrics), (self._result_file, self._read_result)
        return tuple(said for file, read in files if file.is_file() and (said := read()[1]))

    def check_result(self) -> None:
        """Raise if there is a result that cannot be read."""
        if self._result_file.is_file():
            read_result(self._result_file)

    @property
    def metrics(self) -> dict[str, Score]:
        """The test metrics of the result."""
        given = self.result.get("metrics", {})
        return {name: Score(float(m["value"]), float(m["error"])) for name, m in given.items()}

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
            return {}, f"{path} is damaged, so there are no learning curves."

    def _read_result(self) -> tuple[dict[str, Any], str]:
        if not self._result_file.is_file():
            return {}, "There is no result.json: the run is not finished; resume it."
        try:
            return read_result(self._result_file), ""
        except (OSError, ValueError) as error:
            return {}, f"{error}."


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return nested keys as dotted ones."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, Mapping) and value
        flat |= _flat(value, f"{above}{key}.") if nested else {f"{above}{key}": value}
    return flat
