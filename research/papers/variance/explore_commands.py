"""``explore``: train policies by REINFORCE, with several seeds, into one file.

Annotations are read by typer, so they are ordinary objects here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from leanbayes_cli.errors import console, in_a_sentence
from leanbayes_cli.options import output
from research.papers.variance.explore import explore as study
from research.papers.variance.reinforce import PolicyGradient


def add_explore(application: typer.Typer) -> None:
    """Add the command to an application."""
    example = "python -m research.lab explore CartPole-v0 --policy variance --seeds 9"
    command = application.command(epilog=f"Example: {example}", rich_help_panel="Research")
    command(in_a_sentence(explore))


def explore(
    environment: Annotated[str, typer.Argument(help="A name that gymnasium knows.")],
    policy: Annotated[
        Literal["deterministic", "noise", "variance"],
        typer.Option(help="What the weights of the second hidden layer are."),
    ] = "variance",
    seeds: Annotated[int, typer.Option(min=1, help="How many.")] = 9,
    episodes: Annotated[int | None, typer.Option(min=1, help="Of every seed.")] = None,
    environments: Annotated[
        int | None, typer.Option(min=2, help="Episodes between two updates.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="The first learning rate.")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="The longest episode, if not the environment's.")
    ] = None,
    out: Annotated[
        Path | None, output("JSON file; runs/ENVIRONMENT-POLICY.json if not given.", dir_okay=False)
    ] = None,
) -> None:
    """Train a policy by REINFORCE, its weights drawn once an episode, with several seeds.

    The file is written after every seed; a stopped study goes on with the same command.
    """
    options = {"episodes": episodes, "environments": environments, "lr": lr, "steps": steps}
    given: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    path = out or Path("runs") / f"{environment.replace('/', '-')}-{policy}.json"
    settings = PolicyGradient(policy, **given)
    done = study(environment, settings, path, seeds=seeds, tell=_show_seed)
    mean = done["last_100"]
    console().print(
        f"mean over {len(done['runs'])} seeds {mean['value']:.1f} ± {mean['error']:.1f}: {path}",
        soft_wrap=True,
    )


def _show_seed(run: Mapping[str, Any]) -> None:
    score, episodes = run["last_100"], len(run["returns"])
    console().print(
        f"seed {run['seed']}: return {score['value']:.1f} ± {score['error']:.1f} over the last "
        f"{min(100, episodes)} of {episodes} episodes, {run['seconds']:.0f} s",
        soft_wrap=True,
    )
