"""Matrix-normal posteriors and sparsity [matrix normal]: citation and checklist."""

from papers.studies.natural_blocks import natural_blocks
from papers.studies.vae.blocks import vae_blocks
from papers.tools.paper import Item, Paper, Work

__all__ = ["PAPER"]

_CHECKLIST = {
    "MN1": Item("section 3.4, eq. 3", "Density, entropy and samples are those of a dense normal."),
    "MN2": Item("algorithm 1", "The KL from a diagonal prior is right, and 0 at the prior."),
    "MN3": Item("section 3.4", "Outputs have the covariance (xᵀUx) V."),
    "MN4": Item("section 3.1", "Independent relevances have a closed-form optimum."),
    "MN5": Item("section 3.2", "Relevances of rows and columns: gradient and updates agree."),
    "MN6": Item("section 4.1", "The exact posterior of linear regression is a matrix normal."),
    "MN7": Item("section 5.3", "Plus a diagonal: samples, outputs and a lower bound are right."),
    "MN8": Item("Table 2", "Convolutions as matrices have the published numbers of weights."),
    "MN9": Item("Tables 1–2", "Weights, rows and columns that are left are counted."),
    "MN10": Item("Figures 1–5", "It beats independent weights in ELBO, accuracy and sparsity."),
    "MN11": Item("sections 5.3–5.4", "The weight of the KL rises exponentially."),
    "MN12": Item(
        "Table 3",
        "In an auto-encoder richer latent families have better bounds.",
        "matrix_normal/vae.md",
    ),
    "MN13": Item("section 5.4", "A matrix of one column is a full multivariate normal."),
    "MN14": Item("section 5.2", "One learnt prior variance ends at the mean second moment."),
    "MN15": Item("section 7", "A step takes at most about twice the time of independent weights."),
}

PAPER = Paper(
    name="matrix_normal",
    short="matrix normal",
    subject="Matrix normal",
    works=(
        Work(
            "matrix normal",
            "Viktor Rudnev and Dmitry Kropotov",
            2019,
            "Sparse Bayesian Variational Learning with Matrix Normal Distributions",
            "Preprint",
        ),
    ),
    checklist=_CHECKLIST,
    blocks=(natural_blocks, vae_blocks),
)
