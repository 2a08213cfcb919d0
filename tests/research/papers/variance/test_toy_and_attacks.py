"""The toy of four classes and the attacks: small versions of both studies, from end to end."""

import json

import pytest
import torch
from typer.testing import CliRunner

from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.train import train
from research.__main__ import app
from research.papers.variance import attacks, four_classes
from research.papers.variance.attacks import (
    AttackSettings,
    attack_runs,
    attacks_table,
    draw_attacks,
)
from research.papers.variance.four_classes import (
    BETWEEN,
    DUPLICATED,
    ORTHOGONAL,
    FourClasses,
    kind_of,
    spreads_of,
)

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

TOY = FourClasses(iterations=150, rate=5e-3, examples=40, hidden=30, draws=31, shown=20)
SMALL = AttackSettings(images=20, iterations=5, step=1.0, draws=4)


def never(*_):
    raise AssertionError("what is kept is not computed again")


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    out = tmp_path_factory.mktemp("toy") / "toy.json"
    return out, four_classes.four_classes(TOY, out, seeds=2)


@pytest.mark.checklist("VN3")
def test_variances_alone_tell_four_classes_and_means_none(toy):
    for part in toy[1]["parts"].values():
        shares = part["accuracy"]
        assert shares["means"] == 0.25
        assert shares["ensemble"] > 0.7
        assert shares["ensemble"] > shares["one sample"]
        spreads = torch.tensor(part["deviations"])
        assert (spreads.amax(1) > 3 * spreads.amin(1)).all()
        points = torch.tensor(part["activations"])
        assert points.shape == (4, 2, 20)
        assert {"seconds", "threads", "versions", "seed"} <= set(part)


@pytest.mark.checklist("VN3")
@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ((1, 4, 16, 64), (0.1, 0.5, 1.4, 7), DUPLICATED),
        ((50, 50, 1, 1), (9, 0.1, 9, 0.1), ORTHOGONAL),
        ((20, 4000, 0.7, 0.4), (20, 1.5, 3000, 0.5), ORTHOGONAL),
        ((1, 50, 1, 50), (9, 0.1, 9, 0.1), BETWEEN),
        ((1, 4, 16, 64), (1, 1, 1, 1), BETWEEN),
        ((1, 1, 1.1, 1.1), (2, 2, 2.3, 2.3), BETWEEN),
        ((1, 1, 50, 50), (1, 5, 20, 90), BETWEEN),
    ],
)
def test_the_kind_of_a_solution_is_told_by_its_spreads(first, second, kind):
    spreads = torch.tensor([first, second], dtype=torch.float32)
    assert kind_of(spreads) == kind_of(spreads.flip(0)) == kind
    assert kind_of(spreads[:, torch.tensor([2, 0, 3, 1])] * torch.tensor([[3.0], [0.2]])) == kind


def test_spreads_are_standard_deviations_that_few_outliers_do_not_move():
    torch.manual_seed(0)
    true = torch.tensor([[1.0, 5.0, 0.2, 30.0], [7.0, 0.1, 2.0, 3.0]])
    points = 4 + true.T.unsqueeze(2) * torch.randn(4, 2, 2000)
    points[:, :, :20] = 1e6
    assert torch.allclose(spreads_of({"activations": points.tolist()}), true, rtol=0.1)


def test_a_toy_goes_on_with_its_file(toy, tmp_path, monkeypatch):
    out, study = tmp_path / "toy.json", toy[1]
    first = {**study, "parts": {"0": study["parts"]["0"]}}
    out.write_text(json.dumps(first))
    whole = four_classes.four_classes(TOY, out, seeds=2)
    for key in ("accuracy", "deviations", "activations"):
        assert whole["parts"]["1"][key] == study["parts"]["1"][key]
    assert json.loads(out.read_text()) == whole
    monkeypatch.setattr(four_classes, "_one_seed", never)
    assert four_classes.four_classes(TOY, out, seeds=2) == whole


def test_a_toy_is_drawn_and_told_from_its_file(toy):
    study = json.loads(toy[0].read_text())
    assert four_classes.draw_activations(study).startswith(b"\x89PNG")
    lines = four_classes.seeds_table(study).splitlines()
    assert len(lines) == 4
    assert f"| 1 | {kind_of(spreads_of(study['parts']['1']))} |" in lines[3]


def test_the_released_loss_is_another(tmp_path):
    both = [
        four_classes._one_seed(
            FourClasses(3, 1e-3, double, examples=5, hidden=5, draws=3, shown=2), 0, False
        )
        for double in (False, True)
    ]
    assert both[0]["deviations"] != both[1]["deviations"]


def recipe(role, seed):
    hidden = {"inputs": 64, "hidden": [32]}
    values = {
        "name": f"digits-{role}",
        "data": {"name": "digits", "options": {"scaling": "symmetric"}},
        "architecture": {"name": "mlp", "options": hidden},
        "optimizer": {"lr": 0.01},
        "training": {"epochs": 6, "batch_size": 100},
        "evaluation": {"samples": 3},
        "seed": seed,
    }
    if role == "variance":
        values |= {"posterior": "ZeroMean", "prior": "LogUniform", "include": ["dense1"]}
    return check_recipe(values)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacked")
    for role, seed in [("deterministic", 1), ("deterministic", 2), ("variance", 1)]:
        train(recipe(role, seed), folder / f"{role}-{seed}", progress=False)
    return sorted(folder.iterdir(), reverse=True)


@pytest.fixture(scope="module")
def attacked(digits, tmp_path_factory):
    out = tmp_path_factory.mktemp("attacks") / "attack.json"
    return out, attack_runs(digits, SMALL, out)


@pytest.mark.checklist("VN21")
def test_attacks_begin_without_success_and_count_it_after_every_step(attacked):
    parts = attacked[1]["parts"]
    assert list(parts) == [
        "deterministic, averaged",
        "deep ensemble, averaged",
        "deep ensemble, of_average",
        "variance, averaged",
        "variance, of_average",
    ]
    for name, part in parts.items():
        assert len(part["success"]) == len(part["error"]) == SMALL.iterations + 1
        assert part["success"][0] <= (0.15 if name.startswith("variance") else 0)
        assert 0 < part["distance"] <= SMALL.step * SMALL.iterations
    assert parts["deterministic, averaged"]["success"][-1] > 0.5
    assert parts["deep ensemble, averaged"]["models"] == 2
    assert parts["variance, averaged"]["draws of each"] == SMALL.draws


def test_a_step_is_one_of_pixels_whatever_the_scaling(digits, tmp_path):
    """Of pixels from 0 to 16 one step of 2 moves every number by 2, or to an end."""
    study = attack_runs(digits[-1:], AttackSettings(10, 1, 2.0, 1), tmp_path / "a.json")
    assert study["parts"]["deterministic, averaged"]["distance"] == 2.0


def test_attacks_go_on_with_their_file(digits, attacked, tmp_path, monkeypatch):
    out, study = tmp_path / "attack.json", attacked[1]
    parts = dict(list(study["parts"].items())[:-1])
    out.write_text(json.dumps({**study, "parts": parts}))
    whole = attack_runs(digits, SMALL, out)
    last = "variance, of_average"
    assert whole["parts"][last]["success"] == study["parts"][last]["success"]
    monkeypatch.setattr(attacks, "_attacked", never)
    assert attack_runs(digits, SMALL, out) == whole


def test_attacks_are_drawn_and_told_from_their_file(attacked):
    study = json.loads(attacked[0].read_text())
    pictures = [draw_attacks(study, gradient) for gradient in attacks.GRADIENTS]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert pictures[0] != pictures[1]
    lines = attacks_table(study).split("\n\n")[0].splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| deterministic",
        "| deep ensemble",
        "| variance",
    ]
    assert sorted(line.split(" | ")[-2] for line in lines[2:]) == ["1", "2", "3"]


def test_dropout_draws_when_it_is_attacked():
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(30, 3)).eval()
    x = torch.randn(200, 30)
    drawn = attacks._Network([model], 1, dropout=True).labels(x, seed=0)
    plain = attacks._Network([model], 1).labels(x, seed=0)
    assert plain.equal(model(x).argmax(-1))
    assert not drawn.equal(plain)
    assert not model[0].training


def test_what_cannot_be_attacked_is_told_in_one_sentence(digits, attacked, runs, tmp_path):
    out = tmp_path / "new.json"
    with pytest.raises(ValueError, match="ends with none of deterministic, dropout, variance"):
        attack_runs([runs / "1"], SMALL, out)
    with pytest.raises(ValueError, match="second variance run with seed 1; an ensemble needs"):
        attack_runs([digits[0], digits[0]], SMALL, out)
    with pytest.raises(ValueError, match="ask for fewer, or train longer"):
        attack_runs(digits, AttackSettings(images=3000), out)
    with pytest.raises(ValueError, match="another images: it was 20 and is now 19; undo"):
        attack_runs(digits, AttackSettings(19, 5, 1.0, 4), attacked[0])
    with pytest.raises(ValueError, match="a study of attacks and not of four classes"):
        four_classes.four_classes(TOY, attacked[0])
    with pytest.raises(ValueError, match="no run to attack"):
        attack_runs([], SMALL, out)
    assert not out.exists()


def test_both_studies_are_commands(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    toy_file, attack_file = tmp_path / "toy.json", tmp_path / "attack.json"
    done = CliRunner().invoke(
        app, ["papers", "toy", "--out", str(toy_file), "--seeds", "1", "--iterations", "2"]
    )
    assert done.exit_code == 0, done.output
    assert "seed 0:" in done.output
    assert toy_file.is_file()
    chosen = ["--images", "5", "--iterations", "1", "--draws", "2"]
    done = CliRunner().invoke(
        app, ["papers", "attack", *map(str, digits), "--out", str(attack_file), *chosen]
    )
    assert done.exit_code == 0, done.output
    assert "variance, averaged: success" in done.output
    assert attack_file.is_file()
