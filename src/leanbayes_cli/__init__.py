"""The ``leanbayes`` command.

It is not part of the package, because importing a module of the package imports torch. Help,
version and wrong arguments are printed at once; a command imports what it needs when it runs.
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
    """Run an application; print how to install an extra that is missing."""
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
    from leanbayes_cli.help import Group

    application = typer.Typer(
        cls=Group,
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    register(application)
    return application
