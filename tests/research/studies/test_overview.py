"""The first screen of the README: a tiny version of its study, its table and its picture."""

import json

import pytest
import torch

from research.data import load_dataset
from research.studies.overview import study as overview
from research.studies.overview.page import write
from research.studies.overview.study import (
    CHOICES,
    COSTS,
    METHODS,
    Settings,
    study_costs,
    study_methods,
)
from research.studies.small_tasks import Rows

pytest.importorskip("matplotlib")

TINY = Settings(images=60, epochs=2, batch=20, samples=3, hidden=6)


@pytest.fixture
def noise(monkeypatch):
    """Random images in place of clothes and digits."""
    torch.manual_seed(0)
    x, y = torch.rand(100, 1, 28, 28), torch.randint(10, (100,))
    images = Rows(x[:60], y[:60], x[60:], y[60:], torch.rand(30, 1, 28, 28))
    monkeypatch.setattr(overview, "read_images", lambda settings: images)


def test_every_method_has_its_row_and_a_stopped_study_goes_on(noise, tmp_path, monkeypatch):
    out, told = tmp_path / "overview.json", []
    first = study_methods(TINY, out, seeds=1, tell=lambda key, part: told.append(key))
    assert told == [f"{name}, seed 0" for name in METHODS]
    both = study_methods(TINY, out, seeds=2, tell=lambda key, part: told.append(key))
    assert told[len(METHODS) :] == [f"{name}, seed {seed}" for seed in (0, 1) for name in METHODS]
    assert json.loads(out.read_text()) == both
    chosen = first["parts"].pop(CHOICES)
    assert list(chosen) == ["MC dropout", "mean field", "k-tied"]
    assert all(len(found) == 5 for found in chosen.values())
    for part in first["parts"].values():
        own = chosen.get(part["method"], {"0": 0.0})
        assert own[f"{part['choice']:g}"] == min(own.values())
    del both["parts"][CHOICES]
    size = {part["method"]: part["parameters"] for part in first["parts"].values()}
    plain = size["plain network"]
    assert size["ensemble of 5"] == 5 * plain
    assert size["MC dropout"] == plain < size["k-tied"] < size["mean field"]
    for part in both["parts"].values():
        assert 0 <= part["auroc"] <= 1
        for shares in part["entropies"]:
            assert sum(shares) == pytest.approx(1, abs=1e-3)
        assert {"seed", "versions", "threads", "duration"} <= part.keys()


def test_table_and_picture_come_from_the_file(noise, tmp_path):
    out, readme = tmp_path / "overview.json", tmp_path / "README.md"
    study_methods(TINY, out, seeds=2)
    with pytest.raises(ValueError, match="not finished; resume research studies overview"):
        write(out, readme, tmp_path / "overview.png")
    study_costs(TINY, out, rounds=2)
    assert set(json.loads(out.read_text())["parts"][COSTS]["step"]) == set(METHODS) - {
        "plain network"
    }
    blocks = "<!-- overview: all -->\nold\n<!-- end -->\n<!-- overview-how: all -->\n<!-- end -->\n"
    readme.write_text(f"First.\n{blocks}Last.\n")
    write(out, readme, tmp_path / "overview.png")
    lines = readme.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("First.", "Last.")
    rows = {line.split(" | ")[0].strip("| ") for line in lines if line.startswith("| ")}
    assert rows == {*METHODS, "", "---"}
    assert "Means over 2 seeds" in readme.read_text()
    assert (tmp_path / "overview.png").read_bytes().startswith(b"\x89PNG")
    assert "old" not in lines


def test_foreign_images_are_digits_and_known_ones_clothes():
    try:
        clothes, digits = (
            load_dataset(name, download=False, scaling="unit")
            for name in ("fashion-mnist", "mnist")
        )
    except FileNotFoundError:
        pytest.skip("Fashion-MNIST or MNIST is not here; set LEANBAYES_DATA")
    images = overview.read_images(Settings(images=50))
    assert torch.equal(images.x, clothes.train.x[:50])
    assert torch.equal(images.ood_x, digits.test.x)
    assert torch.equal(images.test_y, clothes.test.y)
