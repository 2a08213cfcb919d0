"""Columns of the demo's table, on a terminal and on a page, and their legend."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from leanbayes.lab.demo.families import FAMILIES, Settings
from leanbayes.lab.demo.results import Result, is_significant


@dataclass(frozen=True)
class Column:
    """How one number of a result is shown.

    Args:
        title: over the column of a page.
        short: over that of a terminal, which leaves out those without.
        value: takes the number out of a result.
        form: its format.
        best: which value is the best one, if any is.
        more: what is said beside it on a page.
        error: what is said beside it on a wide terminal.
        mark: what always follows it.
    """

    title: str
    short: str
    value: Callable[[Result], float]
    form: str = "{:.3f}"
    best: Callable[[Iterable[float]], float] | None = None
    more: Callable[[Result], str] = lambda result: ""
    error: Callable[[Result], str] = lambda result: ""
    mark: Callable[[Result], str] = lambda result: ""

    def text(self, result: Result) -> str:
        """The number."""
        return self.form.format(self.value(result))


def columns(results: Sequence[Result]) -> tuple[Column, ...]:
    """Those of a table of these results; differences are to the first of them."""
    reference = results[0]
    return (
        Column(
            "Accuracy, %",
            "acc.\n%",
            lambda r: 100 * r.score("accuracy").value,
            "{:.1f}",
            max,
            lambda r: f" ± {100 * r.score('accuracy').error:.1f}",
        ),
        Column("NLL", "\nNLL", lambda r: r.score("nll").value, best=min, more=_error("nll")),
        _difference(f"NLL − {reference.name}", "NLL −\ndeterm.", "nll", reference),
        Column("Brier score", "", lambda r: r.score("brier").value, more=_error("brier")),
        Column("ECE", "\nECE", lambda r: r.calibration_error, best=min),
        *_detection("inverted", "inv.", reference),
        *_detection("shuffled", "shuf.", reference),
        Column(
            "Parameters",
            "\nsize",
            lambda r: r.relative_parameters,
            "{:.2f}×",
            more=lambda r: f" {r.parameters:>7,}",
        ),
        Column(
            "Step cost",
            "step\ncost",
            lambda r: r.step_cost.median,
            "{:.1f}×",
            more=lambda r: f" {r.step_cost.low:>4.1f}–{r.step_cost.high:.1f}",
        ),
    )


def _error(metric: str) -> Callable[[Result], str]:
    return lambda result: f" ± {result.score(metric).error:.3f}"


def _mark(metric: str, reference: Result) -> Callable[[Result], str]:
    """A star on what is more than two standard errors away from the reference, else a blank."""
    return lambda result: "*" if is_significant(result.minus(reference, metric)) else " "


def _difference(title: str, short: str, metric: str, reference: Result) -> Column:
    def error(form: str) -> Callable[[Result], str]:
        return lambda r: "" if r is reference else form.format(r.minus(reference, metric).error)

    return Column(
        title,
        short,
        lambda r: r.minus(reference, metric).value,
        "{:+.3f}",
        more=error(" ± {:.3f}"),
        error=error(" ±{:.3f}"),
        mark=_mark(metric, reference),
    )


def _detection(kind: str, short: str, reference: Result) -> tuple[Column, Column]:
    metric = f"auroc_{kind}"
    return (
        Column(
            f"AUROC {kind}",
            f"AUROC\n{short}",
            lambda r: r.score(metric).value,
            best=max,
            more=_error(metric),
            error=lambda r: f" ±{r.score(metric).error:.3f}",
            mark=_mark(metric, reference),
        ),
        _difference(f"AUROC {kind} − {reference.name}", "", metric, reference),
    )


def legend(results: Sequence[Result], settings: Settings, seconds: float) -> str:
    """What the numbers of the table mean, and what they depend on."""
    sources = "seeds and images" if settings.seeds > 1 else "images"
    shown = {result.name for result in results}
    longer = "".join(
        f" ({family.name} {family.longer * settings.epochs}, and more would help it)"
        for family in FAMILIES
        if family.longer > 1 and family.name in shown
    )
    return (
        f"All on the same 360 test images, with {settings.named_seeds}. "
        f"± is one standard error over {sources}; differences to the {results[0].name} network "
        "are paired by seed and by image, and * is "
        "one of more than two standard errors (by chance alone about one in twenty has it). "
        "NLL: negative log likelihood, in nats. ECE: calibration error in 15 bins. "
        "AUROC: how well the entropy of a prediction tells inverted, or pixel-shuffled, images "
        "from digits. Size (parameters) and processor time of a training step are relative to one "
        "plain network; in one this small much of the step is overhead; make bench "
        "measures larger ones. Rank-1 networks have 4 members, and each sees every image. "
        f"The KL has a weight of {settings.kl_weight:g} (cold posteriors); rate and epochs were "
        "chosen with test scores in sight.\n"
        f"{settings.epochs} epochs{longer}, {settings.samples} samples a prediction, "
        f"{seconds:.0f} s."
    )
