"""HTML by small functions that escape everything they are not told to trust."""

import base64
import html
from collections.abc import Iterable, Sequence
from pathlib import Path

STYLE = Path(__file__).with_name("style.css").read_text(encoding="utf-8")


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def _escape(part: str) -> str:
    return part if isinstance(part, Html) else html.escape(part)


def join(parts: Iterable[str]) -> Html:
    """Parts one after another; what is not HTML is escaped."""
    return Html("\n".join(_escape(part) for part in parts))


def element(name: str, *children: str, **attributes: str) -> Html:
    """One element; ``class_`` is the attribute ``class``.

    Example:
        >>> element("p", "1 < 2", class_="notice")
        '<p class="notice">1 &lt; 2</p>'
    """
    given = "".join(
        f' {key.rstrip("_")}="{html.escape(value)}"' for key, value in attributes.items()
    )
    return Html(f"<{name}{given}>{''.join(_escape(child) for child in children)}</{name}>")


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], caption: str, *, words: int = 1
) -> Html:
    """A table that scrolls by itself on a narrow screen.

    Args:
        header: the first row; without one, the first column names what is in the second.
        rows: the others.
        caption: what stands above it.
        words: how many columns hold words; the others hold numbers.
    """

    def cells(name: str, row: Sequence[str]) -> Html:
        return join(
            element(name, cell) if index < words else element(name, cell, class_="number")
            for index, cell in enumerate(row)
        )

    head = [element("thead", element("tr", cells("th", header)))] if header else []
    body = element("tbody", join(element("tr", cells("td", row)) for row in rows))
    whole = element("table", *head, body, class_="numbers" if header else "facts")
    label = {"aria-label": caption}
    scrolling = element("div", whole, class_="scroll", tabindex="0", role="region", **label)
    return join([element("p", caption, class_="caption"), scrolling])


def figure(png: bytes, caption: str) -> Html:
    """An image that is part of the page, and its caption."""
    data = base64.b64encode(png).decode("ascii")
    image = Html(f'<img src="data:image/png;base64,{data}" alt="{html.escape(caption)}">')
    return element("figure", image, element("figcaption", caption))


def grid(figures: Iterable[Html]) -> Html:
    """Figures beside each other where there is room."""
    return element("div", join(figures), class_="grid")


def section(title: str, *parts: str) -> Html:
    """A part of a page under its own heading."""
    return element("section", element("h3", title), join(parts))


def page(title: str, body: str) -> str:
    """A whole document that asks for nothing else; what UTF-8 cannot hold is written out."""
    head = join(
        [
            Html('<meta charset="utf-8">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Html('<link rel="icon" href="data:,">'),
            element("title", title),
            element("style", Html(STYLE)),
        ]
    )
    content = element("head", head) + "\n" + element("body", Html(body))
    text = f'<!DOCTYPE html>\n<html lang="en">{content}</html>\n'
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
