"""Matrix-normal posteriors and sparsity [matrix normal]: citation, claims and checklist."""

from research.papers.matrix_normal.natural_blocks import natural_blocks
from research.papers.matrix_normal.sparse.blocks import sparse_blocks
from research.papers.matrix_normal.vae.blocks import vae_blocks
from research.papers.matrix_normal.vae.latent_use import latent_use_blocks
from research.publishing.paper import Paper, Work

PAPER = Paper.of(
    __file__,
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
    blocks=(natural_blocks, sparse_blocks, vae_blocks, latent_use_blocks),
)
