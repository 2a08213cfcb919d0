"""``python -m research.lab``: the ``leanbayes`` command with the papers' extensions."""

import typer

import leanbayes_cli
from research import extensions
from research.corruptions.robustness_command import add_robustness
from research.papers.variance.explore import add_explore

__all__ = ["app", "extensions"]


def app() -> typer.Typer:
    """Make the command-line application."""
    application = leanbayes_cli.app()
    add_explore(application)
    add_robustness(application)
    return application


if __name__ == "__main__":
    leanbayes_cli.run_app(app)
