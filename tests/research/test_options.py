"""Options of a command come from a class of settings."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from research.__main__ import app
from research.options import out_file, with_settings


@dataclass(frozen=True)
class Settings:
    """How it is done.

    Args:
        epochs: number of ``epochs``.
        rates: learning rates.
        shape: of the
            latent vector.
        small: whether it is small.
    """

    epochs: int = 3
    rates: tuple[float, ...] = (0.1,)
    shape: tuple[int, ...] = (4,)
    small: bool = False


@pytest.fixture
def command():
    seen, one = [], typer.Typer()

    @one.command()
    @with_settings(Settings, parse={"shape": (lambda text: tuple(map(int, text.split("x"))), "4")})
    def run(settings: Settings, out: Path = Path("out")) -> None:
        """Do it."""
        seen.append((settings, out))

    return lambda *given: (CliRunner().invoke(one, given), seen)


def test_defaults_and_given_values_become_settings(command):
    assert command()[0].exit_code == 0
    done, seen = command(
        "--epochs", "5", "--rates", "1", "--rates", "2", "--shape", "2x3", "--small"
    )
    assert done.exit_code == 0, done.output
    assert seen == [
        (Settings(), Path("out")),
        (Settings(5, (1.0, 2.0), (2, 3), True), Path("out")),
    ]


def test_help_is_that_of_the_class(command):
    text = " ".join(command("--help")[0].output.replace("│", " ").split())
    assert "Number of epochs." in text
    assert "Learning rates. May be repeated." in text
    assert "Of the latent vector." in text


def test_files_are_replaced_only_if_asked_for(tmp_path):
    file = tmp_path / "study.json"
    assert out_file(file, overwrite=False) == file
    file.touch()
    assert out_file(file, overwrite=True) == file
    with pytest.raises(FileExistsError, match="--overwrite"):
        out_file(file, overwrite=False)


GROUPS = {
    "": "table page archive trace",
    "papers ": "toy attack policies variance natural vae judge-vae records rank1 rank1-costs "
    "rank1-trials theorem sparsity compaction compress",
    "studies ": "uci kl-weight lora overview",
    "bench ": "run quality generator laboratory corruptions matrix-normal compaction",
}


@pytest.mark.parametrize(
    "command", [f"{group}{name}" for group, names in GROUPS.items() for name in names.split()]
)
def test_every_command_has_help_and_an_example_of_itself(command):
    done = CliRunner().invoke(app, [*command.split(), "--help"])
    assert done.exit_code == 0, done.output
    assert f"Example: python -m research {command}" in " ".join(done.output.split())
