"""Options that commands share, and options made from a class of settings."""

import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from leanbayes.lab.runs import Run

Out = Annotated[Path, typer.Option(help="JSON file; a stopped study resumes from it.")]
OutFolder = Annotated[Path, typer.Option(help="Folder of results; stopped studies resume.")]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds.")]
RunFolder = Annotated[Path, typer.Argument(help="Finished run folder.")]
RunFolders = Annotated[list[Path], typer.Argument(help="Finished run folders.")]
Images = Annotated[int | None, typer.Option(min=1, help="Number of test images; all.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file.")]
SeedFile = Annotated[
    Path | None, typer.Option(help="JSON file; NAME-seedSEED.json in the paper's results.")
]
Threads = Annotated[int, typer.Option(min=1, help="Number of torch threads.")]


def seed_file(run: Path, folder: Path, out: Path | None, overwrite: bool) -> Path:
    """Return where a study of a run is written: ``NAME-seedSEED.json`` in a folder by default."""
    recipe = Run(run).recipe
    return out_file(out or folder / f"{recipe.name}-seed{recipe.seed}.json", overwrite)


def out_file(file: Path, overwrite: bool) -> Path:
    """Return a file that may be written; an old one is refused unless it may be replaced."""
    if file.exists() and not overwrite:
        raise FileExistsError(
            f"{file} exists; replace it with --overwrite, or choose another --out"
        )
    return file


def with_settings(
    settings: type,
    *,
    parse: Mapping[str, tuple[Callable[[str], Any], str]] = MappingProxyType({}),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for every field of a data class.

    Its first parameter, ``settings``, becomes the options. Their help is that of the class's
    ``Args``.

    Args:
        settings: a data class with defaults.
        parse: for fields whose options are text, how to read it, and the default.

    Example:
        >>> @dataclasses.dataclass
        ... class Training:
        ...     epochs: int = 3
        >>> @with_settings(Training)
        ... def train(settings: Training, out: Path = Path("out")) -> None:
        ...     print(settings, out)
        >>> train(epochs=5)
        Training(epochs=5) out
    """
    fields = dataclasses.fields(settings)

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(function).parameters.values()

        @functools.wraps(function)
        def command(**values: Any) -> None:
            given = {f.name: values.pop(f.name, f.default) for f in fields}
            chosen = {n: tuple(v) if isinstance(v, list) else v for n, v in given.items()}
            chosen |= {name: read(str(chosen[name])) for name, (read, _) in parse.items()}
            function(settings(**chosen), **values)

        texts = {name: default for name, (_, default) in parse.items()}
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        parameters += _options(settings, texts)
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return decorate


def _options(settings: Any, texts: Mapping[str, str]) -> Iterator[inspect.Parameter]:
    hints, helps = typing.get_type_hints(settings), _helps(settings)
    for field in dataclasses.fields(settings):
        hint = str if field.name in texts else hints[field.name]
        default = texts.get(field.name, field.default)
        yield _option(field.name, hint, default, helps.get(field.name, ""))


def _option(name: str, hint: Any, default: Any, help_text: str) -> inspect.Parameter:
    if isinstance(default, tuple):
        (hint, _), default = typing.get_args(hint), list(default)
        hint = types.GenericAlias(list, (hint,))
        help_text += " May be repeated."
    annotation = Annotated[hint, typer.Option(help=help_text)]
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _helps(settings: type) -> dict[str, str]:
    """Return the lines of a class's ``Args``, by field."""
    text = (inspect.getdoc(settings) or "").partition("Args:\n")[2]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    sentences = ((name, " ".join(said.split()).replace("``", "")) for name, said in entries)
    return {name: said[:1].upper() + said[1:] for name, said in sentences}
