"""Provenance of results: versions, revision and threads."""

import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


def environment_facts(*packages: str) -> dict[str, Any]:
    """The versions of leanbayes, torch and other packages, the revision and the threads.

    Example:
        >>> sorted(environment_facts("numpy")["versions"])
        ['leanbayes', 'numpy', 'torch']
    """
    return {
        "versions": {name: version(name) for name in ("leanbayes", "torch", *packages)},
        "revision": _revision(),
        "threads": torch.get_num_threads(),
    }


def _revision() -> str | None:
    """The git revision of the source, if there is one."""
    try:
        git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        return subprocess.check_output(git, text=True, timeout=10, stderr=subprocess.PIPE).strip()
    except (OSError, subprocess.SubprocessError):
        return None
