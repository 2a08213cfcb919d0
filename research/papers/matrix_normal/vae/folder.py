"""The folder of an auto-encoder: what is trained, the curve, the last states and the best model."""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from leanbayes.errors import LoadError
from leanbayes.lab.checkpoints import Checkpoints, read_checkpoint
from leanbayes.lab.files import locked, read_object, write_bytes, write_json
from leanbayes.lab.tables import write_table
from leanbayes.saving.files import remove_partial_files
from research.papers.matrix_normal.vae.network import Vae
from research.papers.matrix_normal.vae.settings import VaeSettings
from research.publishing.study_file import refuse_changes

_PARTS = frozenset({"settings", "epoch", "state_dict", "optimizer", "best", "curve"})
_AGAIN = "train it with python -m research papers vae"


class VaeFolder:
    """One auto-encoder and its files; nothing else knows their names.

    ``settings.json`` says what is trained, ``metrics.csv`` has a line an epoch, ``checkpoints/``
    the last two states, ``model.pt`` the weights with the best bound of the validation images, and
    ``result.json``, the last one written, what came out.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = Checkpoints(self.path / "checkpoints", _PARTS)
        self._settings_file = self.path / "settings.json"
        self._model_file = self.path / "model.pt"
        self._result_file = self.path / "result.json"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes out, and clear away what killed ones left."""
        self.path.mkdir(parents=True, exist_ok=True)
        taken = f"{self.path} is in use: another process trains there; choose another --out"
        with locked(self.path / ".lock", taken):
            remove_partial_files(self.path)
            remove_partial_files(self.checkpoints.folder)
            yield

    @property
    def settings(self) -> VaeSettings:
        """What is, or was, trained here."""
        values = read_object(self._settings_file, {"encoder"}, "the settings of a VAE", _AGAIN)
        return VaeSettings.from_json(values)

    def begin(self, settings: VaeSettings) -> None:
        """Refuse a folder of other settings; write them into a new one."""
        if not self._settings_file.exists():
            write_json(self._settings_file, settings.to_json())
        before, now = self.settings.to_json(), settings.to_json()
        refuse_changes(self.path, before, now, "auto-encoder")

    def save_state(self, state: Mapping[str, Any]) -> None:
        """Write the state after an epoch and the curve up to it."""
        path = self.checkpoints.path(state["epoch"])
        self.checkpoints.write(path, _packed(state))
        self.checkpoints.drop_old()
        curve = state["curve"]
        write_table(
            self.path / "metrics.csv", {name: [row[name] for row in curve] for name in curve[0]}
        )

    def last_state(self, model: Vae) -> dict[str, Any] | None:
        """Return the newest state that can be gone on from, if there is one."""
        path = self.checkpoints.last(model)
        return None if path is None else read_checkpoint(path)

    def finish(self, weights: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Keep the best weights and the result; checkpoints are not needed any more."""
        write_bytes(self._model_file, _packed({"state_dict": dict(weights)}))
        write_json(self._result_file, result)
        for path in self.checkpoints.paths():
            path.unlink()

    def result(self) -> dict[str, Any] | None:
        """Return the result; ``None`` while it is trained."""
        if not self._result_file.exists():
            return None
        return read_object(self._result_file, {"settings", "bound"}, "the result of a VAE", _AGAIN)

    def load(self) -> Vae:
        """Return the trained auto-encoder, in eval mode."""
        if not self._model_file.is_file():
            raise FileNotFoundError(f"{self.path} holds no trained auto-encoder; {_AGAIN}")
        try:
            weights = read_checkpoint(self._model_file)["state_dict"]
            model = self.settings.network(weights["encoder.dense1.weight"].shape[1])
            model.load_state_dict(weights)
        except (ValueError, KeyError, TypeError, RuntimeError, EOFError, OSError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise LoadError(f"{self._model_file} is damaged ({reason}); {_AGAIN}") from error
        return model.eval()


def _packed(values: Mapping[str, Any]) -> memoryview:
    buffer = io.BytesIO()
    torch.save(dict(values), buffer)
    return buffer.getbuffer()
