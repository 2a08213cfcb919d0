"""Train a policy with several seeds, into one file that a stopped study goes on with."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

import torch
import typer

from leanbayes.lab.files import read_object
from leanbayes.lab.provenance import environment_facts
from leanbayes_cli.errors import console, in_a_sentence
from leanbayes_cli.options import output
from research.options import Seeds, with_settings
from research.papers.variance.reinforce import Episodes, PolicyGradient, Reinforce
from research.publishing.study_file import refuse_changes, write_study


def add_explore(application: typer.Typer) -> None:
    """Add the command to an application."""
    example = "python -m research.lab explore CartPole-v0 --policy variance --seeds 9"
    command = application.command(epilog=f"Example: {example}", rich_help_panel="Research")
    command(in_a_sentence(with_settings(PolicyGradient)(explore)))


def explore(
    settings: PolicyGradient,
    environment: Annotated[str, typer.Argument(help="A name that gymnasium knows.")],
    seeds: Seeds = 9,
    out: Annotated[
        Path | None, output("JSON file; runs/ENVIRONMENT-POLICY.json if not given.", dir_okay=False)
    ] = None,
) -> None:
    """Train a policy by REINFORCE, its weights drawn once an episode, with several seeds.

    The file is written after every seed; a stopped study goes on with the same command.
    """
    torch.set_num_threads(1)  # matrices this small are slower on two
    path = out or Path("runs") / f"{environment.replace('/', '-')}-{settings.policy}.json"
    done = train_seeds(environment, settings, path, seeds=seeds, tell=_show_seed)
    mean, count = done["last_100"], len(done["runs"])
    told = f"mean over {count} seeds {mean['value']:.1f} ± {mean['error']:.1f}: {path}"
    console().print(told, soft_wrap=True)


def _show_seed(run: Mapping[str, Any]) -> None:
    score, episodes = run["last_100"], len(run["returns"])
    console().print(
        f"seed {run['seed']}: return {score['value']:.1f} ± {score['error']:.1f} over the last "
        f"{min(100, episodes)} of {episodes} episodes, {run['seconds']:.0f} s",
        soft_wrap=True,
    )


def train_seeds(
    environment: str,
    settings: PolicyGradient,
    out: Path,
    *,
    seeds: int = 9,
    tell: Callable[[Mapping[str, Any]], object] | None = None,
) -> dict[str, Any]:
    """Train a policy with the seeds 0, 1, … and write what came out after each.

    Seeds that the file has already are not trained again. After Ctrl-C it also holds the episodes
    of the seed that was stopped, which the next call starts from the beginning.

    Returns:
        What the file holds.
    """
    chosen = {"environment": environment, "settings": asdict(settings)}
    study: dict[str, Any] = {**chosen, "last_100": None, "runs": []}
    if out.exists():
        study = read_object(out, study.keys(), "a study of a policy", "choose another --output")
        before = {"environment": study["environment"], **study["settings"]}
        refuse_changes(out, before, {"environment": environment, **asdict(settings)})
    runs = {run["seed"]: run for run in study["runs"] if run["finished"]}
    study["runs"] = list(runs.values())
    for seed in range(seeds):
        if seed not in runs:
            learner = Reinforce(environment, settings, seed=seed)
            try:
                learner.run()
            finally:
                runs[seed] = _described(learner.result)
                study["runs"] = [runs[number] for number in sorted(runs)]
                study["last_100"] = _over_seeds(study["runs"])
                write_study(out, study)
        if tell is not None:
            tell(runs[seed])
    return study


def _described(episodes: Episodes) -> dict[str, Any]:
    return {
        "seed": episodes.seed,
        "finished": episodes.finished,
        "last_100": episodes.last()._asdict() if episodes.returns else None,
        "seconds": round(episodes.seconds, 2),
        **environment_facts("gymnasium"),
        "returns": list(episodes.returns),
    }


def _over_seeds(runs: list[dict[str, Any]]) -> dict[str, float] | None:
    """Return the mean over finished seeds, and its standard error over them."""
    values = [run["last_100"]["value"] for run in runs if run["finished"]]
    if not values:
        return None
    spread = stdev(values) if len(values) > 1 else 0.0
    return {"value": fmean(values), "error": spread / len(values) ** 0.5}
