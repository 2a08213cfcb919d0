"""The demo, its command line and the benchmark that shares its families."""

import dataclasses
import html
import itertools
import json
import multiprocessing
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import leanbayes as lb
import leanbayes_cli as cli
from leanbayes import posteriors
from leanbayes.lab.demo import families, page, results, terminal, timing
from leanbayes.lab.demo.columns import columns, legend
from leanbayes.lab.demo.conclusions import conclusions
from leanbayes.lab.demo.processes import map_in_processes
from leanbayes.lab.demo.results import auroc_by_image, over_seeds
from leanbayes.lab.evaluation import foreign_auroc
from leanbayes.lab.files import write_json
from leanbayes.lab.from_recipe import build_model
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.recipe_files import parse_yaml
from leanbayes.lightning import BayesianModule
from leanbayes.testing import threshold
from research.benchmarks import families as benchmark

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

TINY = families.Settings(seeds=1, epochs=1, samples=2, timing_rounds=2)


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


METRICS = ("accuracy", "nll", "brier", "auroc_inverted", "auroc_shuffled")


def _result(name="k-tied, rank 2", group="independent", accuracy=0.975, **shifts):
    """Scores of two seeds on 40 images; all but accuracy are spread around their mean."""
    spread = torch.linspace(-0.1, 0.1, 40, dtype=torch.float64)
    values = {metric: (0.5 + shifts.get(metric, 0.0) + spread).expand(2, 40) for metric in METRICS}
    values["accuracy"] = torch.full((2, 40), accuracy, dtype=torch.float64)
    cost = timing.Ratio(1.8, 1.7, 1.9)
    return results.Result(name, group, values, 0.02, 27134, 1.04, cost, 2.0)


def _invoke(*arguments, columns=80, **environment):
    environment = {"COLUMNS": str(columns), "NO_COLOR": "1", **environment}
    return CliRunner().invoke(cli.app(), ["demo", *arguments], env=environment)


# the families


def test_every_public_posterior_is_in_the_demo():
    shown = {type(family.posterior) for family in families.FAMILIES} - {type(None)}
    named = (getattr(posteriors, name) for name in posteriors.__all__)
    public = {thing for thing in named if isinstance(thing, type)}
    assert shown == public - {lb.posteriors.Posterior, lb.posteriors.Pruned, lb.posteriors.Scale}


def test_families_have_names_of_their_own_and_groups_stand_together():
    names = [family.name for family in families.FAMILIES]
    assert len(set(names)) == len(names)
    groups = [group for group, _ in itertools.groupby(f.group for f in families.FAMILIES)]
    assert len(set(groups)) == len(groups)
    assert set(families.QUICK) <= set(families.FAMILIES)


@pytest.mark.parametrize("family", families.FAMILIES, ids=lambda family: family.name)
def test_every_family_learns(family, run, request):
    epochs = (
        10 if isinstance(family.posterior, lb.posteriors.ZeroMean) else 3
    )  # noise first, then signal
    settings = dataclasses.replace(TINY, epochs=epochs, seed=request.config.getoption("--seed"))
    (result,) = run([dataclasses.replace(family, networks=1, longer=1)], settings)
    chance = 0.1
    error = (chance * (1 - chance) / 360) ** 0.5
    assert result.score("accuracy").value > 2 * chance > chance + threshold(1) * error
    assert 0 < result.score("nll").value < 2.3
    assert 0 <= result.calibration_error <= 1


def test_the_ensemble_trains_and_counts_all_its_networks(run, tmp_path):
    family = next(family for family in families.FAMILIES if family.networks > 1)
    (result,) = run([family])
    folders = {recipe.name for recipe in family.recipes(TINY, TINY.seed)}
    assert {folder.name for folder in (tmp_path / "0").iterdir()} == folders
    assert len(folders) == result.relative_parameters == family.networks


def test_parameters_of_a_k_tied_network_follow_from_its_widths(run):
    (result,) = run([f for f in families.FAMILIES if f.name == "k-tied, rank 2"])
    shapes = ((64, 128), (128, 128), (128, 10))
    plain = sum(m * n + n for m, n in shapes)
    assert result.parameters == plain + sum(2 * (m + n) for m, n in shapes)
    assert result.relative_parameters == result.parameters / plain


# runs


def test_a_result_depends_on_the_seed_and_on_nothing_else(run):
    def key(result):
        return (result.name, *(result.score(metric) for metric in METRICS))

    state = torch.get_rng_state()
    first = [key(result) for result in run(families.QUICK)]
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    backwards = [key(result) for result in run(families.QUICK[::-1])]
    assert first == backwards[::-1]
    other = dataclasses.replace(TINY, seed=TINY.seed + 1)
    assert all(key(a) != b for a, b in zip(run(families.QUICK, other), first, strict=True))


def test_families_of_one_seed_begin_alike_and_see_the_same_test_images(run):
    settings = dataclasses.replace(TINY, seeds=2)
    plain, map_estimate = (families.DETERMINISTIC, families.FAMILIES[2])
    for seed in settings.all_seeds:
        a, b = (build_model(family.recipes(settings, seed)[0]) for family in (plain, map_estimate))
        torch.testing.assert_close(lb.deterministic(b).state_dict(), a.state_dict())
    (result,) = run([plain], settings)
    singles = [run([plain], dataclasses.replace(TINY, seed=s))[0] for s in settings.all_seeds]
    torch.testing.assert_close(
        result.values["nll"], torch.cat([single.values["nll"] for single in singles])
    )


def test_several_processes_give_what_one_gives(run, tmp_path):
    settings = dataclasses.replace(TINY, seeds=2)
    (alone,) = run([families.DETERMINISTIC], settings)
    (both,) = results.run([families.DETERMINISTIC], settings, tmp_path / "both", processes=2)
    assert all(torch.equal(alone.values[name], both.values[name]) for name in METRICS)
    assert multiprocessing.active_children() == []


def test_processes_end_when_the_work_is_left():
    coming = map_in_processes(time.sleep, [(0,), (60,), (60,)], processes=2)
    assert next(coming) is None
    coming.close()
    deadline = time.monotonic() + 20  # the pool's own thread may be the one that sees the end
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert multiprocessing.active_children() == []


# scores and what they say


def test_a_standard_error_covers_seeds_and_images():
    generator = torch.Generator().manual_seed(0)
    draws, seeds, images = 2000, 4, 30
    seed = torch.randn(draws, seeds, 1, generator=generator)
    image = torch.randn(draws, 1, images, generator=generator)
    scores = [over_seeds(values) for values in 0.3 * seed + image]
    spread = torch.tensor([score.value for score in scores]).std()
    claimed = torch.tensor([score.error for score in scores]).square().mean().sqrt()
    assert float(claimed) == pytest.approx(float(spread), rel=0.05)


def test_one_seed_has_the_standard_error_of_its_images():
    values = torch.rand(1, 50, dtype=torch.float64)
    assert over_seeds(values) == pytest.approx(lb.metrics.average(values[0]))


def test_differences_are_paired_by_seed_and_image():
    noise = torch.randn(3, 200, dtype=torch.float64)
    one, other = _result(), _result()
    one.values["nll"], other.values["nll"] = noise, noise + 0.01
    gap = other.minus(one, "nll")
    assert gap.value == pytest.approx(0.01)
    assert gap.error == pytest.approx(0.0, abs=1e-12) != one.score("nll").error


def test_shares_of_images_average_to_the_auroc_and_spread_like_it():
    familiar, foreign = torch.randn(200), torch.randn(200) + 1
    foreign[:20] = familiar[:20]
    shares = auroc_by_image(familiar, foreign)
    assert float(shares.mean()) == pytest.approx(foreign_auroc(familiar, foreign))
    drawn = lb.metrics.bootstrap(lambda a, b: foreign_auroc(a, b), familiar, foreign, draws=400)
    assert lb.metrics.average(shares).error == pytest.approx(drawn.error, rel=0.2)


def test_conclusions_are_counted_from_the_results():
    rows = [
        _result("deterministic"),
        _result("like it"),
        _result("worse", nll=1.0, auroc_inverted=0.1, auroc_shuffled=0.1),
        _result("better", nll=-0.1, auroc_inverted=0.2, auroc_shuffled=-0.1),
    ]
    likelihood, detection = conclusions(rows)
    assert "1 of 3 families are within two standard errors of the deterministic" in likelihood
    assert "1 (better) better and 1 (worse) worse" in likelihood
    assert "Of all 6 pairs of families, 1 are within" in likelihood
    assert "from 0.50 (deterministic) to 0.70 (better) for inverted images" in detection
    assert "0.40 (better) to 0.60 (worse) for pixel-shuffled images" in detection
    assert "1 of 3 families detect both kinds better" in detection
    assert conclusions(rows[:1]) == []


@pytest.mark.tried(
    "Runs",
    what="the demo's table, read without its code: cold posteriors, seeds, choices made on scores",
    holds="table and page say so, and conclusions are counted from the numbers",
)
def test_the_legend_says_what_was_chosen_and_that_posteriors_are_cold():
    rows = [_result(family.name) for family in families.FAMILIES]
    said = legend(rows, families.Settings(), 1.0)
    assert "KL has a weight of 0.03 (cold posteriors)" in said
    assert "chosen with test scores in sight" in said
    assert "seeds 42, 43, 44" in said
    assert "16 epochs (rank-1 log-normal 32, and more would help it)" in said


# timing


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
    assert "360 test images, with seed 7." in " ".join(table.split())
    assert "2 epochs, 2 samples" in table
    written = json.loads(path.read_text())
    assert written["complete"] is True
    assert written["settings"]["seed"] == 7
    assert written["versions"]["torch"] == torch.__version__
    assert [row["name"] for row in written["results"]] == [f.name for f in families.QUICK]
    assert 0 < sum(row["seconds"] for row in written["results"]) < written["seconds"]
    assert all(row["differences"]["nll"]["to"] == "deterministic" for row in written["results"])
    assert all(said[:30] in done.output for said in written["conclusions"])
    assert done.output.splitlines()[-1] == f"Report: {out / 'report.html'}"
    assert [file.name for file in out.iterdir()] == ["report.html"]
    _check_page((out / "report.html").read_text(encoding="utf-8"), written)


def _check_page(text, written):
    """A report of the quick demo: well formed, with all families and a run looked at closely."""
    ElementTree.fromstring(re.sub(r"<(meta|link|img)([^>]*)>", r"<\1\2/>", text.partition("\n")[2]))
    assert re.findall("<h2[^>]*>(.*?)</h2>", text) == ["digits-k-tied-rank-2-seed-7"]
    assert re.findall("<h3>(.*?)</h3>", text) == [
        "What came out",
        "Families",
        "What was run",
        "Results",
        "Learning curves",
        "Calibration",
        "In and out of distribution",
        "Most and least certain images",
        "Standard deviations of the weights",
    ]
    for kind in ("inverted", "shuffled"):
        assert text.count(f">AUROC {kind}</th>") == 1
    assert all(html.escape(said) in text for said in written["conclusions"])
    for row in written["results"]:
        nll = row["nll"]
        assert f"<td>{row['name']}</td>" in text
        assert f"{nll['value']:.3f} ± {nll['error']:.3f}" in text


def test_the_report_is_in_a_folder_for_runs_unless_told_otherwise(monkeypatch, pages):
    monkeypatch.setattr(results, "run", lambda *_, **__: (_result() for _ in range(3)))
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

    monkeypatch.setattr(results, "run", lambda *_, **__: (_result() for _ in range(3)))
    monkeypatch.setattr(page, "write_page", fail)
    done = _invoke("--quick")
    assert done.exit_code == code
    assert "k-tied, rank 2 97.5" in done.output
    assert message in done.output


@pytest.mark.parametrize("family", families.FAMILIES, ids=lambda family: family.name)
def test_its_recipes_are_ordinary_ones(family):
    for number, recipe in enumerate(family.recipes(families.Settings(epochs=3), 5)):
        assert (recipe.posterior, recipe.prior) == (family.posterior, family.prior)
        assert recipe.training.epochs == 3 * family.longer
        assert recipe.seed == 5 + 1000 * number
        assert check_recipe(parse_yaml(recipe.to_yaml())) == recipe


def test_what_is_looked_at_closely_is_in_the_demo():
    assert set(families.CLOSELY) < {family.name for family in families.FAMILIES}


@pytest.mark.parametrize(("columns", "shows_errors"), [(80, False), (100, True)])
@pytest.mark.usefixtures("pages")
def test_the_table_fits_and_a_wide_one_shows_standard_errors(monkeypatch, columns, shows_errors):
    rows = [_result(family.name, family.group) for family in families.FAMILIES]
    given = []
    monkeypatch.setattr(
        results, "run", lambda *given_, **_: given.append(given_) or (row for row in rows)
    )
    done = _invoke(columns=columns)
    assert given[0][:2] == (families.FAMILIES, families.Settings())
    lines = done.output.partition("Report: ")[0].splitlines()
    assert max(len(line.rstrip()) for line in lines) <= columns
    assert all(any(line.startswith(row.name) for line in lines) for row in rows)
    assert "…" not in done.output
    assert ("0.500 ±0.009" in done.output) == shows_errors


def test_the_best_value_is_bold():
    good, bad = _result("good", accuracy=0.99), _result("bad", accuracy=0.9)
    accuracy = columns([bad, good])[0]
    shown = [
        cell.replace("[dim][/]", "") for cell in terminal._cells(accuracy, [bad, good], wide=False)
    ]
    assert shown == ["90.0", "[bold]99.0[/]"]


@pytest.mark.usefixtures("pages")
def test_progress_bars_on_a_terminal():
    done = _invoke("--quick", "--samples", "1", FORCE_COLOR="1", NO_COLOR="")
    assert done.exit_code == 0, done.output
    assert "━" in done.output


@pytest.mark.parametrize("finished", [0, 1])
def test_ctrl_c_prints_what_is_done(monkeypatch, tmp_path, pages, finished):
    def interrupted(*_, **__):
        yield from [_result()] * finished
        raise KeyboardInterrupt

    monkeypatch.setattr(results, "run", interrupted)
    path = tmp_path / "demo.json"
    done = _invoke("--quick", "--json", str(path))
    assert done.exit_code == 130
    assert f"Stopped by Ctrl-C after {finished} of 3 families." in done.output
    assert ("k-tied, rank 2 97.5" in done.output) == bool(finished)
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
        (["--seeds", "0"], "--seeds"),
        (["--samples", "0"], "--samples"),
        (["--out", "taken"], "is a file"),
        (["--out", "taken/below"], "nothing can be written"),
    ],
    ids=["folder", "epochs", "seeds", "samples", "file", "below-a-file"],
)
def test_bad_options_are_refused_before_any_training(monkeypatch, arguments, message):
    Path("taken").write_text("a file", encoding="utf-8")
    monkeypatch.setattr(results, "run", lambda *_, **__: pytest.fail("training began"))
    done = _invoke(*arguments)
    assert done.exit_code == 2
    assert message in done.output


def test_help_shows_an_example():
    assert "leanbayes demo --seed 1 --json demo.json" in _invoke("--help").output


@pytest.mark.parametrize("module", ["typer", "rich.console", "sklearn.datasets"])
def test_without_the_lab_extra_the_command_says_how_to_get_it(module, tmp_path):
    code = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv = ['leanbayes', 'demo', '--quick']; "
        "import leanbayes_cli as cli; cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "pip install 'leanbayes[lab]'" in done.stderr
    assert module in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_knows_every_package_of_the_lab_extra():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    names = {
        re.match(r"[\w-]+", line)[0]
        for line in extras["lab"] + extras["lightning"] + extras["plots"]
    }
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
    code = "import sys, leanbayes, leanbayes_cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    by_torch = {"numpy"}  # which takes it where it finds it
    assert not (set(cli._LAB) - by_torch) & set(done.stdout.split())


# the benchmark


def test_the_benchmark_measures_every_family_against_the_plain_network():
    small = benchmark.Setup(
        "small",
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10)),
        batch=4,
        shape=(1, 8, 8),
    )
    result = benchmark.measure(small, benchmark.SINGLE, 2, benchmark.CLOCKS["wall"])
    assert set(result["families"]) == {f.name for f in families.FAMILIES if f.networks == 1}
    assert result["families"]["deterministic"]["step"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    for costs in result["families"].values():
        assert all(0 < cost["low"] <= cost["median"] <= cost["high"] for cost in costs.values())


def test_the_benchmark_takes_a_group_with_one_estimator():
    families = benchmark.chosen("independent", "weights")
    assert families[0].posterior is None
    assert {f.group for f in families[1:]} == {"independent"}
    assert all(f.estimator == "weights" for f in families)
    assert benchmark.chosen(None, None) == list(benchmark.SINGLE)
