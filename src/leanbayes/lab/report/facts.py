"""The last section of a run: its recipe, and what it cost."""

from collections.abc import Mapping

from leanbayes.lab.recipe import Recipe
from leanbayes.lab.report.html import Html, element, section, table
from leanbayes.lab.report.study import Study, register_section
from leanbayes.lab.runs import Run


@register_section
def what_was_run(run: Run, study: Study) -> Html | None:
    """Return everything that defines the run, and what it cost."""
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
        "Evaluation": f"{recipe.evaluation.samples} samples per prediction",
        "Seed": str(recipe.seed),
        "Trained parameters": _described("", counts),
        "Training time": f"{result['seconds']:.1f} s" if "seconds" in result else "",
        "Versions": _described("", result.get("versions", {})),
        "Source revision": result.get("revision") or "",
        "Cut": recipe.cut,
    }
    rows = [(name, text) for name, text in facts.items() if text]
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
