"""Output on a terminal: text as it is, whatever names, labels and paths hold."""

from typing import Any

from rich.console import Console
from rich.text import Text


def printable(text: str, keep: str = "\n\t") -> str:
    r"""Return the text with escape codes, and whatever else a terminal would obey, written out."""
    return "".join(c if c.isprintable() or c in keep else _written_out(c) for c in text)


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def one_line(error: object) -> str:
    r"""Return what an error says, on one line."""
    return printable(" ".join(str(error).splitlines()))


class PlainConsole(Console):
    """Rich without its markup: every text that is printed, in tables too, is shown as it is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Convert a text before Rich prints it."""
        shown = printable(text).encode(self.encoding, "backslashreplace").decode(self.encoding)
        return super().render_str(shown, **options)
