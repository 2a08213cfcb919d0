"""HTML by small functions that escape everything is not marked as trusted."""

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
    """Return parts one after another; what is not HTML is escaped."""
    return Html("\n".join(_escape(part) for part in parts))


def element(name: str, *children: str, **attributes: str) -> Html:
    """Return one element; ``class_`` is the attribute ``class``."""
    given = "".join(
        f' {key.rstrip("_")}="{html.escape(value)}"' for key, value in attributes.items()
    )
    return Html(f"<{name}{given}>{''.join(_escape(child) for child in children)}</{name}>")


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], caption: str, *, words: int = 1
) -> Html:
    """Return a table that scrolls by itself on a narrow screen."""

    def cells(row: Sequence[str], scope: str) -> Html:
        return join(
            element("th", cell, scope=scope, **({"class_": "number"} if index >= words else {}))
            if scope == "col" or not index
            else element("td", cell, **({"class_": "number"} if index >= words else {}))
            for index, cell in enumerate(row)
        )

    head = [element("thead", element("tr", cells(header, "col")))] if header else []
    body = element("tbody", join(element("tr", cells(row, "row")) for row in rows))
    kind = "numbers" if header else "facts"
    whole = element("table", element("caption", caption), *head, body, class_=kind)
    return element("div", whole, class_="scroll", tabindex="0")


def figure(picture: bytes, caption: str) -> Html:
    """Return a PNG or SVG picture that is part of the page, and its caption."""
    kind = "png" if picture.startswith(b"\x89PNG") else "svg+xml"
    data = base64.b64encode(picture).decode("ascii")
    image = Html(f'<img src="data:image/{kind};base64,{data}" alt="{html.escape(caption)}">')
    return element("figure", image, element("figcaption", caption))


def grid(figures: Iterable[Html]) -> Html:
    """Return figures beside each other where they fit."""
    return element("div", join(figures), class_="grid")


def section(title: str, *parts: str) -> Html:
    """Return a part of a page under its own heading."""
    return element("section", element("h3", title), join(parts))


def page(title: str, body: str) -> str:
    """Return a whole document that asks for nothing else; what UTF-8 cannot hold is written out."""
    head = join(
        [
            Html('<meta charset="utf-8">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Html('<link rel="icon" href="data:,">'),
            element("title", title),
            element("style", Html(STYLE)),
        ]
    )
    content = element("head", head) + "\n" + element("body", element("main", Html(body)))
    text = f'<!DOCTYPE html>\n<html lang="en">{content}</html>\n'
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
