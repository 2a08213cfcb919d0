"""The papers that leanbayes follows, one file each, and the tool that makes their pages.

To add a paper, write one file in this folder with a :class:`~papers.tools.paper.Paper` in it, named
``PAPER``; :data:`PAPERS` finds it.
"""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from papers.tools.paper import Paper

__all__ = ["PAPERS", "find_papers"]


def find_papers() -> dict[str, Paper]:
    """The paper of every file of this folder, by name."""
    names = [module.name for module in iter_modules(__path__) if not module.ispkg]
    return {name: import_module(f"papers.{name}").PAPER for name in names if name != "__main__"}


PAPERS: Mapping[str, Paper] = find_papers()
"""Every paper by the name that recipes use."""
