"""A paper: one value in ``research/papers/NAME/paper.py``; recipes name it by its folder."""

from research.publishing.paper import Item, Paper, Work

PAPER = Paper(
    name="example",
    short="example",
    subject="An example",
    works=(Work("example", "A. Author", 2030, "A Posterior of Your Own", "A workshop"),),
    checklist={"EX1": Item("eq. 1", "A posterior of one's own learns.")},
)
