"""The demo and its command line."""

import html
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
from typer.testing import CliRunner

import leanbayes as lb
import leanbayes_cli as cli
from leanbayes import posteriors
from leanbayes.lab.data import load_dataset
from leanbayes.lab.demo import families, page, results, terminal
from leanbayes.lab.demo.results import auroc_by_image, over_seeds, verdict
from leanbayes.lab.evaluation import foreign_auroc
from leanbayes.lab.files import write_json

TINY = families.Settings(seeds=1, epochs=1, samples=2, hidden=16)
METRICS = ("accuracy", "nll", "brier", "auroc_inverted", "auroc_shuffled")


@pytest.fixture(autouse=True)
def _in_a_separate_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def _result(name="k-tied, rank 2", parameters=104, **shifts):
    """Scores of two seeds on 40 images, spread around their mean."""
    spread = torch.linspace(-0.1, 0.1, 40, dtype=torch.float64)
    values = {metric: (0.5 + shifts.get(metric, 0.0) + spread).expand(2, 40) for metric in METRICS}
    return results.Result(name, values, 0.02, parameters, 2.0)


PLAIN = _result("deterministic", 100)


def _invoke(*arguments, columns=80, **environment):
    environment = {"COLUMNS": str(columns), "NO_COLOR": "1", **environment}
    return CliRunner().invoke(cli.app(), ["demo", *arguments], env=environment)


# the methods


def test_every_public_posterior_is_in_the_demo():
    shown = {type(family.posterior) for family in families.FAMILIES} - {type(None)}
    named = (getattr(posteriors, name) for name in posteriors.__all__)
    public = {thing for thing in named if isinstance(thing, type)}
    assert shown == public - {lb.posteriors.Posterior, lb.posteriors.Pruned, lb.posteriors.Scale}


def test_five_methods_by_default_and_the_first_is_plain():
    assert len(families.chosen(every=False, quick=False)) == 5
    assert families.CHOSEN[0].posterior is None
    assert len({family.name for family in families.FAMILIES}) == len(families.FAMILIES)


@pytest.mark.parametrize("family", families.FAMILIES, ids=lambda family: family.name)
def test_every_method_trains_and_is_scored(family):
    (found,) = results.run([family], TINY)
    assert set(found.values) == set(METRICS)
    assert all(values.shape == (1, 360) for values in found.values.values())
    assert all(bool(values.isfinite().all()) for values in found.values.values())


def test_a_result_depends_on_the_seed_and_on_nothing_else():
    first, again = (next(results.run([families.RECOMMENDED], TINY)) for _ in range(2))
    assert all(torch.equal(first.values[m], again.values[m]) for m in METRICS)


def test_the_dropout_rate_is_chosen_on_validation_images():
    data = load_dataset("digits")
    both = families.Family("both", "plain", dropout=(0.05, 0.9)).trained(data, TINY, 3)
    better = families.Family("one", "plain", dropout=(0.05,)).trained(data, TINY, 3)
    assert torch.equal(next(both.parameters()), next(better.parameters()))


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


def test_shares_of_images_average_to_the_auroc_and_spread_like_it():
    familiar, foreign = torch.randn(200), torch.randn(200) + 1
    foreign[:20] = familiar[:20]
    shares = auroc_by_image(familiar, foreign)
    assert float(shares.mean()) == pytest.approx(foreign_auroc(familiar, foreign))
    drawn = lb.metrics.bootstrap(lambda a, b: foreign_auroc(a, b), familiar, foreign, draws=400)
    assert lb.metrics.average(shares).error == pytest.approx(drawn.error, rel=0.2)


def test_the_verdict_says_what_is_gained_and_lost():
    better = _result(nll=-0.2, auroc_inverted=0.1)
    assert verdict([PLAIN, better]).startswith(
        "k-tied, rank 2 has 4.0% more parameters than the plain network and is better in NLL "
        "(0.300 instead of 0.500), AUROC on inverted images (0.600 instead of 0.500)."
    )
    assert "and is worse in NLL (0.700 instead of 0.500)." in verdict([PLAIN, _result(nll=0.2)])
    assert "is not different by more than two standard errors" in verdict([PLAIN, _result()])
    assert verdict([PLAIN]) == ""


def test_a_star_marks_what_exceeds_two_standard_errors():
    plain, other = page.rows([PLAIN, _result(nll=0.2)])
    assert plain[2] == "0.500 "
    assert other[2] == "0.700*"
    assert other[1] == "50.0 "


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
        *("--quick", "--seed", "7", "--samples", "2", "--json", str(path), "--output", str(out))
    )
    assert done.exit_code == 0, done.output
    written = json.loads(path.read_text())
    assert written["complete"] is True
    assert written["settings"]["seed"] == 7
    assert written["environment"]["versions"]["torch"] == torch.__version__
    methods = families.chosen(every=False, quick=True)
    assert [row["name"] for row in written["results"]] == [f.name for f in methods]
    assert all(row["differences"]["nll"]["to"] == "deterministic" for row in written["results"])
    words = " ".join(done.output.split())
    assert words.startswith(" ".join(written["verdict"].split()))
    assert all(family.name in words for family in methods)
    assert f"Written to {out / 'report.html'}" in done.output
    assert "Next: leanbayes new" in done.output
    text = (out / "report.html").read_text(encoding="utf-8")
    ElementTree.fromstring(re.sub(r"<(meta|link|img)([^>]*)>", r"<\1\2/>", text.partition("\n")[2]))
    assert html.escape(written["verdict"]) in text
    assert text.count("data:image/svg+xml;base64,") == 3


def test_the_table_fits_into_80_columns():
    shown = page.rows([PLAIN, _result()])
    console = terminal.Console(width=80, record=True)
    console.print(terminal.table([PLAIN, _result()]))
    printed = console.export_text()
    assert "…" not in printed
    assert all(cell.strip() in printed for row in shown for cell in row)


@pytest.mark.parametrize("finished", [0, 1])
def test_ctrl_c_prints_what_is_done(monkeypatch, tmp_path, finished):
    def interrupted(*_):
        yield from [_result()] * finished
        raise KeyboardInterrupt

    monkeypatch.setattr(results, "run", interrupted)
    path = tmp_path / "demo.json"
    before = signal.getsignal(signal.SIGINT)
    done = _invoke("--quick", "--json", str(path))
    assert done.exit_code == 130
    assert f"Stopped by Ctrl-C after {finished} of 3 methods." in done.output
    assert ("k-tied, rank 2" in done.output) == bool(finished)
    written = json.loads(path.read_text())
    assert written["complete"] is False
    assert len(written["results"]) == finished
    assert not Path("runs/demo/report.html").exists()
    assert signal.getsignal(signal.SIGINT) == before


def test_a_report_that_fails_does_not_hide_the_table(monkeypatch):
    def fail(*_):
        raise OSError("no space is left")

    monkeypatch.setattr(results, "run", lambda *_: (_result() for _ in range(3)))
    monkeypatch.setattr(page, "write_page", fail)
    done = _invoke("--quick")
    assert done.exit_code == 1
    assert "k-tied, rank 2" in done.output
    assert "leanbayes: the report could not be written to" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--json", "no/such/folder/demo.json"], "does not exist"),
        (["--epochs", "0"], "--epochs"),
        (["--seeds", "0"], "--seeds"),
        (["--samples", "0"], "--samples"),
        (["--output", "taken"], "is a file"),
        (["--output", "taken/below"], "nothing can be written"),
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
