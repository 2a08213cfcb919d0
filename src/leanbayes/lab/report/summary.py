"""Sections on the recipe of a run, and on its results beside the published ones."""

from collections.abc import Mapping

from leanbayes.lab.recipe import Recipe
from leanbayes.lab.report.html import Html, element, section, table
from leanbayes.lab.report.numbers import METRICS, metric_name, number, target_units, with_error
from leanbayes.lab.report.study import Study, register_section
from leanbayes.lab.runs import Run
from leanbayes.metrics import Score


@register_section
def what_was_run(run: Run, study: Study) -> Html | None:
    """Everything that defines the run, and what it cost."""
    recipe, result = run.recipe, run.result
    counts = {name: f"{count:,}" for name, count in result.get("parameters", {}).items()}
    facts = {
        "Data": _described(recipe.data.name, recipe.data.options),
        "Preparation": "" if study.dataset is None else study.dataset.preprocessing,
        "Network": _described(recipe.architecture.name, recipe.architecture.options),
        "Posterior": str(recipe.posterior or "none: a plain network"),
        "Prior": str(recipe.prior or "none"),
        "Estimator": recipe.estimator,
        "Likelihood": recipe.likelihood.kind,
        "Training": _training(recipe),
        "Evaluation": f"{recipe.evaluation.samples} samples a prediction",
        "Seed": str(recipe.seed),
        "Trained parameters": _described("", counts),
        "Training time": f"{result['seconds']:.1f} s" if "seconds" in result else "",
        "Versions": _described("", result.get("versions", {})),
        "Source revision": result.get("revision") or "",
        "Cut": recipe.cut,
    }
    rows = [(element("b", name), text) for name, text in facts.items() if text]
    whole = element("summary", "The whole recipe"), element("pre", recipe.to_yaml())
    body = table((), rows, "The recipe and what it took.", words=2)
    return section("What was run", body, element("details", *whole))


def _described(name: str, options: Mapping[str, object]) -> str:
    details = ", ".join(f"{key} {value}" for key, value in options.items())
    return f"{name} ({details})" if name and details else name or details


def _training(recipe: Recipe) -> str:
    training, optimizer = recipe.training, recipe.optimizer
    return (
        f"{training.epochs} epochs in batches of {training.batch_size}, {optimizer.name} with "
        f"learning rate {optimizer.lr:g} ({recipe.learning_rate.kind}), "
        f"KL weight {_described(recipe.kl.kind, recipe.kl.options)}"
    )


@register_section
def results(run: Run, study: Study) -> Html | None:
    """Our test metrics next to the published ones."""
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
    header = ["Metric", "Ours", *(() if published is None else ("Published", "Difference"))]
    parts = [table(header, rows, "On the test set, ± one standard error over examples.")]
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
