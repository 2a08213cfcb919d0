"""The k-tied Normal [k-tied]: published rows that no recipe has, claims and checklist."""

from collections.abc import Mapping, Sequence

from research.publishing.paper import Paper, Work

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
    """Return rows of −ELBO, NLL, accuracy and, if they are printed, Brier score and ECE."""
    columns = ("negative_elbo", "nll", "accuracy", "brier", "ece")
    return {
        name: dict(zip(columns, row, strict=False))
        for name, row in zip(_TRUNCATED, rows, strict=True)
    }


PAPER = Paper.of(
    __file__,
    short="k-tied",
    subject="k-tied Normal",
    works=(
        Work("k-tied", _AUTHORS, 2019, _TITLE, "The workshop version"),
        Work("ICML", _AUTHORS, 2020, _TITLE, "ICML 2020, PMLR 119"),
        Work("k-tied suppl.", _AUTHORS, 2020, f"Supplement of {_TITLE}", "ICML 2020, PMLR 119"),
    ),
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
    step_cost={
        "mean field, weights": 7.17 / 2.00,
        "k-tied 2, weights": 6.14 / 2.00,
    },  # ICML, Table 4
)
