"""Matrix-normal posteriors and sparsity [matrix normal]: citation, claims and checklist."""

from research.papers.matrix_normal.natural_blocks import natural_blocks
from research.papers.matrix_normal.sparse.blocks import sparse_blocks
from research.papers.matrix_normal.vae.blocks import vae_blocks
from research.publishing.paper import Claim, Item, Paper, Work
from research.publishing.paper_blocks import where_run

__all__ = ["PAPER"]


def _against(first: str, second: str) -> str:
    """Accuracy, bound and sparsity of one recipe, seen from another."""
    a, b = f"sparsity/{first}", f"sparsity/{second}"
    return (
        f"Accuracy {{compared: {a} accuracy / {b} accuracy}}: {{percent: {a} accuracy}} against "
        f"{{percent: {b} accuracy}}. −ELBO {{compared: {a} negative_elbo / {b} negative_elbo}}: "
        f"{{value: {a} negative_elbo}} against {{value: {b} negative_elbo}}. Weights left "
        f"{{compared: {a} left / {b} left}}: {{percent: {a} left}} against {{percent: {b} left}}. "
        f"Outputs left {{compared: {a} rows / {b} rows}}: {{percent: {a} rows}} against {{percent: "
        f"{b} rows}}."
    )


def _weights(name: str, kind: str = "") -> str:
    """How many weights are left of a recipe, here or in print."""
    return f"{{{kind}value: sparsity/{name} weights}}"


def _bounds(names: tuple[str, ...], kind: str = "") -> str:
    """The ELBOs of some auto-encoders, here or in print."""
    return ", ".join(f"{{{kind}value: vae/{name} bound}}" for name in names)


_LATENT_40 = ("40-diag", "40-mn-20x2", "40-mv")
_LATENT_9 = ("9-diag", "9-mn-3x3", "9-mv")
_X1 = [f"cifar10-vgg-x1-sparse-{name}" for name in ("diag", "mn", "mn-diagonal")]
_GROUPS = "compaction/fashion-mnist-mlp-group-mn"

_CLAIMS = (
    Claim(
        "FC 300 on MNIST: the matrix normal has a better accuracy, ELBO and compression than "
        "independent weights (Figure 1).",
        _against("mnist-mlp-mn", "mnist-mlp-diag"),
        "[over epochs](#over-epochs)",
    ),
    Claim(
        "So it has on Fashion-MNIST (Figure 2).",
        _against("fashion-mnist-mlp-mn", "fashion-mnist-mlp-diag"),
        "[over epochs](#over-epochs)",
    ),
    Claim(
        "And with a small convolutional network (Figure 3).",
        _against("fashion-mnist-cnn-mn", "fashion-mnist-cnn-diag"),
        "[over epochs](#over-epochs)",
    ),
    Claim(
        "A VGG-like network on CIFAR-10 with one learnt prior variance: almost 2 points more "
        "accuracy, and a much better ELBO (Figure 4).",
        "Accuracy {percent: sparsity/cifar10-vgg-x1-mn accuracy} against {percent: "
        "sparsity/cifar10-vgg-x1-diag accuracy}, −ELBO {value: sparsity/cifar10-vgg-x1-mn "
        "negative_elbo} against {value: sparsity/cifar10-vgg-x1-diag negative_elbo}, after 5 of "
        "our 200 epochs.",
        "[CIFAR-10](matrix_normal/cifar10.md)",
    ),
    Claim(
        "Group-sparse, families with a matrix normal are about 1 point better than independent "
        f"weights (Figure 5), which leave {_weights(_X1[0], 'printed ')} weights; MN leaves "
        f"{_weights(_X1[1], 'printed ')}, MN+Diagonal {_weights(_X1[2], 'printed ')} (Table 1).",
        " ".join(
            f"{title}: {{percent: sparsity/{name} accuracy}}, {_weights(name)} weights left."
            for title, name in zip(("DIAG", "MN", "MN+Diagonal"), _X1, strict=True)
        ),
        "[CIFAR-10](matrix_normal/cifar10.md)",
    ),
    Claim(
        "At twice the width the accuracy is {printed percent: sparsity/cifar10-vgg-x2-sparse-mn "
        "accuracy} and half of the weights go; independent weights cannot be trained (Table 2).",
        "After 3 of our 400 epochs MN has {percent: sparsity/cifar10-vgg-x2-sparse-mn accuracy}, "
        "independent weights {percent: sparsity/cifar10-vgg-x2-sparse-diag accuracy}; MN keeps "
        "{percent: sparsity/cifar10-vgg-x2-sparse-mn left} of its weights.",
        "[CIFAR-10](matrix_normal/cifar10.md#twice-the-width)",
    ),
    Claim(
        "Zeroed rows and columns make a network smaller, which single zeros hardly do (section "
        "3.1).",
        f"A group-sparse FC 300 on Fashion-MNIST takes {{value: {_GROUPS} bayesian.fewer}} times "
        f"fewer multiply-adds after `lb.compact`; its accuracy goes from {{percent: {_GROUPS} "
        f"bayesian.before}} to {{percent: {_GROUPS} bayesian.after}}, and that of its means alone "
        f"from {{percent: {_GROUPS} plain.before}} to {{percent: {_GROUPS} plain.after}}.",
        "[compaction](matrix_normal/compaction.md)",
    ),
    Claim(
        "And they accelerate it.",
        "Its means are {value: speed/plain faster} times as fast for {value: speed/plain fewer} "
        "times fewer multiply-adds, a sample of the Bayesian network {value: speed/bayesian "
        "faster} times.",
        "[speed](matrix_normal/compaction.md#speed)",
    ),
    Claim(
        "An iteration takes {printed value: cost/FC-300 MN} times as long as with independent "
        "weights (section 7).",
        "{value: cost/FC-300 MN} times for FC 300 and {value: cost/CNN MN} for the small "
        "convolutional network.",
        "[cost](#what-a-step-costs)",
    ),
    Claim(
        "Riemannian optimisation would need fewer iterations (abstract, section 6).",
        "It does, and takes longer: the −ELBO of {value: natural/best Adam negative_elbo} at which "
        "the best run of Adam ends after {value: natural/best Adam steps} steps and {value: "
        "natural/best Adam seconds} s is reached after {value: natural/best natural gradient "
        "steps} steps and {value: natural/best natural gradient seconds} s.",
        "[natural gradients](matrix_normal/natural.md)",
    ),
    Claim(
        "In an auto-encoder with 40 latent numbers the bound is better with a matrix normal than "
        "with independent numbers, and best with a full covariance: "
        f"{_bounds(_LATENT_40, 'printed ')} (Table 3).",
        f"{_bounds(_LATENT_40)}, after 200 epochs instead of 1000.",
        "[auto-encoders](matrix_normal/vae.md)",
    ),
    Claim(
        f"And with nine: {_bounds(_LATENT_9, 'printed ')}.",
        f"{_bounds(_LATENT_9)}, after 80 epochs.",
        "[auto-encoders](matrix_normal/vae.md)",
    ),
    Claim(
        "MN+Diagonal needs a tighter bound of its entropy (section 6).",
        "There is one, by pivots: proven, never looser than Minkowski's, and close to the exact "
        "value.",
        "[bounds](matrix_normal/bounds.md)",
    ),
)

_CHECKLIST = {
    "MN1": Item("section 3.4, eq. 3", "Density, entropy and samples are those of a dense normal."),
    "MN2": Item("algorithm 1", "The KL from a diagonal prior is right, and 0 at the prior."),
    "MN3": Item("section 3.4", "Outputs have the covariance (xᵀUx) V."),
    "MN4": Item("section 3.1", "Independent relevances have a closed-form optimum."),
    "MN5": Item("section 3.2", "Relevances of rows and columns: gradient and updates agree."),
    "MN6": Item("section 4.1", "The exact posterior of linear regression is a matrix normal."),
    "MN7": Item("section 5.3", "Plus a diagonal: samples, outputs and a lower bound are right."),
    "MN8": Item("Table 2", "Convolutions as matrices have the published numbers of weights."),
    "MN9": Item(
        "Tables 1–2",
        "Weights, rows and columns that are left are counted.",
        "matrix_normal/cifar10.md",
    ),
    "MN10": Item(
        "Figures 1–5",
        "It beats independent weights in ELBO, accuracy and sparsity.",
        "matrix_normal.md",
    ),
    "MN11": Item("sections 5.3–5.4", "The weight of the KL rises exponentially."),
    "MN12": Item(
        "Table 3",
        "In an auto-encoder richer latent families have better bounds.",
        "matrix_normal/vae.md",
    ),
    "MN13": Item("section 5.4", "A matrix of one column is a full multivariate normal."),
    "MN14": Item("section 5.2", "One learnt prior variance ends at the mean second moment."),
    "MN15": Item(
        "section 7",
        "A step takes at most about twice the time of independent weights.",
        "matrix_normal.md",
    ),
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
    claims=_CLAIMS,
    checklist=_CHECKLIST,
    blocks=tuple(map(where_run, (natural_blocks, sparse_blocks, vae_blocks))),
)
