"""A section of a report: a function of a run and of what its model and data give."""

from leanbayes.lab.report import register_section
from leanbayes.lab.report.html import Html, element, section
from leanbayes.lab.report.study import Study
from leanbayes.lab.runs import Run


@register_section
def how_long(run: Run, study: Study) -> Html | None:
    """The time of an epoch."""
    epochs = run.result.get("epochs")
    if not epochs:
        return None
    return section("How long", element("p", f"{run.result['seconds'] / epochs:.1f} s an epoch."))
