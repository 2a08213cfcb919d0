"""Incidents of a run: numbers that were not finite, and settings that were changed then."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leanbayes.lab.files import read_object, write_json

_STEP_SIZES = ("optimizer.lr", "learning_rate.", "training.gradient_clip")
"""Keys of a recipe that may change after numbers that were not finite."""


class IncidentLog:
    """A file that only a run with something to tell has.

    Args:
        path: the file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     history = IncidentLog(Path(folder) / "history.json")
        ...     history.note_stop(5, "the loss is nan")
        ...     history.note_changes(5, {"optimizer.lr": (0.1, 0.01)})
        ...     history.sentences()
        ('From epoch 5 on, optimizer.lr is 0.01 and no longer 0.1, because the loss is nan.',)
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def values(self) -> dict[str, list[dict[str, Any]]]:
        """What was ``stopped``, in which epoch and why, and what was ``changed``, from when on."""
        if not self.path.is_file():
            return {"stopped": [], "changed": []}
        keys = {"stopped", "changed"}
        return read_object(self.path, keys, "the history of a run", "choose another --out")

    def may_change(self, key: str) -> bool:
        """Whether the run may go on with another value of a recipe's key."""
        return key.startswith(_STEP_SIZES) and bool(self.values["stopped"])

    def note_stop(self, epoch: int, reason: str) -> None:
        """The run met a number that is not finite."""
        values, stop = self.values, {"epoch": epoch, "reason": reason}
        if stop not in values["stopped"]:
            values["stopped"].append(stop)
            write_json(self.path, values)

    def note_changes(self, epoch: int, changes: Mapping[str, tuple[Any, Any]]) -> None:
        """The run goes on from an epoch with other values; each is given before and now."""
        values = self.values
        for key, (before, now) in changes.items():
            change = {"epoch": epoch, "key": key, "before": before, "now": now}
            values["changed"].append({**change, "reason": values["stopped"][-1]["reason"]})
        write_json(self.path, values)

    def sentences(self) -> tuple[str, ...]:
        """What a reader of the run's numbers has to know."""
        return tuple(
            f"From epoch {change['epoch']} on, {change['key']} is {change['now']} and no longer "
            f"{change['before']}, because {change['reason']}."
            for change in self.values["changed"]
        )

    def clear(self) -> None:
        """Forget it: another run begins."""
        self.path.unlink(missing_ok=True)
