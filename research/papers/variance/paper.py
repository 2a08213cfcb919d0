"""Variance networks [variance]: citation, claims and checklist."""

from research.papers.variance.blocks import study_blocks
from research.papers.variance.trained_blocks import after_blocks
from research.publishing.paper import Paper, Work

PAPER = Paper.of(
    __file__,
    short="variance",
    subject="Variance networks",
    works=(
        Work(
            "variance",
            "Kirill Neklyudov, Dmitry Molchanov, Arsenii Ashukha and Dmitry Vetrov",
            2019,
            "Variance Networks: When Expectation Does Not Meet Your Expectations",
            "ICLR 2019",
        ),
    ),
    blocks=(after_blocks, study_blocks),
)
