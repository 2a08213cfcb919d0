"""Reference pages from the code: public names, recipe keys, commands and compatibility."""

import importlib
import inspect
import pkgutil
import re
import textwrap

from docutils import nodes
from docutils.statemachine import StringList
from public_api import examples, how_to, owner_of_objects, public_names
from sphinx.util.docutils import SphinxDirective

BACK_LINK = re.compile(r'<a class="viewcode-back" [^>]*#([\w.]+)">[^<]*</a>')


def kind_of(thing):
    """The directive of autodoc that documents an object."""
    if isinstance(thing, type):
        return "autoclass"
    return "autofunction" if inspect.isroutine(thing) else "autodata"


class _Generated(SphinxDirective):
    """A directive whose content is computed."""

    required_arguments = 0

    def run(self):
        """Parse the computed lines."""
        node = nodes.section()
        node.document = self.state.document
        self.state.nested_parse(StringList(self.lines(), "generated"), self.content_offset, node)
        return node.children


class PublicNames(_Generated):
    """Documentation of all public names of a module, each on one page."""

    required_arguments = 1

    def lines(self):
        """The directives of autodoc, as reStructuredText or MyST."""
        module = pkgutil.resolve_name(self.arguments[0])
        owners = owner_of_objects()
        place = self.arguments[0]
        named = sorted(public_names(module).items(), key=lambda item: isinstance(item[1], type))
        names = dict(named)  # functions first
        lines = _summary({f"{place}.{n}": t for n, t in names.items() if owners[id(t)] == place})
        for name, thing in names.items():
            path = f"{place}.{name}"
            if owners[id(thing)] != place:
                lines += [f"`{name}`: see {{py:obj}}`{owners[id(thing)]}.{name}`.", ""]
                continue
            target = how_to(place, name)
            lines += ["```{eval-rst}", f".. {kind_of(thing)}:: {path}", "```", ""]
            lines += [f"How-to guide: [](<{target}.md>)", ""]
        return lines


def _summary(things):
    """A table of functions and classes with the first sentences of their docstrings."""
    rows = ["| Name | Purpose |", "|---|---|"]
    for path, thing in things.items():
        if kind_of(thing) != "autodata":
            first = re.split(r"(?<=\.)\s|\n\n", inspect.getdoc(thing) or "")[0]
            plain = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", " ".join(first.split()))
            rows.append(f"| {{py:obj}}`~{path}` | {plain.replace('|', chr(92) + '|')} |")
    return [*rows, ""] if len(rows) > 4 else []


class RecipeKeys(_Generated):
    """All keys of a recipe with their types and defaults."""

    def lines(self):
        """One table for each section of a recipe."""
        recipe = importlib.import_module("leanbayes.lab.recipe")
        return [line for row in _sections(recipe.Recipe, "") for line in row]


def _sections(model, prefix):
    rows, inner = ["| Key | Type | Default |", "|---|---|---|"], []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if hasattr(kind, "model_fields"):
            inner.append((kind, f"{prefix}{name}."))
            continue
        shown = getattr(kind, "__name__", None) if isinstance(kind, type) else str(kind)
        shown = shown.replace("typing.", "").replace("|", "\\|")
        default = "required" if field.is_required() else f"`{field.default!r}`"
        rows.append(f"| `{prefix}{name}` | `{shown}` | {default.replace('|', chr(92) + '|')} |")
    yield [*rows, ""]
    for kind, path in inner:
        yield [f"**{path.rstrip('.')}**: {kind.__doc__.splitlines()[0]}", ""]
        yield from _sections(kind, path)


class Commands(_Generated):
    """All commands of ``leanbayes`` with their arguments and options."""

    def lines(self):
        """A heading, a usage and a table for each command."""
        import typer

        import leanbayes_cli

        group = typer.main.get_command(leanbayes_cli.app())
        return [line for row in _commands(group, "leanbayes") for line in row]


def _commands(command, path):
    if hasattr(command, "commands"):
        for name, inner in sorted(command.commands.items()):
            if not inner.hidden:
                yield from _commands(inner, f"{path} {name}")
        return
    summary = (command.help or "").split("\f")[0].strip().split("\n\n")[0].replace("\n", " ")
    rows = [f"**`{path}`**", "", summary, "", "| Argument or option | Description |", "|---|---|"]
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        option = parameter.param_type_name == "option"
        names = ", ".join(parameter.opts) if option else parameter.name.upper()
        text = (getattr(parameter, "help", None) or "").replace("|", "\\|").replace("\n", " ")
        rows.append(f"| `{names}` | {text} |")
    yield [*rows, ""]


class Compatibility(_Generated):
    """Posteriors against priors, layers and estimators, each pair tried."""

    def lines(self):
        """Three tables."""
        return importlib.import_module("compatibility").tables()


def skip(app, what, name, thing, skipped, options):
    """Leave out methods that scikit-learn generates."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def add_example(app, what, name, thing, options, lines):
    """Add the example of a name whose docstring has none."""
    if name in (given := examples()):
        lines += ["", ".. rubric:: Example", "", *textwrap.dedent(given[name]).split("\n"), ""]


def drop_back_links(app, pagename, templatename, context, doctree):
    """Remove links from source code to documentation that is under another name."""
    if pagename.startswith("_modules/"):
        known = app.env.domains["py"].objects
        context["body"] = BACK_LINK.sub(
            lambda link: link[0] if link[1] in known else "", context["body"]
        )


def setup(app):
    """Register the directives."""
    app.connect("autodoc-skip-member", skip)
    app.connect("autodoc-process-docstring", add_example)
    app.connect("html-page-context", drop_back_links)
    app.add_directive("public-names", PublicNames)
    app.add_directive("recipe-keys", RecipeKeys)
    app.add_directive("commands", Commands)
    app.add_directive("compatibility", Compatibility)
    return {"parallel_read_safe": True}
