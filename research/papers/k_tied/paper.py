"""The k-tied Normal [k-tied]: published rows that no recipe has, claims and checklist."""

from research.publishing.paper import Paper, Work, read_published

_AUTHORS = (
    "Jakub Świątkowski, Kevin Roth, Bastiaan S. Veeling, Linh Tran, Joshua V. Dillon, Jasper "
    "Snoek, Stephan Mandt, Tim Salimans, Rodolphe Jenatton and Sebastian Nowozin"
)
_TITLE = (
    "The k-tied Normal Distribution: A Compact Parameterization of Gaussian Mean Field Posteriors "
    "in Bayesian Neural Networks"
)
PAPER = Paper.of(
    __file__,
    short="k-tied",
    subject="k-tied Normal",
    works=(
        Work("k-tied", _AUTHORS, 2019, _TITLE, "The workshop version"),
        Work("ICML", _AUTHORS, 2020, _TITLE, "ICML 2020, PMLR 119"),
        Work("k-tied suppl.", _AUTHORS, 2020, f"Supplement of {_TITLE}", "ICML 2020, PMLR 119"),
    ),
    truncated=read_published(__file__),
    step_cost={
        "mean field, weights": 7.17 / 2.00,
        "k-tied 2, weights": 6.14 / 2.00,
    },  # ICML, Table 4
)
