"""Variance networks [variance]: citation, claims and checklist."""

from pathlib import Path

from research.papers.variance.blocks import study_blocks
from research.papers.variance.trained_blocks import after_blocks
from research.publishing.paper import Paper, Work, read_checklist, read_claims

_HERE = Path(__file__).parent

PAPER = Paper(
    name="variance",
    short="variance",
    subject="Variance networks",
    claims=read_claims(_HERE / "claims.md"),
    checklist=read_checklist(_HERE / "checklist.md"),
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
