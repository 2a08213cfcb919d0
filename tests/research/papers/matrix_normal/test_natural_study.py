"""Adam against the natural gradient: a tiny version of the study, from end to end."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from leanbayes.lab.files import write_json
from leanbayes.lab.recipe_files import read_recipe
from research.__main__ import app
from research.papers import PAPERS
from research.papers.matrix_normal import natural
from research.papers.matrix_normal.entropy_bounds import bounds_table, gaps
from research.papers.matrix_normal.natural import (
    NATURAL,
    NaturalSettings,
    compare_optimizers,
    recipes_of,
)
from research.papers.matrix_normal.natural_blocks import (
    comparison,
    draw_optimizers,
    optimizers_table,
)
from research.publishing.blocks import Blocks
from research.publishing.filled_claims import filled
from research.publishing.plots import paths

pytest.importorskip("matplotlib")

OURS = f"{NATURAL} over 3 epochs"
TINY = NaturalSettings(
    epochs=3, adam=(1e-3,), natural=0.2, natural_epochs=(3,), images=120, measured=50, points=2
)


@pytest.fixture
def digits(monkeypatch):
    """The digits of scikit-learn and a narrow network stand for MNIST and FC-300."""
    small = {
        "data": {"name": "digits"},
        "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [8]}},
        "training.batch_size": 20,
    }

    def read(name, *, settings):
        return read_recipe(name, settings={**settings, **small})

    monkeypatch.setattr(natural, "read_recipe", read)


def curves_of(study):
    keys = ("steps", "negative_elbo", "seed", "optimizer")
    return {name: [part[key] for key in keys] for name, part in study["parts"].items()}


def test_natural_runs_may_be_shorter_than_those_of_adam():
    settings = NaturalSettings(epochs=30, adam=(1e-3,), natural_epochs=(8, 30))
    epochs = {name: r.training.epochs for name, r in recipes_of(settings, seed=0).items()}
    natural = {f"{NATURAL} over {count} epochs": count for count in (8, 30)}
    assert epochs == {"Adam 0.001": 30, **natural}


def test_a_file_gets_further_runs(digits, tmp_path):
    out = tmp_path / "natural.json"
    first = compare_optimizers(TINY, out)
    more = replace(TINY, natural_epochs=(3, 2), shorter=(2,), whole_kl=(1e-3,))
    both = compare_optimizers(more, out)
    whole = "Adam 0.001 with the whole KL, seed 0"
    new = {"Adam 0.001 over 2 epochs, seed 0", f"{NATURAL} over 2 epochs, seed 0", whole}
    assert both["parts"].keys() - first["parts"].keys() == new
    assert all(both["parts"][name] == part for name, part in first["parts"].items())
    assert both["parts"]["Adam 0.001 over 2 epochs, seed 0"]["steps"][-1] == 12
    rising = both["parts"]["Adam 0.001, seed 0"]
    assert both["parts"][whole]["steps"] == rising["steps"]
    assert both["parts"][whole]["negative_elbo"] != rising["negative_elbo"]


def test_the_kl_comes_in_and_is_measured_whole(digits, tmp_path):
    late = replace(TINY, warmup=1e9)
    first, never = (
        compare_optimizers(settings, tmp_path / f"{i}.json")["parts"]["Adam 0.001, seed 0"]
        for i, settings in enumerate((TINY, late))
    )
    assert first["negative_elbo"][0] == never["negative_elbo"][0]
    assert first["negative_elbo"][-1] < never["negative_elbo"][-1]


def test_a_study_has_a_curve_for_every_optimizer_and_all_that_it_depends_on(digits, tmp_path):
    study = compare_optimizers(TINY, tmp_path / "natural.json", seeds=2)
    assert list(study["parts"]) == [
        f"{name}, seed {seed}" for seed in (0, 1) for name in ("Adam 0.001", OURS)
    ]
    assert json.loads((tmp_path / "natural.json").read_text()) == study
    assert [path.name for path in tmp_path.iterdir()] == ["natural.json"]
    for part in study["parts"].values():
        assert part["steps"] == [0, 3, 6, 9, 12, 15, 18]
        assert part["seconds"] == sorted(part["seconds"])
        assert part["negative_elbo"][-1] < part["negative_elbo"][0]
        assert part["recipe"]["optimizer"]["name"] in ("adam", "natural")
        assert {"seed", "versions", "threads", "duration", "revision"} <= set(part)
    firsts = {part["negative_elbo"][0] for part in study["parts"].values() if part["seed"] == 0}
    assert len(firsts) == 1


def test_a_stopped_study_goes_on_from_its_last_epoch_to_the_same_curve(
    digits, tmp_path, monkeypatch
):
    whole = compare_optimizers(TINY, tmp_path / "whole.json")
    real, calls = natural._Run._epoch, []

    def stopped(run, epoch):
        calls.append(epoch)
        if len(calls) in (2, 6):
            raise KeyboardInterrupt
        real(run, epoch)

    monkeypatch.setattr(natural._Run, "_epoch", stopped)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            compare_optimizers(TINY, tmp_path / "part.json")
    resumed = compare_optimizers(TINY, tmp_path / "part.json")
    assert calls == [0, 1, 1, 2, 0, 1, 1, 2]
    assert curves_of(resumed) == curves_of(whole)
    monkeypatch.setattr(natural, "_Run", None)
    assert compare_optimizers(TINY, tmp_path / "part.json") == resumed
    other = NaturalSettings(epochs=4, adam=(1e-3,), images=120, measured=50, points=2)
    with pytest.raises(ValueError, match="another epochs: it was 3 and is now 4"):
        compare_optimizers(other, tmp_path / "part.json")


def test_a_state_of_other_settings_is_refused(digits, tmp_path, monkeypatch):
    def stop(run, epoch):
        raise KeyboardInterrupt

    real = natural._Run._measure
    monkeypatch.setattr(natural._Run, "_measure", lambda run, step: (real(run, step), run._save(0)))
    monkeypatch.setattr(natural._Run, "_epoch", stop)
    with pytest.raises(KeyboardInterrupt):
        compare_optimizers(TINY, tmp_path / "natural.json")
    other = NaturalSettings(epochs=5, adam=(1e-3,), images=120, measured=50, points=2)
    with pytest.raises(ValueError, match=r"\.state is of other settings; delete it"):
        compare_optimizers(other, tmp_path / "natural.json")


def part(name, elbos, pace, seed=0):
    steps = [10 * index for index in range(len(elbos))]
    return {
        "optimizer": name,
        "seed": seed,
        "steps": steps,
        "seconds": [pace * step for step in steps],
        "negative_elbo": elbos,
        "duration": pace * steps[-1],
    }


STUDY = {
    "settings": {},
    "parts": {
        "1": part("Adam 0.001", [9.0, 4.0, 2.0], 0.1),
        "2": part("Adam 0.01", [9.0, 3.0, 1.0], 0.1),
        "3": part(NATURAL, [9.0, 2.0, 1.0], 0.3),
        "4": part(NATURAL, [9.0, 0.0, 0.0], 0.5, seed=1),
    },
}


def test_the_table_says_when_the_goal_of_the_best_adam_is_reached():
    lines = optimizers_table(STUDY).splitlines()
    assert "steps to the end of Adam 0.01" in lines[0]
    assert lines[2:] == [
        "| Adam 0.001 | 2.0000 | 20 | 2 | never | never |",
        "| Adam 0.01 | 1.0000 | 20 | 2 | 20 | 2 |",
        f"| {NATURAL} | 0.5000 | 20 | 8 | 10 | 4 |",
    ]


def test_a_sentence_compares_with_the_best_adam():
    said = comparison(STUDY)
    assert "Adam 0.01 ends with a −ELBO of 1.000, after 20 steps and 2 s." in said
    assert "10 steps (2.0 times fewer) and 4 s (2.0 times as long), and ends with 0.500" in said
    slower = {**STUDY["parts"], "5": part(f"{NATURAL} over 9 epochs", [9.0, 5.0, 2.0], 0.3)}
    against = comparison({"parts": slower}, "Adam 0.001")
    assert f"The {NATURAL} is there after 10 steps" in against
    with pytest.raises(ValueError, match=r"did you mean 'Adam 0\.001'"):
        comparison(STUDY, "Adam 0.002")
    slow = {**STUDY["parts"], "3": part(NATURAL, [9.0, 5.0, 4.0], 0.3)}
    slow.pop("4")
    assert comparison({"parts": slow}).endswith("does not get there: it ends with 4.000.")


def test_blocks_draw_two_curves_and_claims_name_numbers(tmp_path):
    write_json(tmp_path / "studies" / "natural.json", STUDY)
    paper = PAPERS["matrix_normal"]
    blocks = Blocks(paper, tmp_path)
    makers = blocks.makers(paper.folder / "natural.md")
    assert "natural-steps.png" in makers["natural-curves"]("steps | Over steps.")
    assert "natural-seconds.png" in makers["natural-curves"]("seconds | Over seconds.")
    assert blocks.pictures["natural-steps.png"] != blocks.pictures["natural-seconds.png"]
    assert f"| {NATURAL} | 0.5000 |" in makers["natural"]("all")
    assert filled(f"{{value: natural/{NATURAL} steps}}", blocks.cell) == "10"
    with pytest.raises(ValueError, match="axis 'second' is unknown; did you mean 'seconds'"):
        draw_optimizers(STUDY, "second")
    with pytest.raises(ValueError, match="too few runs"):
        optimizers_table({"parts": {"3": STUDY["parts"]["3"]}})


def test_lines_may_have_places_of_their_own():
    lines = {"a": ([0, 1], [1.0, 2.0]), "b": ([0, 5, 9], [3.0, 1.0, 2.0])}
    pictures = {log: paths(lines, "x", "y", log=log) for log in (False, True)}
    assert all(png.startswith(b"\x89PNG") for png in pictures.values())
    assert pictures[True] != pictures[False]


def test_the_runs_are_fc_300_on_mnist_and_differ_in_the_optimizer_alone():
    recipes = recipes_of(NaturalSettings(natural_epochs=(30,)), seed=3)
    assert list(recipes) == ["Adam 0.001", "Adam 0.003", "Adam 0.01", f"{NATURAL} over 30 epochs"]
    shown = [
        recipe.model_dump(exclude={"name", "optimizer", "published", "budgets", "cut"})
        for recipe in recipes.values()
    ]
    assert all(each == shown[0] for each in shown)
    assert (shown[0]["data"]["name"], shown[0]["architecture"]["name"]) == ("mnist", "mlp-elu")
    assert shown[0]["training"]["epochs"] == 30
    assert recipes["Adam 0.01"].optimizer.lr == 0.01


def test_the_study_is_a_command(digits, tmp_path):
    out = tmp_path / "natural.json"
    options = ["--epochs", "1", "--images", "40", "--measured", "20", "--adam", "0.01"]
    options += ["--natural-epochs", "2"]
    done = CliRunner().invoke(app, ["papers", "natural", "--out", str(out), *options])
    assert done.exit_code == 0, done.output
    assert "natural gradient over 2 epochs, seed 0: −ELBO" in done.output
    names = ("Adam 0.01", f"{NATURAL} over 2 epochs")
    assert list(json.loads(out.read_text())["parts"]) == [f"{name}, seed 0" for name in names]


@pytest.mark.checklist("MN7")
@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
def test_pivots_close_most_of_the_gap_where_diagonals_differ(spread):
    minkowski, pivots = gaps((8, 6), spread, draws=5)
    assert 0 < pivots < minkowski + 1e-12
    if spread == 3.0:
        assert pivots < 0.25 * minkowski
    assert len(bounds_table().splitlines()) == 2 + 9
