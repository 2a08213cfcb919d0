"""A paper: one value in one file of the folder ``papers``; recipes name it by its file's name."""

from papers.tools.paper import Item, Paper, Work

PAPER = Paper(
    name="paper",
    short="example",
    subject="An example",
    works=(Work("example", "A. Author", 2030, "A Posterior of Your Own", "A workshop"),),
    checklist={"EX1": Item("eq. 1", "A posterior of one's own learns.")},
)
