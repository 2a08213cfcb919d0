"""Rank-1 Bayesian neural networks [rank-1]: citation, claims and checklist."""

from research.papers.rank1.blocks import rank1_blocks
from research.papers.rank1.records import records_blocks
from research.publishing.paper import Paper, Work

PAPER = Paper.of(
    __file__,
    short="rank-1",
    subject="Rank-1 factors",
    works=(
        Work(
            "rank-1",
            "Michael W. Dusenberry, Ghassen Jerfel, Yeming Wen, Yi-An Ma, Jasper Snoek, Katherine "
            "Heller, Balaji Lakshminarayanan and Dustin Tran",
            2020,
            "Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors",
            "ICML 2020, PMLR 119, with appendices A to E",
        ),
    ),
    blocks=(rank1_blocks, records_blocks),
)
