"""The papers that leanbayes follows, one file each, and the tool that makes their pages.

To add a paper, write one file in this folder with a :class:`~papers.tools.paper.Paper` in it, named
``PAPER``; :data:`PAPERS` finds it.
"""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from papers.tools.paper import Paper

__all__ = ["PAPERS"]

PAPERS: Mapping[str, Paper] = {
    module.name: import_module(f"papers.{module.name}").PAPER
    for module in iter_modules(__path__)
    if not module.ispkg and module.name != "__main__"
}
"""Every paper by the name that recipes use."""
