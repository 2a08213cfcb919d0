"""The papers that leanbayes follows, a folder each.

To add a paper, write ``NAME/paper.py`` in this folder with a
:class:`~research.publishing.paper.Paper` in it, named ``PAPER``; :data:`PAPERS` finds it.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from research.publishing.paper import Paper


def find_papers() -> dict[str, Paper]:
    """Find the paper of every folder, by name."""
    names = sorted(file.parent.name for path in __path__ for file in Path(path).glob("*/paper.py"))
    return {name: import_module(f"{__name__}.{name}.paper").PAPER for name in names}


PAPERS: Mapping[str, Paper] = find_papers()
"""Every paper by the name that recipes use."""
