"""Settings that were chosen before the table was trained, by their validation images."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from leanbayes.errors import require
from leanbayes.lab.files import write_json
from leanbayes.lab.recipe import Recipe, check_recipe
from leanbayes.lab.runs import Run
from research.publishing.cells import Cell
from research.publishing.paper import RECIPES
from research.publishing.run_commands import folded, training_commands
from research.publishing.tables import markdown_table

TITLES = {
    "deterministic": "deterministic",
    "mc-dropout": "MC dropout",
    "gaussian": "rank-1 Gaussian",
    "cauchy": "rank-1 Cauchy",
}
_PREFIX = "fashion-mnist-resnet-"
_FROM_RESULT = (
    *("epochs", "seconds", "seed", "recipe"),
    *("versions", "revision", "tree", "sources", "threads"),
)


def rate_of(recipe: Recipe) -> float | None:
    """The dropout rate at which noise starts, or that noise has; ``None`` where there is none."""
    rate: float | None
    if recipe.mc_dropout:
        rate = recipe.architecture.options.get("dropout")
    else:
        rate = getattr(recipe.posterior, "rate", None)
    return rate


def trials(folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """Collect what finished runs came to on their validation images, in a file."""
    found = [_trial(Run(folder)) for folder in folders]
    study = {"study": "trials", "trials": sorted(found, key=lambda t: (t["name"], t["rate"] or 0))}
    write_json(out, study)
    return study


def _trial(run: Run) -> dict[str, Any]:
    run.check_result()
    recipe, result, columns = run.recipe, run.result, run.columns
    held_out = run.dataset.validation
    require(
        run.dataset.task == "classification",
        f"{run.folder} is a run of {run.dataset.task}, and images of classes are compared here",
    )
    if held_out is None:
        raise ValueError(
            f"{run.folder} held no images out, so nothing can be chosen by it; "
            "train with --set data.options.validation=5000"
        )
    return {
        "name": recipe.name.removeprefix(_PREFIX),
        "rate": rate_of(recipe),
        "images": len(held_out),
        "nll": columns["validation/nll"][-1],
        "accuracy": columns["validation/accuracy"][-1],
        **{key: result[key] for key in _FROM_RESULT},
    }


def trials_table(study: Mapping[str, Any]) -> str:
    """Rates with the NLL and accuracy of the last epoch; the least NLL of a network stands out."""
    rows = []
    for name, title in TITLES.items():
        own = [trial for trial in study["trials"] if trial["name"] == name]
        least = min((trial["nll"] for trial in own), default=0.0)
        for trial in own:
            nll = str(Cell(trial["nll"]))
            rate = "–" if trial["rate"] is None else f"{trial['rate']:g}"
            shown = f"**{nll}**" if len(own) > 1 and trial["nll"] == least else nll
            rows.append([title, rate, shown, f"{100 * trial['accuracy']:.1f}"])
    table = markdown_table(["network", "rate", "NLL", "accuracy, %"], rows)
    return f"{table}\n\n{folded(_commands(study['trials']))}"


def _commands(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Return what trains every row that has a recipe here, and what collects them."""
    for trial in (each for each in found if each["recipe"]["name"].startswith(_PREFIX)):
        (command,) = training_commands(RECIPES / "rank1", [check_recipe(trial["recipe"], "trials")])
        rate = "" if trial["rate"] is None else f"-{trial['rate']:g}"
        yield f"{command} -o runs/trials/{trial['name']}{rate}"
    yield "python -m research papers rank1-trials runs/trials/*"
