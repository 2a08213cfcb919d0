"""Rank-1 Bayesian neural networks [rank-1]: citation, claims and checklist."""

from research.papers.rank1.blocks import rank1_blocks
from research.papers.rank1.records import records_blocks
from research.publishing.paper import Claim, Item, Paper, Work
from research.publishing.paper_blocks import where_run

__all__ = ["PAPER"]

_F = "rank1/fashion-mnist-resnet-"
_C = "printed-rank1/cifar10-wrn-"


def _ours(column: str, *names: str, kind: str = "value") -> str:
    """Terms of a number of several networks on Fashion-MNIST, the last behind *and*."""
    terms = [f"{{{kind}: {_F}{name} {column}}}" for name in names]
    return f"{', '.join(terms[:-1])} and {terms[-1]}" if len(terms) > 1 else terms[0]


def _paper(column: str, *names: str, kind: str = "value") -> str:
    """The same of what is printed for CIFAR-10."""
    terms = [f"{{printed {kind}: {_C}{name} {column}}}" for name in names]
    return f"{', '.join(terms[:-1])} and {terms[-1]}" if len(terms) > 1 else terms[0]


_FOUR = ("deterministic", "mc-dropout", "gaussian", "cauchy")
_LAST = ("batchensemble", "gaussian", "cauchy", "ensemble")
_RATES = ("ablation-rate-0.001", "ablation-rate-0.01", "ablation-both", "ablation-rate-0.3")
_TABLE, _ABLATIONS = "[table](#the-table)", "[ablations](#ablations)"

_CLAIMS = (
    Claim(
        "Mixtures with random factors beat a deterministic network and MC dropout. NLL of "
        f"deterministic, MC dropout, Gaussian and Cauchy: {_paper('nll', *_FOUR)}; ECE "
        f"{_paper('ece', *_FOUR)}.",
        f"On Fashion-MNIST NLL {_ours('nll', *_FOUR)}; ECE {_ours('ece', *_FOUR)}; with "
        f"{_ours('share', 'gaussian', kind='percent')} more parameters.",
        _TABLE,
    ),
    Claim(
        f"The more so on corrupted images: cNLL {_paper('cnll', *_FOUR)}, cECE "
        f"{_paper('cece', *_FOUR)}.",
        f"cNLL {_ours('cnll', *_FOUR)}; cECE {_ours('cece', *_FOUR)}.",
        _TABLE,
    ),
    Claim(
        "They are better than BatchEnsemble and near a deep ensemble of four at a quarter of its "
        "parameters. NLL of BatchEnsemble, Gaussian, Cauchy and the ensemble: "
        f"{_paper('nll', *_LAST)}; cNLL {_paper('cnll', *_LAST)}.",
        f"NLL {_ours('nll', *_LAST)}; cNLL {_ours('cnll', *_LAST)}. Low rank, which is newer, has "
        f"{_ours('nll', 'low-rank')} and {_ours('cnll', 'low-rank')}.",
        _TABLE,
    ),
    Claim(
        "More samples help, mainly on corrupted images.",
        "From one sample of every member to twenty-five, Gaussian factors go from "
        f"{_ours('samples.1.nll', 'gaussian')} to {_ours('samples.25.nll', 'gaussian')} on clean "
        f"images and from {_ours('few.1.cnll', 'gaussian')} to "
        f"{_ours('few.25.cnll', 'gaussian')} on corrupted ones.",
        "[samples](#more-samples)",
    ),
    Claim(
        "The average of the members' likelihoods trains better networks than the likelihood of "
        "their mixture.",
        f"NLL {_ours('nll', 'ablation-both', 'ablation-mixture')}, ECE "
        f"{_ours('ece', 'ablation-both', 'ablation-mixture')}, cNLL "
        f"{_ours('cnll', 'ablation-both', 'ablation-mixture')}.",
        _ABLATIONS,
    ),
    Claim(
        "Random factors on inputs and on outputs are alike on clean images; both together are best "
        "on corrupted ones.",
        "Outputs, inputs, both: NLL "
        f"{_ours('nll', 'ablation-r', 'ablation-s', 'ablation-both')}; cNLL "
        f"{_ours('cnll', 'ablation-r', 'ablation-s', 'ablation-both')}.",
        _ABLATIONS,
    ),
    Claim(
        "More members help up to eight; with sixteen a batch has too few images.",
        "One, two, four, eight and sixteen: NLL "
        + _ours(
            "nll",
            "ablation-members-1",
            "ablation-members-2",
            "ablation-both",
            "ablation-members-8",
            "ablation-members-16",
        )
        + ".",
        _ABLATIONS,
    ),
    Claim(
        "Real-valued factors do better than positive ones.",
        f"NLL {_ours('nll', 'ablation-both', 'ablation-positive')}, ECE "
        f"{_ours('ece', 'ablation-both', 'ablation-positive')}.",
        _ABLATIONS,
    ),
    Claim(
        "The higher the dropout rate at which scales start, the lower the accuracy and the "
        "calibration error.",
        "Rates of 0.001, 0.01, 0.1 and 0.3: accuracy "
        + _ours("accuracy", *_RATES, kind="percent")
        + "; ECE "
        + _ours("ece", *_RATES)
        + ".",
        _ABLATIONS,
    ),
    Claim(
        "Members with random factors are more diverse than those of BatchEnsemble.",
        "Disagreement over the error rate: "
        f"{_ours('diversity', 'gaussian', 'cauchy', 'batchensemble')} of Gaussian factors, Cauchy "
        f"factors and BatchEnsemble; {_ours('diversity', 'ensemble')} in the deep ensemble.",
        _TABLE,
    ),
    Claim(
        "Noise in the factors of inputs fluctuates as noise of that covariance in the weights "
        "(theorem 1).",
        "Yes, with two corrections: second-order changes of three layers are {value: theorem/layer "
        "1 factors}, {value: theorem/layer 2 factors} and {value: theorem/layer 3 factors} by "
        "either. The printed indices and the printed second derivative give other numbers.",
        "[theorem](#theorem-1)",
    ),
)

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
    "R10": Item(
        "appendix A", "Noise in s fluctuates as noise in the weights (theorem 1).", "rank1.md"
    ),
    "R11": Item("Tables 1 and 2", "Factors add few parameters to a wide ResNet and a ResNet-50."),
    "R12": Item("section 3.2", "Priors on r, on s and on both compared.", "rank1.md"),
    "R13": Item(
        "sections 3.3–3.4", "Numbers of members, and training by average or by mixture.", "rank1.md"
    ),
    "R14": Item("C.2", "Real-valued factors do better than positive ones.", "rank1.md"),
    "R15": Item("C.3", "More samples help, mainly on corrupted data.", "rank1.md"),
    "R16": Item("section 3.5", "Diversity is disagreement over the error rate.", "rank1.md"),
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
    claims=_CLAIMS,
    checklist=_CHECKLIST,
    blocks=tuple(map(where_run, (rank1_blocks, records_blocks))),
)
