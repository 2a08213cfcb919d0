"""Facts about the machine and the versions that a measurement depends on."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

import leanbayes as lb


def facts(*packages: str) -> dict[str, Any]:
    """Return versions and the machine, without its name."""
    return {
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "leanbayes": lb.__version__,
            **{name: _version(name) for name in packages},
        },
        "machine": {
            "system": platform.system(),
            "architecture": platform.machine(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "load": round(os.getloadavg()[0], 2),
        },
        "native": lb.kernels().native,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line.partition(":")[2].strip() for line in file if "model name" in line]
    except OSError:
        lines = []
    return lines[0] if lines else platform.processor() or "unknown"
