"""The section on the results of a run beside the published ones; its verdict."""

from leanbayes.lab.report.html import Html, element, section, table
from leanbayes.lab.report.numbers import METRICS, metric_name, number, target_units, with_error
from leanbayes.lab.report.study import Study, register_section
from leanbayes.lab.runs import Run
from leanbayes.metrics import Score

_VERDICT = ("accuracy", "rmse", "nll", "ece", "coverage_90")


@register_section
def results(run: Run, study: Study) -> Html | None:
    """Return our test metrics next to the published ones."""
    ours, published, units = run.metrics, run.recipe.published, target_units(study.dataset)
    theirs = {} if published is None else dict(published.values)
    counted = theirs.pop("parameters", None)
    if not ours and not theirs:
        return None
    names = [n for n in METRICS if n in ours or n in theirs]
    names += [n for n in {**ours, **theirs} if n not in METRICS]
    rows = []
    for name in names:
        measured = with_error(ours[name]) if name in ours else "not measured"
        row = [metric_name(name, units), measured]
        if published is not None:
            row.append(number(theirs[name]) if name in theirs else "–")
            row.append(_difference(ours.get(name), theirs.get(name)))
        rows.append(row)
    if counted is not None and run.parameters is not None:
        difference = f"{run.parameters - counted:+,.0f}"
        rows.append(["trained parameters", f"{run.parameters:,}", f"{counted:,.0f}", difference])
    verdict = ", ".join(
        f"{metric_name(name, units)} {with_error(ours[name])}" for name in _VERDICT if name in ours
    )
    header = ["Metric", "Ours", *(() if published is None else ("Published", "Difference"))]
    parts = [element("p", f"On the test set: {verdict}.", class_="verdict")] if verdict else []
    parts += [table(header, rows, "On the test set, ± one standard error over examples.")]
    if published is not None:
        about = f"Published: paper {published.paper}, row “{published.row}”."
        parts.append(element("p", f"{about} {published.note}".strip()))
        if run.recipe.cut:
            text = f"Not the published settings: {run.recipe.cut}"
            parts.append(element("p", text, class_="notice"))
    return section("Results", *parts)


def _difference(ours: Score | None, theirs: float | None) -> str:
    if ours is None or theirs is None:
        return "–"
    gap = ours.value - theirs
    errors = f" ({gap / ours.error:+.1f} s.e.)" if ours.error else ""
    return f"{gap:+.4f}{errors}"
