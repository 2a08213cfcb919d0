"""Tables in Markdown."""

from collections.abc import Iterable, Sequence


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, text: int | None = None
) -> str:
    """Format rows as a table.

    Args:
        header: titles of columns.
        rows: their cells.
        text: number of columns of text; those after them are numbers, aligned to the right.

    Example:
        >>> print(markdown_table(["a", "b"], [["1", "2"]]))
        | a | b |
        | --- | --- |
        | 1 | 2 |
        >>> print(markdown_table(["method", "cost"], [["k-tied", "1.2"]], text=1))
        | method | cost |
        |---|--:|
        | k-tied | 1.2 |
    """
    rule = f"| {' | '.join(['---'] * len(header))} |"
    if text is not None:
        rule = f"|{'|'.join(['---'] * text + ['--:'] * (len(header) - text))}|"
    first, *others = (f"| {' | '.join(row)} |" for row in (header, *rows))
    return "\n".join((first, rule, *others))
