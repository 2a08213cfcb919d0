"""The demo, its command line and the benchmark that shares its families."""

import dataclasses
import importlib.util
import itertools
import json
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import leanbayes as lb
from leanbayes import cli, posteriors
from leanbayes.lab import timing
from leanbayes.lab.demo import families, page, results, terminal
from leanbayes.lab.files import write_json
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.recipe_files import parse_yaml
from leanbayes.lightning import BayesianModule
from leanbayes.testing import threshold

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

TINY = families.Settings(epochs=1, samples=2, timing_rounds=2)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def pages(monkeypatch):
    """Where reports would have been written."""
    written = []
    keep = lambda done, settings, folder, out, *, seconds: written.append(out)  # noqa: E731
    monkeypatch.setattr(page, "write_page", keep)
    return written


@pytest.fixture
def run(tmp_path):
    """What comes out of families, trained anew each time."""
    folders = (tmp_path / str(number) for number in itertools.count())
    return lambda chosen, settings=TINY: list(results.run(chosen, settings, next(folders)))


def _result(name="k-tied, rank 2", group="independent", accuracy=0.975):
    estimate, cost = lb.metrics.Score(accuracy, 0.008), timing.Ratio(1.8, 1.7, 1.9)
    return results.Result(
        name, group, estimate, estimate, estimate, 0.02, 0.9, 0.95, 27134, 1.04, cost, 2.0
    )


def _invoke(*arguments, columns=80, **environment):
    environment = {"COLUMNS": str(columns), "NO_COLOR": "1", **environment}
    return CliRunner().invoke(cli.app(), ["demo", *arguments], env=environment)


# the families


def test_every_public_posterior_is_in_the_demo():
    shown = {type(family.posterior) for family in families.FAMILIES} - {type(None)}
    named = (getattr(posteriors, name) for name in posteriors.__all__)
    public = {thing for thing in named if isinstance(thing, type)}
    assert shown == public - {lb.Posterior}


def test_families_have_names_of_their_own_and_groups_stand_together():
    names = [family.name for family in families.FAMILIES]
    assert len(set(names)) == len(names)
    groups = [group for group, _ in itertools.groupby(f.group for f in families.FAMILIES)]
    assert len(set(groups)) == len(groups)
    assert set(families.QUICK) <= set(families.FAMILIES)


@pytest.mark.parametrize("family", families.FAMILIES, ids=lambda family: family.name)
def test_every_family_learns(family, run, request):
    epochs = 10 if isinstance(family.posterior, lb.ZeroMean) else 3  # noise first, then signal
    settings = dataclasses.replace(TINY, epochs=epochs, seed=request.config.getoption("--seed"))
    (result,) = run([dataclasses.replace(family, networks=1)], settings)
    chance = 0.1
    error = (chance * (1 - chance) / 360) ** 0.5
    assert result.accuracy.value > 2 * chance > chance + threshold(1) * error
    assert 0 < result.nll.value < 2.3
    assert 0 <= result.calibration_error <= 1


def test_the_ensemble_trains_and_counts_all_its_networks(run, tmp_path):
    family = next(family for family in families.FAMILIES if family.networks > 1)
    (result,) = run([family])
    folders = {recipe.name for recipe in family.recipes(TINY)}
    assert {folder.name for folder in (tmp_path / "0").iterdir()} == folders
    assert len(folders) == result.relative_parameters == family.networks


def test_parameters_of_a_k_tied_network_follow_from_its_widths(run):
    (result,) = run([f for f in families.FAMILIES if f.name == "k-tied, rank 2"])
    shapes = ((64, 128), (128, 128), (128, 10))
    plain = sum(m * n + n for m, n in shapes)
    assert result.parameters == plain + sum(2 * (m + n) for m, n in shapes)
    assert result.relative_parameters == result.parameters / plain


# runs, timing


def test_a_result_depends_on_the_seed_and_on_nothing_else(run):
    def key(result):
        return (result.name, result.accuracy, result.nll, result.auroc_shuffled)

    state = torch.get_rng_state()
    first = [key(result) for result in run(families.QUICK)]
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    backwards = [key(result) for result in run(families.QUICK[::-1])]
    assert first == backwards[::-1]
    other = dataclasses.replace(TINY, seed=TINY.seed + 1)
    assert all(key(a) != b for a, b in zip(run(families.QUICK, other), first, strict=True))


def test_steps_take_turns_and_only_the_second_of_two_is_timed():
    now, calls = [0.0], []

    def step(name, seconds):
        def run():
            calls.append(name)
            now[0] += seconds

        return run

    steps = {"a": step("a", 1.0), "b": step("b", 3.0)}
    seconds = timing.interleaved(steps, 2, clock=lambda: now[0])
    assert calls == ["a", "a", "b", "b"] * 2
    assert seconds == {"a": [1.0, 1.0], "b": [3.0, 3.0]}
    assert timing.ratio(seconds["b"], seconds["a"]) == (3.0, 3.0, 3.0)


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "results.json"
    write_json(path, {"answer": 1})
    with pytest.raises(TypeError):
        write_json(path, {"answer": object()})
    assert json.loads(path.read_text()) == {"answer": 1}
    assert list(tmp_path.iterdir()) == [path]


# the command


def test_quick_prints_a_table_and_writes_results_and_report(tmp_path):
    path, out = tmp_path / "demo.json", tmp_path / "new" / "folder"
    done = _invoke(
        *("--quick", "--seed", "7", "--samples", "2", "--json", str(path), "--out", str(out))
    )
    assert done.exit_code == 0, done.output
    table = done.output.partition("─" * 20)[2]
    assert all(family.name in table for family in families.QUICK)
    assert "Seed 7, 2 epochs, 2 samples" in table
    written = json.loads(path.read_text())
    assert written["complete"] is True
    assert written["settings"]["seed"] == 7
    assert written["versions"]["torch"] == torch.__version__
    assert [row["name"] for row in written["results"]] == [f.name for f in families.QUICK]
    assert 0 < sum(row["seconds"] for row in written["results"]) < written["seconds"]
    assert done.output.splitlines()[-1] == f"Report: {out / 'report.html'}"
    assert [file.name for file in out.iterdir()] == ["report.html"]
    _check_page((out / "report.html").read_text(encoding="utf-8"), written["results"])


def _check_page(text, results):
    """A report of the quick demo: well formed, with all families and a run looked at closely."""
    ElementTree.fromstring(re.sub(r"<(meta|link|img)([^>]*)>", r"<\1\2/>", text.partition("\n")[2]))
    assert re.findall("<h2[^>]*>(.*?)</h2>", text) == ["digits-k-tied-rank-2"]
    assert re.findall("<h3>(.*?)</h3>", text) == [
        "Families",
        "What was run",
        "Results",
        "Learning curves",
        "Calibration",
        "In and out of distribution",
        "Most and least certain images",
        "Standard deviations of the weights",
    ]
    for row in results:
        nll = row["nll"]
        assert f"<td>{row['name']}</td>" in text
        assert f"{nll['value']:.3f} ± {nll['error']:.3f}" in text


def test_the_report_is_in_a_folder_for_runs_unless_told_otherwise(monkeypatch, pages):
    monkeypatch.setattr(results, "run", lambda *_: iter([_result()] * 3))
    done = _invoke("--quick")
    assert done.exit_code == 0
    assert pages == [Path("runs/demo/report.html")]
    assert done.output.splitlines()[-1] == f"Report: {Path.cwd() / 'runs/demo/report.html'}"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (OSError("no space is left"), 1, "The report could not be written to"),
        (KeyboardInterrupt(), 130, "Stopped by Ctrl-C before the report"),
    ],
    ids=["disk", "ctrl-c"],
)
def test_a_report_that_fails_does_not_hide_the_table(monkeypatch, error, code, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(results, "run", lambda *_: iter([_result()] * 3))
    monkeypatch.setattr(page, "write_page", fail)
    done = _invoke("--quick")
    assert done.exit_code == code
    assert "k-tied, rank 2  97.5" in done.output
    assert message in done.output


@pytest.mark.parametrize("family", families.FAMILIES, ids=lambda family: family.name)
def test_its_recipes_are_ordinary_ones(family):
    for number, recipe in enumerate(family.recipes(families.Settings(epochs=3, seed=5))):
        assert (recipe.posterior, recipe.prior) == (family.posterior, family.prior)
        assert (recipe.training.epochs, recipe.seed) == (3, 5 + number)
        assert check_recipe(parse_yaml(recipe.to_yaml())) == recipe


def test_what_is_looked_at_closely_is_in_the_demo():
    assert set(families.CLOSELY) < {family.name for family in families.FAMILIES}


@pytest.mark.parametrize(("columns", "shows_errors"), [(80, False), (120, True)])
@pytest.mark.usefixtures("pages")
def test_the_table_fits_and_a_wide_one_shows_standard_errors(monkeypatch, columns, shows_errors):
    rows = [_result(family.name, family.group) for family in families.FAMILIES]
    given = []
    monkeypatch.setattr(results, "run", lambda *arguments: given.append(arguments) or iter(rows))
    done = _invoke(columns=columns)
    assert given[0][:2] == (families.FAMILIES, families.Settings())
    lines = done.output.partition("Report: ")[0].splitlines()
    assert max(len(line.rstrip()) for line in lines) <= columns
    assert all(any(line.startswith(row.name) for line in lines) for row in rows)
    assert "…" not in done.output
    assert ("97.5 ± 0.8" in done.output) == shows_errors


def test_the_best_value_is_bold():
    good, bad = _result("good", accuracy=0.99), _result("bad", accuracy=0.9)
    accuracy = results.COLUMNS[0]
    assert terminal._cells(accuracy, [bad, good], wide=False) == ["90.0", "[bold]99.0[/]"]


@pytest.mark.usefixtures("pages")
def test_progress_bars_on_a_terminal():
    done = _invoke("--quick", "--samples", "1", FORCE_COLOR="1", NO_COLOR="")
    assert done.exit_code == 0, done.output
    assert "━" in done.output


@pytest.mark.parametrize("finished", [0, 1])
def test_ctrl_c_prints_what_is_done(monkeypatch, tmp_path, pages, finished):
    def interrupted(*_):
        yield from [_result()] * finished
        raise KeyboardInterrupt

    monkeypatch.setattr(results, "run", interrupted)
    path = tmp_path / "demo.json"
    done = _invoke("--quick", "--json", str(path))
    assert done.exit_code == 130
    assert f"Stopped by Ctrl-C after {finished} of 3 families." in done.output
    assert ("k-tied, rank 2  97.5" in done.output) == bool(finished)
    written = json.loads(path.read_text())
    assert written["complete"] is False
    assert len(written["results"]) == finished
    assert pages == []


def test_ctrl_c_while_lightning_trains_is_a_ctrl_c(monkeypatch, pages):
    """Lightning makes an exit of it, and ignores the next one."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(BayesianModule, "training_step", interrupted)
    before = signal.getsignal(signal.SIGINT)
    done = _invoke("--quick")
    assert done.exit_code == 130
    assert "Stopped by Ctrl-C after 0 of 3 families." in done.output
    assert signal.getsignal(signal.SIGINT) == before
    assert pages == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--json", "no/such/folder/demo.json"], "does not exist"),
        (["--epochs", "0"], "--epochs"),
        (["--samples", "0"], "--samples"),
        (["--out", "taken"], "is a file"),
        (["--out", "taken/below"], "nothing can be written"),
    ],
    ids=["folder", "epochs", "samples", "file", "below-a-file"],
)
def test_bad_options_are_refused_before_any_training(monkeypatch, arguments, message):
    Path("taken").write_text("a file", encoding="utf-8")
    monkeypatch.setattr(results, "run", lambda *_: pytest.fail("training began"))
    done = _invoke(*arguments)
    assert done.exit_code == 2
    assert message in done.output


def test_help_shows_an_example():
    assert "leanbayes demo --seed 1 --json demo.json" in _invoke("--help").output


@pytest.mark.parametrize("module", ["typer", "rich.console", "sklearn.datasets"])
def test_without_the_lab_extra_the_command_says_how_to_get_it(module, tmp_path):
    code = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv = ['leanbayes', 'demo', '--quick']; "
        "from leanbayes import cli; cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "pip install 'leanbayes[lab]'" in done.stderr
    assert module in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_knows_every_package_of_the_lab_extra():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    names = {re.match(r"[\w-]+", line)[0] for line in extras["lab"] + extras["lightning"]}
    modules = {
        "leanbayes": "lightning",
        "pillow": "PIL",
        "pyyaml": "yaml",
        "scikit-learn": "sklearn",
    }
    assert {modules.get(name, name) for name in names} == set(cli._LAB)


def test_other_missing_packages_are_not_blamed_on_the_extra(monkeypatch):
    def app():
        raise ModuleNotFoundError("No module named 'elsewhere'", name="elsewhere")

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(ModuleNotFoundError, match="elsewhere"):
        cli.main()


def test_importing_leanbayes_needs_none_of_the_lab():
    code = "import sys, leanbayes.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    by_torch = {"numpy"}  # which takes it where it finds it
    assert not (set(cli._LAB) - by_torch) & set(done.stdout.split())


# the benchmark


@pytest.fixture(scope="module")
def step_cost():
    path = Path(__file__).parents[1] / "benchmarks" / "step_cost.py"
    spec = importlib.util.spec_from_file_location("step_cost", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module


def test_the_benchmark_measures_every_family_against_the_plain_network(step_cost):
    small = step_cost.Setup(
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10)),
        batch=4,
        shape=(1, 8, 8),
    )
    result = step_cost.measure(small, step_cost.SINGLE, 2, step_cost.CLOCKS["wall"])
    assert set(result["families"]) == {f.name for f in families.FAMILIES if f.networks == 1}
    assert result["families"]["deterministic"]["step"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    for costs in result["families"].values():
        assert all(0 < cost["low"] <= cost["median"] <= cost["high"] for cost in costs.values())


def test_the_benchmark_takes_a_group_with_one_estimator(step_cost):
    families = step_cost.chosen("independent", "weights")
    assert families[0].posterior is None
    assert {f.group for f in families[1:]} == {"independent"}
    assert all(f.estimator == "weights" for f in families)
    assert step_cost.chosen(None, None) == list(step_cost.SINGLE)
