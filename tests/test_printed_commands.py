"""Every command that a page prints is one that the command lines accept."""

import importlib
import re
import shlex
from pathlib import Path

import pytest
import typer

import leanbayes_cli
import research.__main__
import research.lab
from leanbayes.lab.architectures import ARCHITECTURES
from leanbayes.lab.data.sources import SOURCES
from leanbayes.lab.optimizers import OPTIMIZERS
from leanbayes.lab.recipe_files import parse_yaml, recipe_to_train
from leanbayes.lab.recipe_names import recipe_names
from research.corruptions import CORRUPTIONS

click = importlib.import_module(typer.BadParameter.__module__)
"""The exceptions of typer, whose click is not always the one that is installed."""
ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "research/**/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"
)
PROGRAMS = {
    ("leanbayes",): leanbayes_cli.app,
    ("python", "-m", "research"): lambda: research.__main__.app,
    ("python", "-m", "research.lab"): research.lab.app,
}
FENCED = re.compile(r"^```(?:sh|bash|console|shell)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
IN_SOURCE = re.compile(
    r"(?:Example: |run |``)((?:leanbayes|python -m research) [a-z][^\"`{};,()\n]+)"
)
SEPARATORS = {"|", "||", "&&", ";", ">", ">>", "<"}


def words_of(line):
    """The words of every simple command of a line, without what a shell takes for itself."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words = []
    for word in (*lexer, ";"):
        if word in SEPARATORS:
            yield words
            words = []
        else:
            words.append(word)


def commands_of(words):
    """Program and arguments, if they are of one of our programs."""
    while words and re.fullmatch(r"\$|[A-Z_]+=.*", words[0]):
        words = words[1:]
    if words:
        words = [Path(words[0]).name.replace("python3", "python"), *words[1:]]
    for program in sorted(PROGRAMS, key=len, reverse=True):
        if tuple(words[: len(program)]) == program:
            yield program, words[len(program) :]
            return


def printed():
    """Page, command, and whether it is whole: code inside a sentence may be a name alone."""
    found = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        name = page.relative_to(ROOT).as_posix()
        for block in FENCED.findall(text):
            for line in block.replace("\\\n", " ").splitlines():
                found.setdefault((line, True), name)
        for code in INLINE.findall(FENCED.sub("", text)):
            found.setdefault((code.replace("…", ""), False), name)
    for folder in ("src", "research"):
        for file in ROOT.glob(f"{folder}/**/*.py"):
            for code in IN_SOURCE.findall(file.read_text(encoding="utf-8")):
                found.setdefault((code, False), file.relative_to(ROOT).as_posix())
    for (line, whole), name in found.items():
        if not any(" ".join(program) in line for program in PROGRAMS):
            continue
        for words in words_of(line):
            for program, arguments in commands_of(words):
                yield pytest.param(program, arguments, whole, id=f"{name}: {line}"[:120])


def parsed(program, arguments):
    """The innermost command with its parameters."""
    command = typer.main.get_command(PROGRAMS[program]())
    context = None
    while True:
        asked_for_help = "--help" in arguments
        context = command.make_context(
            command.name or program[-1],
            [word for word in arguments if word != "--help"],
            parent=context,
            resilient_parsing=asked_for_help,
        )
        rest = [*context._protected_args, *context.args]
        if not hasattr(command, "resolve_command") or not rest:
            return command, context.params
        _, command, arguments = command.resolve_command(context, rest)


@pytest.mark.parametrize(("program", "arguments", "whole"), list(printed()))
def test_a_printed_command_is_accepted(program, arguments, whole):
    try:
        command, found = parsed(program, arguments)
    except (click.NoArgsIsHelpError, click.MissingParameter, click.BadOptionUsage) as error:
        assert not whole, error.format_message()
        return
    except click.BadParameter as error:
        assert "does not exist" in error.format_message()
        return
    if command.name == "train" and found.get("recipe") in recipe_names():
        settings = dict(setting.split("=", 1) for setting in found["settings"] or ())
        values = {key: parse_yaml(value) for key, value in settings.items()}
        recipe = recipe_to_train(found["recipe"], budget=found["budget"], settings=values)
        if program == ("leanbayes",):
            assert recipe.data.name not in SOURCES.checkout_only
            assert recipe.architecture.name not in ARCHITECTURES.checkout_only
            assert recipe.optimizer.name not in OPTIMIZERS.checkout_only
    assert found.get("corrupt") in (None, "all", *CORRUPTIONS)


def test_a_wrong_command_is_refused():
    with pytest.raises(click.UsageError):
        parsed(("leanbayes",), ["train", "k_tied/mnist-mlp-k2", "--epochs", "3"])
    with pytest.raises(click.UsageError):
        parsed(("python", "-m", "research"), ["papers", "rank2"])
