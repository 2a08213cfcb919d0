"""The verdicts on all claims of all papers: one table, the checklist, and a conclusion."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from research.publishing.blocks import Blocks
from research.publishing.paper import Claim, Paper
from research.publishing.tables import markdown_table
from research.publishing.verdicts import Verdict, Word

CHECKED = {
    Word.YES: "holds",
    Word.PART: "in part",
    Word.NO: "contradicted",
    Word.UNDECIDED: "not here",
}
"""Words of the checklist."""


class WhatHolds:
    """Verdicts on the claims of papers."""

    def __init__(self, papers: Iterable[Paper]) -> None:
        self.blocks = [Blocks(paper) for paper in papers]

    def table(self) -> str:
        """Return a row for every claim, in the order of the papers."""
        header = ["paper", "claim, with the published numbers", "verdict", "ours"]
        lines = (
            [
                f"[{of.paper.short}]({of.paper.name}.md)",
                of.says(claim),
                str(verdict),
                of.came(claim),
                of.budget(claim),
                "–" if verdict.seeds is None else str(verdict.seeds),
            ]
            for of, claim, verdict in self._judged()
        )
        return markdown_table([*header, "budget", "seeds"], lines)

    def summary(self) -> str:
        """Return how many claims of each paper have which verdict, and the sum."""
        words = [
            (of.paper, [of.verdict(claim).word for claim in of.paper.claims]) for of in self.blocks
        ]
        every = list(chain.from_iterable(own for _, own in words))
        seeds = [v.seeds for _, _, v in self._judged() if v.word is not Word.UNDECIDED]
        lines = [[f"[{paper.subject}]({paper.name}.md)", *_counts(own)] for paper, own in words]
        table = markdown_table(["paper", *Word, "claims"], [*lines, ["all", *_counts(every)]])
        return (
            f"**Of {len(every)} claims {every.count(Word.YES)} hold, {every.count(Word.PART)} hold "
            f"in part, {every.count(Word.NO)} do not, and {every.count(Word.UNDECIDED)} are "
            f"undecided.** {sum(n != 1 for n in seeds)} of the {len(seeds)} decided ones "
            f"rest on several seeds or need no training; the others rest on one network.\n\n{table}"
        )

    def checked(self, paper: Paper, tested: Iterable[str]) -> dict[str, str]:
        """Return a word for every item of a paper's checklist.

        It is computed from the claims that name the item. An item without claims holds if a test
        shows it.
        """
        found: dict[str, list[Verdict]] = {}
        for of, claim, verdict in self._judged():
            for item in claim.items if of.paper.name == paper.name else ():
                found.setdefault(item, []).append(verdict)
        by_tests = dict.fromkeys(tested, "holds")
        return {
            item: _checked(found[item]) if item in found else by_tests.get(item, "not here")
            for item in paper.checklist
        }

    def _judged(self) -> Iterator[tuple[Blocks, Claim, Verdict]]:
        for of in self.blocks:
            yield from ((of, claim, of.verdict(claim)) for claim in of.paper.claims)


def _counts(words: Sequence[Word]) -> list[str]:
    return [*(str(words.count(word)) for word in Word), str(len(words))]


def _checked(verdicts: Sequence[Verdict]) -> str:
    """One word for several verdicts; "one network" if that is all that one of them rests on."""
    words = {verdict.word for verdict in verdicts}
    part = "in part" if {Word.YES, Word.PART} & words else "contradicted"
    word = CHECKED[verdicts[0].word] if len(words) == 1 else part
    alone = word != "not here" and any(verdict.seeds == 1 for verdict in verdicts)
    return f"{word}, one network" if alone else word
