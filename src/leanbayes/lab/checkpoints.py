"""Checkpoints of a run: written with a checksum, and checked before a run resumes from one."""

import hashlib
import math
import pickletools
import re
import warnings
import zipfile
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leanbayes.errors import explained_as, first_line, require
from leanbayes.lab.files import write_bytes, write_text

MOST_VALUES = 10_000_000
"""How many values a checkpoint may hold; one that stands in several places counts in each."""

_KEPT = 2
_NAME = re.compile(r"epoch-(\d+)\.ckpt")
_END = "# end\n"
"""Last line of the checksums, a comment to ``sha256sum``; a file without it may be truncated."""

_SUM = re.compile(r"^([0-9a-f]{64})  .*/(epoch-\d+\.ckpt)$", re.MULTILINE)
_PARTS = {"epoch", "global_step", "state_dict", "optimizer_states", "loops", "callbacks"}


class Checkpoints:
    """The files ``epoch-N.ckpt`` of a folder, and the checksums of all of them beside it.

    ``sha256sum --ignore-missing -c checkpoints.sha256`` in the run folder compares them, too.
    """

    def __init__(self, folder: Path, parts: Set[str] = _PARTS) -> None:
        self.folder, self.parts = folder, parts
        self._sums_file = folder.with_suffix(".sha256")

    def path(self, epoch: int) -> Path:
        """Return the path of the state after an epoch."""
        return self.folder / f"epoch-{epoch:05d}.ckpt"

    def paths(self) -> list[Path]:
        """Return all of them, oldest first."""
        named = (path for path in self.folder.glob("epoch-*.ckpt") if _NAME.fullmatch(path.name))
        return sorted(named, key=epoch_of)

    def write(self, path: Path, content: memoryview) -> None:
        """Write one of them; its checksum is there before it is."""
        stated, _ = self._sums()
        sums = {known.name: stated.get(known.name) or _sha256(known) for known in self.paths()}
        sums[path.name] = hashlib.sha256(content).hexdigest()
        lines = (f"{digest}  {self.folder.name}/{name}\n" for name, digest in sums.items())
        write_text(self._sums_file, "".join((*lines, _END)))
        write_bytes(path, content)

    def drop_old(self) -> None:
        """Keep the newest two."""
        for old in self.paths()[:-_KEPT]:
            old.unlink()

    def last(self, module: nn.Module, *, set_aside: bool = True) -> Path | None:
        """Return the newest one that can be gone on from; says what is wrong with newer ones."""
        faults: dict[Path, str] = {}
        for path in reversed(self.paths()):
            fault = self._fault(path, module)
            if fault is None:
                _tell(faults, f"going on from {path.name}", set_aside)
                return path
            faults[path] = fault
        require(
            not faults or epoch_of(min(faults, key=epoch_of)) == 0,
            f"no checkpoint in {self.folder} can be gone on from: "
            + "; ".join(f"{path.name} {fault}" for path, fault in faults.items())
            + ". Put a good one there, or choose another --output",
        )
        _tell(faults, "starting again from the first epoch", set_aside)
        return None

    def _sums(self) -> tuple[dict[str, str], bool]:
        """Checksums by name, none in folders of the first runs, and whether they are all there."""
        if not self._sums_file.is_file():
            return {}, False
        text = self._sums_file.read_text(encoding="utf-8", errors="replace")
        return {name: digest for digest, name in _SUM.findall(text)}, text.endswith(_END)

    def _fault(self, path: Path, module: nn.Module) -> str | None:
        """Return what keeps a run from going on from a checkpoint, if anything does."""
        sums, complete = self._sums()
        try:
            if path.name in sums:
                if _sha256(path) != sums[path.name]:
                    return "is damaged (its checksum is another)"
            elif complete:
                return "was not written by this run"
            elif zipfile.ZipFile(path).testzip() is not None:
                return "is damaged (a checksum inside it is another)"
            state = read_checkpoint(path)
        except PermissionError:
            raise
        except Exception as error:  # a damaged file may fail in any way
            return f"is damaged ({first_line(error)})"
        if not isinstance(state, dict) or not state.keys() >= self.parts:
            return "is not a checkpoint of a run"
        return _misfit(state, epoch_of(path), module)


def read_checkpoint(path: Path) -> Any:
    """Read what ``torch.save`` wrote, to the CPU; no code runs, and nothing small becomes large."""
    with explained_as(
        f"{path} is not a checkpoint that was saved here ({{reason}})",
        *(zipfile.BadZipFile, LookupError, RuntimeError, ValueError),
    ):
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
            require(unpacked <= path.stat().st_size, "it unpacks to more than its size")
            for name in archive.namelist():
                if name.endswith(".pkl"):
                    _check_globals(archive.read(name))
        state = torch.load(path, map_location="cpu", weights_only=True)
        require(_count(state, {}) <= MOST_VALUES, f"it holds more than {MOST_VALUES} values")
    return state


def _check_globals(pickled: bytes) -> None:
    """Refuse what torch lets a pickle make from a number alone."""
    for opcode, argument, _ in pickletools.genops(pickled):
        of_any_size = opcode.name == "GLOBAL" and str(argument).endswith((" bytearray", "Tensor"))
        require(not of_any_size, f"it asks for {argument!r} of any size")


def _count(value: Any, known: dict[int, float]) -> float:
    """Return how many values whoever walks through a value meets: no end where it holds itself."""
    if not isinstance(value, dict | list | tuple | set):
        return 1
    if id(value) not in known:
        known[id(value)] = math.inf
        inside = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(each, known) for each in inside)
    return known[id(value)]


def epoch_of(path: Path) -> int:
    """Return the epoch that a checkpoint's name tells."""
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _tell(faults: Mapping[Path, str], remedy: str, set_aside: bool) -> None:
    for path, fault in faults.items():
        warnings.warn(f"{path} {fault}; {remedy}", stacklevel=3)
        if set_aside:
            path.replace(path.with_suffix(".damaged"))


def _misfit(state: Mapping[str, Any], epoch: int, module: nn.Module) -> str | None:
    """Return what differs from the state of a module after an epoch, or is not a number in it."""
    if state["epoch"] != epoch:
        return f"holds epoch {state['epoch']}"
    weights = state["state_dict"]
    expected = {name: value.shape for name, value in module.state_dict().items()}
    found = weights.items() if isinstance(weights, dict) else ()
    if {name: getattr(value, "shape", None) for name, value in found} != expected:
        return "is of another network"
    for name, _ in module.named_parameters():
        if not bool(weights[name].isfinite().all()):
            return f"holds numbers that are not finite, first in {name!r}"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
