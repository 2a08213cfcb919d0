"""Rank-1 Bayesian neural networks [rank-1]: citation and checklist."""

from papers.studies.records import records_blocks
from papers.tools.paper import Item, Paper, Work

__all__ = ["PAPER"]

_CHECKLIST = {
    "R1": Item("eq. 1", "A layer acts as the weight W ∘ rsᵀ written out: dense, conv, recurrent."),
    "R2": Item("appendix B", "Every example has factors of its own; the batch is tiled."),
    "R3": Item("Tables 5–7", "Factors of every kind; fixed ones are BatchEnsemble."),
    "R4": Item("Tables 5–7", "The KL of Cauchy factors has its closed form."),
    "R5": Item("C.1", "Factors start at random signs, their scales at a dropout rate."),
    "R6": Item("code", "Heavy tails are clipped at ten."),
    "R7": Item("appendix E, eq. 11–14", "The four losses, and how they compare."),
    "R8": Item("E.5", "Losses and gradients are finite for logits of a thousand."),
    "R9": Item("code", "The KL of a mixture as a sum or as a mean over members, which is a bound."),
    "R10": Item("appendix A", "Noise in s fluctuates as noise in the weights (theorem 1)."),
    "R11": Item("Tables 1 and 2", "Factors add few parameters to a wide ResNet and a ResNet-50."),
    "R12": Item("section 3.2", "Priors on r, on s and on both compared."),
    "R13": Item("sections 3.3–3.4", "Numbers of members, and training by average or by mixture."),
    "R14": Item("C.2", "Real-valued factors do better than positive ones."),
    "R15": Item("C.3", "More samples help, mainly on corrupted data."),
    "R16": Item("section 3.5", "Diversity is disagreement over the error rate."),
    "R17": Item("appendix B", "KL annealing, learning-rate steps with warm-up, scope of the L2."),
    "R18": Item("Tables 1–4", "All metrics, also on corrupted data, agree with oracles."),
    "R19": Item("Table 7", "A rank-1 LSTM for sequences of health records.", "rank1/records.md"),
    "R20": Item("section 3.2", "Factors induce priors with heavy tails on the weights."),
    "R21": Item("Table 7", "Factors have a learning rate of their own."),
    "R22": Item("section 3.1", "The additive variant shifts inputs and outputs."),
}


PAPER = Paper(
    name="rank1",
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
    checklist=_CHECKLIST,
    blocks=(records_blocks,),
)
