"""The commands ``data list``, ``data fetch`` and ``data check``."""

from typing import Annotated

import typer
from rich.table import Table

from leanbayes_cli.errors import console, in_a_sentence, say_next
from leanbayes_cli.help import Command, Group

DataName = Annotated[str, typer.Argument(metavar="NAME", help="Name from leanbayes data list.")]


def data_app() -> typer.Typer:
    """Make the application of the subcommands of ``data``."""
    data = typer.Typer(cls=Group, no_args_is_help=True)
    for name, command, example in (
        ("list", data_list, "data list"),
        ("fetch", data_fetch, "data fetch mnist"),
        ("check", data_check, "data check mnist"),
    ):
        data.command(name, cls=Command, epilog=f"Example: leanbayes {example}")(
            in_a_sentence(command)
        )
    return data


def data_list(
    checksums: Annotated[
        bool, typer.Option("--checksums", help="Compare every file with its checksum (slow).")
    ] = False,
) -> None:
    """List the data sets: folder, size, license, and how to get those that are absent."""
    from leanbayes.lab.data import listing
    from leanbayes.lab.data.sources import SOURCES

    shown = Table()
    for heading in ("name", "where", "size", "license", *(["checksums"] if checksums else [])):
        shown.add_column(heading, overflow="fold", no_wrap=heading in ("name", "size"))
    absent = []
    for entry in listing(checksums=checksums):
        size = f"{entry.size / 1e6:.1f} MB" if entry.size else ""
        cells = (entry.name, entry.place, size, entry.license, str(entry.state))
        shown.add_row(*cells[: len(shown.columns)])
        if entry.state == "absent" and entry.size:
            absent.append(entry.name)
    console().print(shown)
    if papers := sorted(filter(SOURCES.is_missing, SOURCES.checkout_only)):
        text = f"Not here: {', '.join(papers)}. In a checkout: python -m research.lab data list"
        console().print(text, soft_wrap=True)
    if absent:
        say_next("data", "fetch", absent[0])
    else:
        say_next("recipes")


def data_fetch(name: DataName) -> None:
    """Download a data set if it is not on this machine, and compare its checksums."""
    from leanbayes.lab.data import fetch

    copy = fetch(name)
    where = "needs no files" if copy is None else f"is in {copy.folder}"
    console().print(f"{name} {where}", soft_wrap=True)
    say_next("recipes")


def data_check(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One data set instead of all.")
    ] = None,
) -> None:
    """Compare the files on this machine with their checksums."""
    from leanbayes.lab.data import check

    states = check(name)
    shown = Table("data set", "file", "state")
    for file in states:
        shown.add_row(file.name, file.path.name, str(file.state))
    console().print(shown)
    damaged = [file for file in states if file.state == "wrong"]
    if damaged:
        raise ValueError(f"{damaged[0].path} has a wrong checksum; remove it and fetch it again")
    say_next("recipes")
