"""HTML by small functions that escape everything they are not told to trust."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence

__all__ = ["Html", "element", "figure", "grid", "join", "page", "section", "table"]

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 72rem; background: #fff; color: #1a1a1a;
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.2; }
h2 { margin-top: 3rem; padding-top: .6rem; border-top: 3px solid #0072b2; font-size: 1.4rem; }
h3 { margin-top: 2rem; font-size: 1.1rem; }
a { color: #0072b2; }
.scroll { overflow-x: auto; background:
  linear-gradient(to right, #fff 30%, #fff0) 0 0 / 3rem 100% no-repeat local,
  linear-gradient(to left, #fff 30%, #fff0) 100% 0 / 3rem 100% no-repeat local,
  linear-gradient(to right, #0003, #0000) 0 0 / .7rem 100% no-repeat scroll,
  linear-gradient(to left, #0003, #0000) 100% 0 / .7rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: .95rem; font-variant-numeric: tabular-nums; }
p.caption { margin: .3rem 0; color: #444; }
.facts td { overflow-wrap: anywhere; }
th, td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #ddd; text-align: left;
  vertical-align: top; }
td:first-child { min-width: 8rem; }
.numbers { font-size: .875rem; }
@media (min-width: 60rem) { .numbers td:first-child { min-width: 12.5rem; } }
thead th { border-bottom: 2px solid #888; }
td.number { text-align: right; white-space: nowrap; }
th.number { text-align: right; }
.grid { display: grid; gap: 1.5rem; margin-top: 1.2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0; max-width: 36rem; break-inside: avoid; }
img { display: block; width: 100%; height: auto; }
figcaption { color: #444; font-size: .9rem; }
.notice { padding: .6rem .9rem; border-left: 4px solid #d55e00; background: #fdf3ec; }
pre { padding: .8rem; overflow-x: auto; background: #f5f5f5; font-size: .85rem; }
summary { cursor: pointer; }
footer { margin-top: 3rem; color: #444; font-size: .9rem; }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav, details { display: none; }
  article + article { break-before: page; }
  h3 { break-after: avoid; }
  tr, .notice { break-inside: avoid; }
  .scroll { overflow: visible; background: none; }
  .facts, figcaption { font-size: 8.5pt; }
  p.caption { break-after: avoid; }
  .numbers { font-size: 7pt; }
  .numbers th, .numbers td { padding: .15rem .4rem .15rem 0; }
  .numbers td:first-child { min-width: 6rem; }
  .grid { grid-template-columns: 1fr 1fr; }
}
"""


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
    """A whole document that asks for nothing else."""
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
    return f'<!DOCTYPE html>\n<html lang="en">{content}</html>\n'
