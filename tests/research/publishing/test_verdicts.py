"""Verdicts follow from numbers, their errors and their seeds, and pages follow from verdicts."""

import re
from collections import Counter

import pytest

from research.papers import PAPERS
from research.publishing.blocks import Blocks
from research.publishing.cells import Cell
from research.publishing.paper import RESULTS
from research.publishing.study_file import read_study
from research.publishing.verdicts import Word, judged, terms_of
from research.publishing.what_holds import WhatHolds

CELLS = {
    "low nll": Cell(0.30, 0.01, seeds=3),
    "near nll": Cell(0.31, 0.01, seeds=3),
    "high nll": Cell(0.50, 0.01, seeds=3),
    "twice nll": Cell(0.90, 0.0001, seeds=2),
    "alone nll": Cell(0.90, 0.01, seeds=1),
    "alone ece": Cell(0.10, 0.01, seeds=1),
    "failed accuracy": Cell(0.62, seeds=1),
    "fine accuracy": Cell(0.86, seeds=3),
    "missing nll": Cell(),
}


@pytest.mark.parametrize(
    ("conditions", "verdict"),
    [
        ("low nll < high nll", "**yes**"),
        ("low nll > high nll", "**no**"),
        ("low nll < near nll", "undecided: within two standard errors"),
        ("low nll ≈ near nll ± 0.05", "**yes**"),
        ("low nll ≈ near nll ± 0.02", "undecided: within two standard errors"),
        ("low nll ≈ high nll ± 0.02", "**no**"),
        ("high nll < 2 × low nll", "**yes**"),
        ("low nll < alone nll", "undecided: one seed"),
        ("low nll < twice nll", "undecided: two seeds"),
        ("alone ece < alone nll", "yes, one network"),
        ("alone ece > 0.5", "no, one network"),
        ("low nll < missing nll", "undecided: not run"),
        ("given failed accuracy > 0.9 × fine accuracy; low nll < high nll",
         "undecided: one training failed"),
        ("low nll < high nll; low nll > high nll", "**in part**: of 2 comparisons 1 yes, 1 no"),
        ("low nll > high nll; low nll < near nll",
         "**no**: of 2 comparisons 1 no, 1 undecided (within two standard errors)"),
        ("yes: proven", "**yes**: proven"),
    ],
)  # fmt: skip
def test_a_verdict_follows_from_numbers_errors_and_seeds(conditions, verdict):
    assert str(judged(conditions, CELLS.__getitem__)) == verdict


@pytest.mark.parametrize("name", PAPERS)
def test_every_claim_has_conditions_on_measured_numbers_and_items_that_exist(name):
    paper, blocks = PAPERS[name], Blocks(PAPERS[name])
    for claim in paper.claims:
        assert set(claim.items) <= set(paper.checklist)
        measured = [blocks.cell(term).ours is not None for term in terms_of(claim.conditions)]
        assert all(measured) or "not run" in blocks.verdict(claim).why
        known = ("yes: proven", "no: proven", "undecided: not run", "undecided: not measured")
        assert terms_of(claim.conditions) or claim.conditions.startswith(known)


def test_no_bold_verdict_rests_on_one_seed():
    bold = [v for of in WhatHolds(PAPERS.values()).blocks for c in of.paper.claims
            if str(v := of.verdict(c)).startswith("**")]  # fmt: skip
    assert bold
    assert all(verdict.seeds != 1 and verdict.word is not Word.UNDECIDED for verdict in bold)


PROVEN = {
    "The bound by pivots is at least",
    "Noise in `s` moves the mean of",
    "Factors give a weight heavier tails",
    "With tanh, no biases and a",
    "Adam moves every number by at",
    "SGD moves a number in proportion to",
    "In training mode the statement is",
    "One of the last layer alone",
}
"""Beginnings of bold conclusions that need no training: a proof, a formula, an explanation."""
SHOWN_BY = {
    "With k = 2, training loses half": ["mnist-mlp-k2-decay negative_elbo"],
    "A tied scale gets a stronger signal": ["mnist-mlp-snr-k2 snr_pooled_1000"],
    "With long training and learning rate": [
        f"mnist-mlp-{name}-decay negative_elbo" for name in ("k2", "k3", "full")
    ],
    "FC 300: about one point more": ["sparsity/mnist-mlp-mn nll", "sparsity/mnist-mlp-diag nll"],
    "On Fashion-MNIST, over three seeds, Gaussian": [
        f"rank1/fashion-mnist-resnet-{name} nll"
        for name in ("gaussian", "cauchy", "deterministic", "mc-dropout", "ensemble")
    ],
    "They do not explore better in": ["policy/Acrobot-v1-variance last_100"],
    "Noise on the weights explores; noise": ["policy/Acrobot-v1-noise last_100"],
    "Two neurons without means can tell": ["toy/kind orthogonal-codes"],
}
"""Numbers of ours that other bold conclusions rest on."""
GENERATED_COHORT = "On a simulated cohort with known"


def conclusions(page):
    """Bold sentences of a page that say something: six words and more."""
    text = re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"))
    bold = [each.split() for each in re.findall(r"\*\*([^*\n]+)\*\*", text)]
    ends = {" ".join(words) for words in bold if len(words) >= 7 and words[-1].endswith((".", ","))}
    return {each for each in ends if not re.match(r"Of \d+ claims|To be run again", each)}


@pytest.mark.parametrize("name", PAPERS)
def test_no_bold_conclusion_rests_on_one_seed(name):
    """A new one is entered above: with the numbers that show it, or as proven."""
    paper, blocks = PAPERS[name], Blocks(PAPERS[name])
    found = {each for page in paper.pages for each in conclusions(page)}
    assert found
    for each in found:
        if any(each.startswith(start) for start in PROVEN):
            continue
        terms = [terms for start, terms in SHOWN_BY.items() if each.startswith(start)]
        if each.startswith(GENERATED_COHORT):
            parts = read_study(paper.results / "studies" / "records.json", "records")["parts"]
            for row in ("gaussian", "bayesian-embeddings", "deterministic"):
                assert sum(part.startswith(f"{row}, seed") for part in parts) >= 3
            continue
        assert terms, f"what shows it: {each!r}?"
        assert all(blocks.cell(term).seeds >= 3 for term in terms[0]), each


def test_bold_conclusions_of_other_pages_rest_on_several_seeds():
    """Bayesian LoRA, the seven regression sets, and natural gradients against Adam."""
    trained = read_study(RESULTS / "lora" / "minilm.json", "lora")["parts"]
    assert min(Counter(part.rpartition(", seed ")[0] for part in trained).values()) >= 3
    for file in (RESULTS / "uci").glob("*.json"):
        assert len(read_study(file, "uci")["parts"]) >= 3, file.name
    natural = Blocks(PAPERS["matrix_normal"])
    for name in ("mnist-mlp-diag", "mnist-mlp-diag-natural"):
        assert natural.cell(f"sparsity/{name} negative_elbo").seeds >= 3


def test_an_item_without_a_claim_holds_by_its_tests_alone():
    paper = PAPERS["k_tied"]
    checked = WhatHolds(PAPERS.values()).checked(paper, ["KT1"])
    assert checked["KT1"] == "holds"
    assert checked["KT2"] == "not here"
    assert checked["KT7"] == "holds, one network"
