"""The sections of a report, one function each; open to what others define."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from leanbayes.lab.report.html import Html
from leanbayes.lab.report.study import Study
from leanbayes.lab.runs import Run
from leanbayes.registry import Registry

__all__ = ["SECTIONS", "register_section"]

Section = TypeVar("Section", bound=Callable[[Run, Study], Html | None])

SECTIONS = Registry[Callable[[Run, Study], Html | None]]("section")
"""Every section by the name of its function, in the order of the page."""


def register_section(section: Section) -> Section:
    """Add a section to what a report says of a run, after those there are.

    It decorates a function of the run folder and of what its model and data give; the function
    returns HTML, or None where it has nothing to say.

    Example:
        >>> from leanbayes.lab.report.html import element
        >>> from leanbayes.lab.report.html import section as titled
        >>> @register_section
        ... def size(run: Run, study: Study) -> Html | None:
        ...     if study.dataset is None:
        ...         return None
        ...     return titled("Size", element("p", f"{study.dataset.data_size} examples"))
        >>> SECTIONS.unregister("size")
    """
    return SECTIONS.register(section)
