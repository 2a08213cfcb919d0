"""Variance networks [variance]: citation and checklist."""

from papers.studies.after.blocks import after_blocks
from papers.studies.blocks import study_blocks
from papers.tools.paper import Item, Paper, Work

__all__ = ["PAPER"]

_CHECKLIST = {
    "VN1": Item(
        "eq. 4, 39–42", "Dense and convolutional variance layers have the analytic moments."
    ),
    "VN2": Item("section 2, Table 2", "Propagating means through a variance network is chance."),
    "VN3": Item(
        "section 3.2", "The toy of four classes has two kinds of solutions.", "variance/toy.md"
    ),
    "VN4": Item("section 3.3", "Bernoulli and uniform noise work, sampled and by their moments."),
    "VN5": Item("eq. 6–8", "The KL from the log-uniform prior, exact and approximated, is right."),
    "VN6": Item("eq. 10", "The Student-t prior tends to the log-uniform one, by one sample."),
    "VN7": Item("eq. 11", "The ARD prior is the best of all zero-mean normal priors."),
    "VN8": Item("section 4.3", "The KL falls with α under all three priors."),
    "VN9": Item("appendix F", "A zero-mean weight costs a constant under the log-uniform prior."),
    "VN10": Item("appendix A", "The distance to the zero-mean posterior is exact and bounded."),
    "VN11": Item("eq. 14", "Five parameterizations; a shared α counts once for every weight."),
    "VN12": Item(
        "Table 1",
        "ELBOs have the order zero-mean, layer, neuron, additive, weight.",
        "variance.md",
    ),
    "VN13": Item(
        "Figures 3 and 8", "log α grows over training with a phase transition.", "variance.md"
    ),
    "VN14": Item("section 6.1", "In LeNet only the first dense layer becomes a variance layer."),
    "VN15": Item(
        "Figure 5", "Weights with the smallest σ can be pruned, up to 98 %.", "variance.md"
    ),
    "VN16": Item("Figure 4", "One sample is much worse than an average over 200."),
    "VN17": Item("appendix C", "With tanh and no biases all activations have mean zero."),
    "VN18": Item("appendix D", "Activations of a class differ in their spread."),
    "VN19": Item("code", "Permuted σ destroy the accuracy."),
    "VN20": Item("section 6.2", "Variance layers explore in reinforcement learning."),
    "VN21": Item("section 6.3", "Variance layers resist iterated adversarial attacks."),
    "VN22": Item("section 7", "Pruning by the signal-to-noise ratio fails on zero-mean layers."),
}

PAPER = Paper(
    name="variance",
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
    checklist=_CHECKLIST,
    blocks=(after_blocks, study_blocks),
)
