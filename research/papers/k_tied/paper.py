"""The k-tied Normal [k-tied]: published rows that no recipe has, claims and checklist."""

from collections.abc import Mapping, Sequence

from research.publishing.paper import Claim, Item, Paper, Work

__all__ = ["PAPER"]

_AUTHORS = (
    "Jakub Świątkowski, Kevin Roth, Bastiaan S. Veeling, Linh Tran, Joshua V. Dillon, Jasper "
    "Snoek, Stephan Mandt, Tim Salimans, Rodolphe Jenatton and Sebastian Nowozin"
)
_TITLE = (
    "The k-tied Normal Distribution: A Compact Parameterization of Gaussian Mean Field Posteriors "
    "in Bayesian Neural Networks"
)
_TRUNCATED = ("full", "truncated 1", "truncated 2", "truncated 3")


def _rows(*rows: Sequence[float]) -> Mapping[str, Mapping[str, float]]:
    """Rows of −ELBO, NLL, accuracy and, if they are printed, Brier score and ECE."""
    columns = ("negative_elbo", "nll", "accuracy", "brier", "ece")
    return {
        name: dict(zip(columns, row, strict=False))
        for name, row in zip(_TRUNCATED, rows, strict=True)
    }


_CLAIMS = (
    Claim(
        "Standard deviations of a trained mean field are close to low rank, its means are not.",
        "The first singular value explains {percent: mnist-mlp-full-decay/spectra dense1.scale} of "
        "the standard deviations of the MLP's first layer, and "
        "{percent: mnist-mlp-full-decay/spectra dense1.mean} of its means.",
        "[truncation](k_tied/truncation.md#spectra)",
    ),
    Claim(
        "Of a trained mean field two or three singular values are enough: the −ELBO changes by "
        "{printed change: mnist-mlp-full/truncated 2 negative_elbo / mnist-mlp-full/full "
        "negative_elbo} and {printed change: mnist-mlp-full/truncated 3 negative_elbo / "
        "mnist-mlp-full/full negative_elbo}.",
        "Yes: {change: mnist-mlp-full-decay/truncated 2 negative_elbo / mnist-mlp-full-decay/full "
        "negative_elbo} and {change: mnist-mlp-full-decay/truncated 3 negative_elbo / "
        "mnist-mlp-full-decay/full negative_elbo}; k-tied factors that are fitted instead "
        "(`lb.compression.to_k_tied`) cost {change: mnist-mlp-full-decay/tied 2 negative_elbo / "
        "mnist-mlp-full-decay/full negative_elbo} at rank 2.",
        "[truncation](k_tied/truncation.md)",
    ),
    Claim(
        "One singular value is not: the −ELBO is {printed ratio: mnist-mlp-full/truncated 1 "
        "negative_elbo / mnist-mlp-full/full negative_elbo} times as high.",
        "Yes: {ratio: mnist-mlp-full-decay/truncated 1 negative_elbo / mnist-mlp-full-decay/full "
        "negative_elbo} times; fitted factors lose less, {ratio: mnist-mlp-full-decay/tied 1 "
        "negative_elbo / mnist-mlp-full-decay/full negative_elbo} times.",
        "[truncation](k_tied/truncation.md)",
    ),
    Claim(
        "Trained with k = 2 and 3, the MLP has {printed percent: mnist-mlp-k2 parameters / "
        "mnist-mlp-full parameters} of the parameters and an −ELBO of {printed value: mnist-mlp-k2 "
        "negative_elbo} and {printed value: mnist-mlp-k3 negative_elbo}, where the mean field has "
        "{printed value: mnist-mlp-full negative_elbo}.",
        "Yes, once training has converged (450 epochs, a falling rate): {value: mnist-mlp-k2-decay "
        "negative_elbo} and {value: mnist-mlp-k3-decay negative_elbo} against {value: "
        "mnist-mlp-full-decay negative_elbo}. At the printed 300 epochs {value: mnist-mlp-k2 "
        "negative_elbo} and {value: mnist-mlp-k3 negative_elbo} against {value: mnist-mlp-full "
        "negative_elbo}: worse than printed, with a better likelihood.",
        "[MNIST](k_tied/mnist.md)",
    ),
    Claim(
        "k = 1 is worse: {printed value: mnist-mlp-k1 negative_elbo}.",
        "Yes: {value: mnist-mlp-k1-decay negative_elbo} after convergence, {value: mnist-mlp-k1 "
        "negative_elbo} at 300 epochs.",
        "[MNIST](k_tied/mnist.md)",
    ),
    Claim(
        "Tying raises the signal-to-noise ratio of gradients of scales early in training, "
        "{printed ratio: mnist-mlp-snr-k2 snr_1000 / mnist-mlp-snr-full snr_1000} times at step "
        "1000 with k = 2.",
        "It does, by less: {ratio: mnist-mlp-snr-k2 snr_pooled_1000 / mnist-mlp-snr-full "
        "snr_pooled_1000} times, pooled over the layer. The mean over a layer, which the paper "
        "has, is ruled by units that are off.",
        "[gradients](k_tied/gradients.md#signal-to-noise-ratios)",
    ),
    Claim(
        "So tied posteriors converge faster: at step 5000 the −ELBO is {printed value: "
        "mnist-mlp-snr-k2 negative_elbo_5000} with k = 2, and {printed value: mnist-mlp-snr-full "
        "negative_elbo_5000} in the mean field.",
        "Yes: {value: mnist-mlp-snr-k2 negative_elbo_5000} and {value: mnist-mlp-snr-full "
        "negative_elbo_5000}. Part of it is Adam, which moves a tied scale twice as far in a step.",
        "[gradients](k_tied/gradients.md)",
    ),
    Claim(
        "A training step with k = 2 takes no longer than a mean field's: {printed ratio: "
        "step/k-tied, rank 2 mlp_1024 / step/mean field mlp_1024} of its time.",
        "Yes: {ratio: step/k-tied, rank 2 mlp_1024 / step/mean field mlp_1024}; relative to the "
        "plain network {value: step/k-tied, rank 2 mlp_1024} and {value: step/mean field "
        "mlp_1024}.",
        "[cost](k_tied/cost.md)",
    ),
    Claim(
        "The same holds for an LSTM, a LeNet and a ResNet.",
        "Open: two cores ran a small part of the published training. Truncation to rank 2 changes "
        "the NLL by {change: imdb-lstm-full/truncated 2 nll / imdb-lstm-full/full nll}, "
        "{change: cifar100-lenet-full/truncated 2 nll / cifar100-lenet-full/full nll} and "
        "{change: cifar10-resnet-full/truncated 2 nll / cifar10-resnet-full/full nll}. Trained "
        "with k = 2, the LSTM has an accuracy of {value: imdb-lstm-k2 accuracy} ({printed value: "
        "imdb-lstm-k2 accuracy} published) and the LeNet of {value: cifar100-lenet-k2 accuracy} "
        "({printed value: cifar100-lenet-k2 accuracy}).",
        "[LSTM](k_tied/lstm.md), [LeNet](k_tied/lenet.md), [ResNet](k_tied/resnet.md)",
    ),
)

_CHECKLIST = {
    "KT1": Item(
        "eq. 3–4", "Standard deviations are a positive product of low rank, stored as logs."
    ),
    "KT2": Item("appendix E", "They start around 0.01 whatever the rank."),
    "KT3": Item(
        "suppl., B", "The KL is that of independent normals, under N(0, σ²) and He's prior."
    ),
    "KT4": Item("Table 1, Figure 2", "Networks have the published numbers of parameters."),
    "KT5": Item("appendix B", "k = 1 is a diagonal matrix normal; no matrix normal equals k ≥ 2."),
    "KT6": Item(
        "Figures 1 and 5",
        "Trained standard deviations are close to low rank, means are not.",
        "k_tied/truncation.md",
    ),
    "KT7": Item(
        "Table 2",
        "Truncation to rank 1 hurts a trained mean field, ranks 2 and 3 hardly do.",
        "k_tied/truncation.md",
    ),
    "KT8": Item("suppl., D.3", "A convolution's kernel becomes a matrix and comes back unchanged."),
    "KT9": Item(
        "footnote 2",
        "Tied scales have gradients with a higher signal-to-noise ratio early in training.",
        "k_tied/gradients.md",
    ),
    "KT10": Item(
        "Figures 2 and 6",
        "The −ELBO of tied posteriors falls faster, under Adam and SGD.",
        "k_tied/gradients.md",
    ),
    "KT11": Item("appendix E", "The weight of the KL rises every hundred batches."),
    "KT12": Item("appendix E", "An LSTM ties both kernels and keeps one draw over all steps."),
    "KT13": Item(
        "suppl., D.2",
        "The ResNet has its published count, flipout, first scales and cap.",
        "k_tied/resnet.md",
    ),
    "KT14": Item(
        "suppl., C",
        "Scales move on after annealing and end above half of the prior's.",
        "k_tied/mnist.md",
    ),
    "KT15": Item("ICML, Table 3", "NLL, Brier score and ECE are right, with errors over examples."),
    "KT16": Item(
        "ICML, Table 4", "A tied step costs no more than a mean field's.", "k_tied/cost.md"
    ),
    "KT17": Item("section 3", "Predictions average the probabilities of a hundred weight samples."),
}

PAPER = Paper(
    name="k_tied",
    short="k-tied",
    subject="k-tied Normal",
    works=(
        Work("k-tied", _AUTHORS, 2019, _TITLE, "The workshop version"),
        Work("ICML", _AUTHORS, 2020, _TITLE, "ICML 2020, PMLR 119"),
        Work("k-tied suppl.", _AUTHORS, 2020, f"Supplement of {_TITLE}", "ICML 2020, PMLR 119"),
    ),
    checklist=_CHECKLIST,
    claims=_CLAIMS,
    # Table 2; ICML, Figure 5 and Table 3 (Brier scores are less one there); suppl., Figure 2
    truncated={
        "mnist-mlp-full": _rows(
            (0.431, 0.1, 0.976), (3.41, 0.677, 0.936), (0.456, 0.107, 0.976), (0.45, 0.106, 0.976)
        ),
        "cifar100-lenet-full": _rows(
            (3.83, 2.23, 0.421), (4.33, 2.3, 0.417), (3.88, 2.24, 0.422), (3.86, 2.24, 0.421)
        ),
        "imdb-lstm-full": _rows(
            (0.536, 0.493, 0.801), (0.687, 0.491, 0.8), (0.621, 0.494, 0.801), (0.595, 0.493, 0.801)
        ),
        "cifar10-resnet-full": _rows(
            (122.61, 0.495, 0.835, 0.239, 0.0477),
            (122.57, 0.658, 0.817, 0.305, 0.1642),
            (122.77, 0.503, 0.832, 0.242, 0.054),
            (122.67, 0.501, 0.832, 0.242, 0.0541),
        ),
        "cifar10-resnet-he-full": _rows(
            (1.379, 0.6384, 0.79),
            (5.428, 1.485, 0.57),
            (1.448, 0.648, 0.788),
            (1.411, 0.646, 0.789),
        ),
    },
    step_cost={"mean field": 7.17 / 2.00, "k-tied, rank 2": 6.14 / 2.00},  # ICML, Table 4
)
