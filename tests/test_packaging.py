"""What may import what, what importing costs, and what is promised to users of the package."""

import ast
import functools
import importlib
import importlib.metadata
import inspect
import re
import runpy
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import leanbayes as lb

PACKAGE = Path(lb.__file__).parent
COMMAND = PACKAGE.parent / "leanbayes_cli"
PROJECT = Path(__file__).parents[1]

LEVELS = (
    {"errors"},
    {"display", "torch_private", "_start"},
    {"ops", "registry", "spec", "precision"},
    {"distributions"},
    {"kernels", "parameters"},
    {"posteriors", "priors", "estimators"},
    {"layers"},
    {"models", "conversion", "metrics"},
    {"likelihoods"},
    {"prediction", "saving"},
    {"analysis", "testing", "export"},
    {"training", "plots"},
    {"compression"},
    {"extend", "sklearn", "lightning"},
    {"leanbayes"},
    {"lab"},
    {"leanbayes_cli"},
    {"__main__"},
)
"""Imports only go up this list; ``leanbayes`` is the package itself, with its public names."""

LAB_LEVELS = (
    {"files", "plots", "weights", "interrupts", "provenance"}
    | {"validation", "path_names", "console", "recipe_names", "selfcheck"},
    {"tables", "checkpoints", "result_files"},
    {"data", "architectures"},
    {"measurements"},
    {"recipe"},
    {"optimizers"},
    {"recipe_files", "from_recipe", "launch"},
    {"runs"},
    {"callbacks", "preflight", "evaluation", "predictions", "new_recipe"},
    {"train", "export_run"},
    {"sweep", "report"},
    {"demo"},
)
"""The same within the laboratory, from files to the demo."""

CORE = {"torch", "safetensors"}
DOORS = {"lightning", "sklearn", "export", "lab", "leanbayes_cli", "__main__"}
"""Modules for what is installed as an extra; the package itself does not import them."""

PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


class Import(NamedTuple):
    target: str
    in_function: bool
    line: int


def modules():
    """Every module of the package and of its command with its source, by dotted name."""
    for path in sorted((*PACKAGE.rglob("*.py"), *COMMAND.rglob("*.py"))):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        yield ".".join(parts), path.read_text(encoding="utf-8")


SOURCES = dict(modules())


@functools.cache
def imports(source, known=frozenset(SOURCES)):
    """All imports of a source; ``from a import b`` is of ``a.b`` where that is a module."""
    found = []

    def visit(node, in_function):
        in_function = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: imports name their package"
            full = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            targets = {name if name in known else node.module for name in full.values()}
        else:
            targets = []
        found.extend(Import(target, in_function, node.lineno) for target in targets)
        for child in ast.iter_child_nodes(node):
            visit(child, in_function)

    visit(ast.parse(source), False)
    return found


def room(module):
    """A module of the package, or the command as a whole."""
    top, *rest = module.split(".")
    return rest[0] if rest and top == "leanbayes" else top


def place(module):
    """The place of a module in the list, and that of a part of the laboratory in its own."""
    parts = module.split(".")
    places = [_level(LEVELS, "LEVELS", room(module), module)]
    if parts[1:2] == ["lab"] and len(parts) > 2:
        places.append(_level(LAB_LEVELS, "LAB_LEVELS", parts[2], module))
    return places


def _level(levels, name, part, module):
    places = [i for i, level in enumerate(levels) if part in level]
    assert places, f"{module} has no place in {name}; say what may import it"
    return places[0]


def inside(target):
    return target.split(".")[0] in ("leanbayes", "leanbayes_cli")


def downward(module, source):
    """Imports of what comes later in the list."""
    own = place(module)
    return [
        f"{module}:{i.line} imports {i.target}"
        for i in imports(source)
        if inside(i.target) and place(i.target) > own
    ]


def hidden(source):
    """Imports inside functions of what is neither an extra nor for checks alone."""

    def is_heavy(target):
        if inside(target):
            return room(target) in DOORS | {"testing"}
        top = target.split(".")[0]
        return top not in CORE and top not in sys.stdlib_module_names

    return [i for i in imports(source) if i.in_function and not is_heavy(i.target)]


def pickling(source):
    """Lines that pickle, or load a file that could run code."""
    lines = [i.line for i in imports(source) if i.target.split(".")[0] in PICKLES]
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        keywords = {k.arg: k.value for k in node.keywords}
        if ast.unparse(node.func) == "torch.load":
            safe = keywords.get("weights_only")
            if not (isinstance(safe, ast.Constant) and safe.value is True):
                lines.append(node.lineno)
        allowed = keywords.get("allow_pickle")
        if allowed is not None and not (isinstance(allowed, ast.Constant) and not allowed.value):
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize("module", SOURCES)
def test_imports_only_go_up_the_list(module):
    assert not downward(module, SOURCES[module])


def test_no_two_public_things_share_a_name():
    homes = {}
    for module, source in SOURCES.items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in public(module):
                homes.setdefault(node.name, []).append(module)
    assert not {name: where for name, where in homes.items() if len(where) > 1}


@functools.cache
def imported_names():
    """What modules import from each other, as pairs of module and name."""
    nodes = (node for source in SOURCES.values() for node in ast.walk(ast.parse(source)))
    froms = (node for node in nodes if isinstance(node, ast.ImportFrom))
    return {(node.module, alias.name) for node in froms for alias in node.names}


def public(module):
    """What a module offers to others; a command may be called as what it runs."""
    offered = {name for home, name in imported_names() if home == module}
    return offered if module.startswith("leanbayes.") else set()


RESEARCH = {
    path.relative_to(PROJECT).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted((PROJECT / "research").rglob("*.py"))
}


@pytest.mark.parametrize("module", [*SOURCES, *RESEARCH])
def test_a_file_is_one_concept_and_a_function_fits_a_screen(module):
    source = SOURCES.get(module) or RESEARCH[module]
    assert len(source.splitlines()) <= 400
    functions = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef))
    long = [f.name for f in functions if statement_lines(f) > 50]
    assert not long, f"{', '.join(long)} of {module} has more than 50 lines; split it"


def statement_lines(function):
    """Lines of a function below its signature and its docstring."""
    first, *rest = function.body
    documented = ast.get_docstring(function) is not None and rest
    return (function.end_lineno or 0) - (rest[0] if documented else first).lineno + 1


def test_folders_of_the_core_form_at_most_fourteen_levels():
    core = {module for module in SOURCES if room(module) not in DOORS | {"leanbayes"}}
    needs = {room(module): set() for module in core}
    for module in core:
        targets = {room(i.target) for i in imports(SOURCES[module]) if inside(i.target)}
        needs[room(module)] |= targets & needs.keys() - {room(module)}
    depth = {}
    for name in TopologicalSorter(needs).static_order():  # raises where two need each other
        depth[name] = 1 + max((depth[other] for other in needs[name]), default=0)
    assert max(depth.values()) <= 14


def test_there_are_no_import_cycles():
    graph = {
        module: {i.target for i in imports(source) if inside(i.target) and i.target != module}
        for module, source in SOURCES.items()
    }
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"import cycle: {' → '.join(error.args[1])}")
    assert set(order) >= set(SOURCES)


@pytest.mark.parametrize("module", SOURCES)
def test_no_import_is_hidden_in_a_function(module):
    late = module.startswith("leanbayes_cli")  # refuses what is mistyped before it imports torch
    assert not [i for i in hidden(SOURCES[module]) if not (late and inside(i.target))]


@pytest.mark.parametrize("module", [m for m in SOURCES if room(m) not in DOORS])
def test_the_core_imports_torch_and_nothing_else(module):
    allowed = {"leanbayes", "torch", *sys.stdlib_module_names}
    allowed |= (
        {"safetensors"} if module in ("leanbayes.saving.io", "leanbayes.saving.header") else set()
    )
    allowed |= {"matplotlib"} if module == "leanbayes.plots" else set()
    allowed |= {"pandas"} if module == "leanbayes.prediction.prediction" else set()
    assert {i.target.split(".")[0] for i in imports(SOURCES[module])} <= allowed


@pytest.mark.parametrize("module", SOURCES)
def test_no_pickle(module):
    assert not pickling(SOURCES[module])


@pytest.mark.parametrize(
    ("check", "bad"),
    [
        (hidden, "def f():\n    import json"),
        (hidden, "def f():\n    from leanbayes.models.random_maps import kl"),
        (pickling, "import pickle"),
        (pickling, "from joblib import load"),
        (pickling, "torch.load(path)"),
        (pickling, "torch.load(path, weights_only=False)"),
        (pickling, "np.load(path, allow_pickle=True)"),
        (lambda source: downward("leanbayes.ops", source), "from leanbayes import lazy"),
        (lambda source: downward("leanbayes.ops", source), "from leanbayes import kl"),
        (lambda source: downward("leanbayes.distributions.kl", source), "import leanbayes as lb"),
        (
            lambda source: downward("leanbayes.models.random_maps", source),
            "from leanbayes.lab.data import x",
        ),
        (lambda source: downward("leanbayes.lab.runs", source), "import leanbayes.lab.train"),
        (
            lambda source: downward("leanbayes.lab.data.user", source),
            "import leanbayes.lab.recipe",
        ),
    ],
)
def test_the_checks_above_catch_what_they_are_for(check, bad):
    assert check(bad)


@pytest.mark.parametrize(
    ("check", "good"),
    [
        (hidden, "import json\ndef f():\n    import matplotlib.pyplot"),
        (pickling, "torch.load(path, weights_only=True)"),
        (
            lambda source: downward("leanbayes.distributions.kl", source),
            "from leanbayes import distributions",
        ),
        (lambda source: downward("leanbayes.lab.train", source), "import leanbayes.lab.runs"),
        (lambda source: downward("leanbayes.lab.runs", source), "import leanbayes.metrics"),
    ],
)
def test_the_checks_above_let_the_rest_pass(check, good):
    assert not check(good)


def test_importing_the_package_imports_torch_and_nothing_optional():
    script = (
        "import sys, torch, safetensors.torch, torch.distributions\n"
        "before = set(sys.modules)\n"
        "import leanbayes\n"
        "print(*{m.split('.')[0] for m in set(sys.modules) - before})\n"
        "print(*{m.split('.')[0] for m in sys.modules})"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True
    )
    added, loaded = (set(line.split()) for line in run.stdout.splitlines())
    assert added <= {"leanbayes", *CORE, *sys.stdlib_module_names}
    optional = {"sklearn", "lightning", "typer", "matplotlib", "rich", "torchmetrics"}
    assert not loaded & (optional | {"onnx", "pandas", "pydantic", "yaml", "scipy"})


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["train", "--help"], ["trian"]])
def test_what_the_command_says_at_once_does_not_wait_for_torch(arguments):
    script = (
        "import atexit, sys\n"
        "from leanbayes_cli import main\n"
        "atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\n"
        f"sys.argv = {['leanbayes', *arguments]}\n"
        "main()"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    said = {"--version": f"leanbayes {lb.__version__}", "trian": "Did you mean 'train'?"}
    assert said.get(arguments[-1], "Usage: leanbayes") in run.stdout + run.stderr
    assert run.stderr.splitlines()[-1] == "False"


def _requirements():
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    return project, {_normal(re.split(r"[\[<>=!~; ]", line)[0]) for line in lines}


def _normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_imported_package_is_a_declared_requirement():
    _, declared = _requirements()
    distributions = importlib.metadata.packages_distributions()
    missing = {}
    for module, source in SOURCES.items():
        for i in imports(source):
            top = i.target.split(".")[0]
            names = {_normal(name) for name in distributions.get(top, [top])}
            foreign = top not in sys.stdlib_module_names and not inside(i.target)
            if foreign and not names & declared:
                missing.setdefault(top, f"{module}:{i.line}")
    assert not missing


def test_only_torch_and_safetensors_are_needed_to_run():
    project, _ = _requirements()
    needed = {re.split(r"[\[<>=!~; ]", line)[0] for line in project["dependencies"]}
    assert needed == CORE
    assert all(re.search(r">=\d", line) for line in project["dependencies"])


@pytest.mark.parametrize("name", lb.__all__)
def test_every_public_name_exists_and_is_documented(name):
    value = getattr(lb, name)
    assert value.__doc__, f"{name} has no docstring"
    generated = inspect.isclass(value) and value.__doc__.startswith(f"{value.__name__}(")
    assert not generated, f"the docstring of {name} is the one dataclasses write"


@pytest.mark.parametrize("module", [m for m in SOURCES if room(m) not in DOORS])
def test_all_lists_what_a_module_has(module):
    loaded = importlib.import_module(module)
    assert loaded.__doc__
    names = getattr(loaded, "__all__", ())
    assert len(set(names)) == len(names)
    values = [getattr(loaded, name) for name in names]
    assert all(v.__doc__ for v in values if inspect.isclass(v) or inspect.isfunction(v))


def test_public_names_are_not_private_and_not_repeated():
    assert len(set(lb.__all__)) == len(lb.__all__)
    assert not [name for name in lb.__all__ if name.startswith("_")]


def test_type_information_and_version_are_shipped():
    assert (PACKAGE / "py.typed").is_file()
    project, _ = _requirements()
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "py.typed" in settings["tool"]["setuptools"]["package-data"]["leanbayes"]
    assert lb.__version__ == project["version"]


def test_the_workflows_run_what_ci_runs():
    workflows = "".join(p.read_text() for p in PROJECT.glob(".github/workflows/*.yml"))
    commands = re.findall(r"^make \w+$", (PROJECT / ".ci" / "run").read_text(), re.MULTILINE)
    assert "make test" in commands
    assert all(f"run: {command}\n" in workflows for command in commands)


def test_the_citation_names_this_version():
    assert f"\nversion: {lb.__version__}\n" in (PROJECT / "CITATION.cff").read_text()


def test_the_description_links_to_nothing_that_pypi_lacks():
    """A relative link of README leads nowhere on PyPI; the built description has none."""
    functions = runpy.run_path(str(PROJECT / "setup.py"), run_name="setup")
    description = functions["long_description"](PROJECT / "README.md")
    links = re.findall(r"\]\(([^)\s]+)\)", description)
    assert all("://" in link for link in links)
    assert "lb.convert" in description


def test_a_source_distribution_has_what_its_tests_need():
    lines = (PROJECT / "MANIFEST.in").read_text().splitlines()
    named = {word for line in lines for word in line.split()[1:]}
    listed = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a checkout")
    tops = {file.split("/")[0] for file in listed.stdout.splitlines()}
    built_in = {"src", "pyproject.toml", "setup.py", "README.md", "LICENSE", ".gitignore"}
    left = tops - named - built_in - {".ci", ".github", "MANIFEST.in"}
    assert left == set()
    assert {".ci/run", ".github"} <= named
