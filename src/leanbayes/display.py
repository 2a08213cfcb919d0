"""Tables for people: aligned text in a terminal, HTML in a notebook."""

from collections.abc import Sequence
from dataclasses import fields
from html import escape
from typing import Any, NamedTuple, Protocol, TypeVar


class DisplayTable(NamedTuple):
    """Cells of text under a head, between a title and notes."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    notes: Sequence[str] = ()
    left: Sequence[int] = (0,)

    def text(self) -> str:
        """Return the table in a font of fixed width."""
        lines = [self.head, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        at_left = [i in self.left or i - len(widths) in self.left for i in range(len(widths))]
        shown = (
            "  ".join(
                cell.ljust(width) if left else cell.rjust(width)
                for cell, width, left in zip(line, widths, at_left, strict=True)
            ).rstrip()
            for line in lines
        )
        return "\n".join([*[self.title] * bool(self.title), *shown, *self.notes])

    def html(self) -> str:
        """Return the table for a notebook."""
        head, *rows = (
            "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in line)
            for tag, line in [("th", self.head), *(("td", row) for row in self.rows)]
        )
        title = f"<caption>{escape(self.title)}</caption>" if self.title else ""
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"


class HasTable(Protocol):
    """A result with rows that people read."""

    def table(self) -> DisplayTable:
        """Return the rows."""


T = TypeVar("T", bound=HasTable)


def shown_as_table(kind: type[T]) -> type[T]:
    """Show the values of a class as their ``table()``, in terminals and in notebooks."""

    def text(value: T) -> str:
        return value.table().text()

    def html(value: T) -> str:
        return value.table().html()

    kind.__repr__ = text  # type: ignore[method-assign, assignment]
    kind._repr_html_ = html  # type: ignore[attr-defined]
    return kind


def short_repr(value: Any) -> str:
    """Return a dataclass without the fields that have their defaults; functions by their names."""
    shown = []
    for place, field in enumerate(fields(value)):
        content = getattr(value, field.name)
        number_or_name = place == 0 and isinstance(content, int | float | str)
        if number_or_name or content != field.default:
            name = getattr(content, "__name__", None)
            shown.append(f"{field.name}={name or repr(content)}")
    return f"{type(value).__name__}({', '.join(shown)})"
