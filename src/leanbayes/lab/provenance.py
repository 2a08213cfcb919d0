"""Provenance of results: versions, revision, content of the source and threads."""

import hashlib
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


def environment_facts(*packages: str) -> dict[str, Any]:
    """Return the versions of leanbayes, torch and other packages, revision, tree and threads.

    ``tree`` is the content of the checkout at that revision, by which ``git log --format='%T %H'``
    finds it after a rebase; ``sources`` is the content of the package's modules as they ran, also
    outside of a checkout or with changes that nobody committed.
    """
    return {
        "versions": {name: version(name) for name in ("leanbayes", "torch", *packages)},
        "revision": _git("HEAD"),
        "tree": _git("HEAD^{tree}"),
        "sources": sources_hash(),
        "threads": torch.get_num_threads(),
    }


def sources_hash(package: Path = Path(__file__).parents[1]) -> str:
    """Return a hash of all modules and recipes of a package: their places and their content."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.suffix in {".py", ".cpp", ".h", ".yaml"}:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{content}  {path.relative_to(package).as_posix()}\n".encode())
    return digest.hexdigest()


def _git(name: str) -> str | None:
    """Return the object of this name in the repository of the source, if there is one."""
    try:
        git = ["git", "-C", str(Path(__file__).parent), "rev-parse", name]
        return subprocess.check_output(git, text=True, timeout=10, stderr=subprocess.PIPE).strip()
    except (OSError, subprocess.SubprocessError):
        return None
