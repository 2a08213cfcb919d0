"""The ``leanbayes`` command: a door.

It stands beside the package, because a module of the package can only be imported with the package
itself, and that with torch. So help, versions and mistakes in a command come at once; what a
command needs is imported when it runs.
"""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import typer

__all__ = ["app", "main", "run_app"]

_LAB = (
    *("PIL", "filelock", "lightning", "matplotlib", "numpy", "optuna", "pooch", "pydantic"),
    *("rich", "sklearn", "tensorboard", "typer", "yaml"),
)
_EXTRAS = {
    **dict.fromkeys(_LAB, "lab"),
    "gymnasium": "research",
    "torch_uncertainty_assets": "frost",
}
_EXTRAS |= dict.fromkeys(("onnx", "onnxscript"), "onnx")


def main() -> None:
    """Run the command."""
    run_app(app)


def run_app(make: "Callable[[], typer.Typer]") -> None:
    """Run an application; without the extra that it needs, say how to get it."""
    try:
        make()()
    except ImportError as error:
        missing = (error.__cause__ if isinstance(error.__cause__, ImportError) else error).name
        extra = _EXTRAS.get((missing or "").partition(".")[0])
        if extra is None:
            raise
        sys.exit(f"leanbayes: {missing} is not installed; run pip install 'leanbayes[{extra}]'")


def app() -> "typer.Typer":
    """Make the command-line application."""
    import typer

    from leanbayes_cli.commands import register

    application = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="rich")
    register(application)
    return application
