"""Packages that only some users need."""

import importlib
from typing import Any


def extra(module: str, package: str, purpose: str, name: str = "lab") -> Any:
    """Import a module, or say which extra of leanbayes to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{purpose} needs {package}; run: pip install 'leanbayes[{name}]'"
        ) from error
