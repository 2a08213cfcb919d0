"""Damaged files: seeded mutations of valid ones must be refused in a sentence, or be read."""

from __future__ import annotations

import io
import json
import os
import random
import re
import resource
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import require
from leanbayes.lab.checkpoints import Checkpoints
from leanbayes.lab.console import one_line
from leanbayes.lab.data import load_dataset
from leanbayes.lab.provenance import environment_facts
from leanbayes.lab.recipe_files import read_recipe
from research.publishing.study_file import StudyFile, Tell, read_study, write_study

_SECONDS, _LONGEST, _BYTES = 5.0, 1500, 200 * 2**20
"""CPU seconds and memory that a file may take to read, and characters of a sentence."""

_TOKENS = (
    *(b"\0", b"\xff\xfe", b"\n", b"\r\n", b'"', b"'", b",", b";", b"\t", b"{", b"}", b"[", b"]"),
    *(b"null", b"NaN", b"inf", b"-1", b"1e999", b"99999999999999999999", b"0x10", b"1_0", b": "),
    *(b"- ", b"&a ", b"*a", b"<<: ", b"!!python/object/apply:os.system", b"../", b"\xed\xa0\x80"),
)


def mutated(content: bytes, draw: random.Random) -> bytes:
    """One to four changes of bytes: flipped, removed, repeated, inserted, cut off, overwritten."""
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at = draw.randrange(len(changed) + 1)
        end = min(len(changed), at + draw.choice((1, 2, 8, 64)))
        match draw.randrange(7):
            case 0 if at < len(changed):
                changed[at] ^= 1 << draw.randrange(8)
            case 1:
                del changed[at:end]
            case 2:
                changed[at:at] = changed[at:end] * draw.choice((1, 2, 50))
            case 3:
                changed[at:at] = draw.choice(_TOKENS)
            case 4:
                changed[at:end] = draw.choice(_TOKENS)
            case 5 if draw.random() < 0.2:
                del changed[at:]
            case _:
                changed[at:end] = draw.randbytes(end - at)
    return bytes(changed)


def header_mutated(content: bytes, draw: random.Random) -> bytes:
    """One to three names or values in the header of a model, replaced by others."""
    end = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:end])
    text = entries.pop("__metadata__")["leanbayes"]
    places = json.dumps(entries)
    for _ in range(draw.choice((1, 1, 2, 3))):
        text, places = (
            (_replaced(text, draw), places)
            if draw.random() < 0.8
            else (text, _replaced(places, draw))
        )
    metadata = json.dumps({"__metadata__": {"leanbayes": text}})
    header = f"{metadata[:-1]}, {places[1:]}".encode("utf-8", "surrogatepass")
    return len(header).to_bytes(8, "little") + header + content[end:]


def _replaced(text: str, draw: random.Random) -> str:
    """A key or value of JSON replaced by another one of it, or by a strange one."""
    values = list(_VALUE.finditer(text))
    if not values:
        return text
    value = draw.choice(values)
    others = [*_STRANGE, *[each[0] for each in draw.choices(values, k=len(_STRANGE))]]
    if text.startswith(":", value.end()):
        others = [other for other in others if other.startswith('"')]
    return text[: value.start()] + draw.choice(others) + text[value.end() :]


def member_mutated(content: bytes, draw: random.Random) -> bytes:
    """Changes in one member of an archive, whose checksums are those of the changed member."""
    members = _members(content)
    changed = draw.choice(list(members))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name, data in members.items():
            file.writestr(zipfile.ZipInfo(name), mutated(data, draw) if name == changed else data)
    return archive.getvalue()


@cache
def _members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return {name: file.read(name) for name in file.namelist()}


def without_checksum(content: bytes) -> bytes:
    """The model as the first versions wrote it, so that a change is not refused by its checksum."""
    end = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:end])
    description = json.loads(entries["__metadata__"]["leanbayes"])
    del description["checksum"]
    entries["__metadata__"] = {"leanbayes": json.dumps(description)}
    header = json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + content[end:]


_VALUE = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:e-?\d+)?|true|false|null')
_STRANGE = (
    *("null", "true", "-1", "0", "0.5", "1e999", "NaN", "300000", f"1{'0' * 30}", "9" * 5000),
    *('""', '"x"', '"mean"', '"F64"', '"\\ud800"', "[]", "[1]", "{}", '{"kind": "KTied"}', "["),
    *("[" * 20_000, '{"a":' * 20_000, '"kind": 1', f'"{"a" * 10_000}"'),
)


@dataclass(frozen=True)
class Subject:
    """A kind of file.

    Attributes:
        valid: content of a valid file.
        name: of the file.
        read: reads it and raises an error that has a sentence.
        change: makes a damaged file of the valid one.
    """

    valid: bytes
    name: str
    read: Callable[[Path], object]
    change: Callable[[bytes, random.Random], bytes] = mutated


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def subjects(folder: Path) -> dict[str, Subject]:
    """Every kind of file, with a small valid one."""
    torch.manual_seed(0)
    model = lb.convert(_network(), lb.KTied(2), lb.priors.Normal(0.5))
    saved = Path(lb.save(model, folder / "model")).read_bytes()
    state = {"epoch": 0, "state_dict": model.state_dict(), "numbers": [1, 2.5, None, "text"]}
    buffer, arrays = io.BytesIO(), io.BytesIO()
    torch.save(state, buffer)
    np.savez(arrays, x=np.random.default_rng(0).normal(size=(20, 3)), y=np.arange(20) % 2)
    recipe = read_recipe("k_tied/mnist-mlp-k2").to_yaml().encode()
    rows = "".join(f"{i / 7:.3f},{i % 5},{'yes' if i % 3 else 'no'}\n" for i in range(30))
    study = write_study(folder / "s.json", {"study": "s", "settings": {"n": 1}, "parts": {"a": {}}})
    model_file = Subject(saved, "model.safetensors", lambda path: lb.load(_network(), path))
    arrays_file = Subject(arrays.getvalue(), "table.npz", _table)
    checkpoint = Subject(buffer.getvalue(), "epoch-00000.ckpt", partial(_checkpoint, model=model))
    bare = without_checksum(saved)
    return {
        "model": model_file,
        "model, header": replace(model_file, valid=bare, change=header_mutated),
        "recipe": Subject(recipe, "recipe.yaml", read_recipe),
        "CSV": Subject(f"a,b,label\n{rows}".encode(), "table.csv", _table),
        "NPZ": arrays_file,
        "NPZ, one array": replace(arrays_file, change=member_mutated),
        "checkpoint": checkpoint,
        "checkpoint, one member": replace(checkpoint, change=member_mutated),
        "study": Subject(study.read_bytes(), "s.json", lambda path: read_study(path, "trust s")),
    }


def _table(path: Path) -> object:
    return load_dataset(str(path))


def _checkpoint(path: Path, model: nn.Module) -> object:
    found = Checkpoints(path.parent, {"epoch", "state_dict"}).last(model, set_aside=False)
    require(found is not None, "the run starts again from the first epoch")
    return found


@dataclass
class Outcome:
    """What reading changed files led to.

    Attributes:
        mutations: how many were read.
        accepted: how many were read without an error.
        findings: those that ended otherwise, with the number that draws them.
        slowest: CPU seconds of the slowest.
        memory: bytes by which the process grew at most.
    """

    mutations: int = 0
    accepted: int = 0
    findings: list[str] = field(default_factory=list)
    slowest: float = 0.0
    memory: int = 0


def attempt(subject: Subject, kind: str, number: int, seed: int, folder: Path) -> tuple[bool, str]:
    """Read one changed file: whether it was accepted, and what is wrong if anything is."""
    path = folder / subject.name
    _overwrite(path, subject.change(subject.valid, random.Random(f"{kind} {seed} {number}")))
    started = time.process_time()
    accepted, problem = False, ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            subject.read(path)
        accepted = True
    except (ValueError, OSError, RuntimeError) as error:
        said = one_line(error)
        if not said or len(said) > _LONGEST:
            problem = f"{type(error).__name__} with {len(said)} characters"
    except Exception as error:
        problem = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    if time.process_time() - started > _SECONDS:
        problem = problem or f"took {time.process_time() - started:.0f} s"
    return accepted, problem


def _overwrite(path: Path, content: bytes) -> None:
    """As a file that is there, which is much faster than one that is emptied and filled."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(content)
        file.truncate()


def _in_memory() -> Path | None:
    """A folder whose files are in memory, if there is one."""
    place = Path("/dev/shm")
    return place if os.access(place, os.W_OK) else None


def read_mutations(kind: str, numbers: Iterable[int], seed: int) -> Outcome:
    """Read changed files of a kind, drawn by these numbers."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory(dir=_in_memory()) as place:
        folder = Path(place, "files")
        folder.mkdir()
        subject = subjects(Path(place))[kind]
        start = _peak()
        for number in numbers:
            before = time.process_time()
            accepted, problem = attempt(subject, kind, number, seed, folder)
            outcome.mutations += 1
            outcome.accepted += accepted
            if problem:
                outcome.findings.append(f"{number}: {problem}")
            outcome.slowest = max(outcome.slowest, time.process_time() - before)
            if _peak() - start > max(outcome.memory, _BYTES):
                outcome.findings.append(f"{number}: took {(_peak() - start) >> 20} MB")
            outcome.memory = max(outcome.memory, _peak() - start)
    return outcome


def _peak() -> int:
    """Bytes that the process has taken at most."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


KINDS = (
    *("model", "model, header", "recipe", "CSV", "NPZ", "NPZ, one array"),
    *("checkpoint", "checkpoint, one member", "study"),
)


@dataclass(frozen=True)
class Budget:
    """How much is tried.

    Args:
        mutations: Number of mutations per part of the study.
        rounds: Number of parts for each kind of file; half as many recipes, which are slow.
        seed: Random seed.
    """

    mutations: int = 5_000
    rounds: int = 25
    seed: int = 0


def study(settings: Budget, out: Path, tell: Tell) -> dict[str, Any]:
    """Read changed files of every kind in turns; a stopped study goes on."""
    torch.set_num_threads(1)

    def part(kind: str, turn: int) -> Mapping[str, Any]:
        count = settings.mutations // (2 if kind == "recipe" else 1)
        started = time.monotonic()
        found = read_mutations(kind, range(turn * count, (turn + 1) * count), settings.seed)
        return {**asdict(found), "duration": time.monotonic() - started, **environment_facts()}

    parts = {
        f"{kind} | {turn}": partial(part, kind, turn)
        for turn in range(settings.rounds)
        for kind in KINDS
    }
    return StudyFile(out, "damaged files", asdict(settings)).fill(parts, tell)
