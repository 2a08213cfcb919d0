"""The study of starts: what it trains, and what its page says."""

import pytest
import torch

from research.measuring.schedule import Schedule
from research.publishing.paper import DOCS, ROOT
from research.studies.starts import study as studied
from research.studies.starts.page import best_way, text, write
from research.studies.starts.study import NETWORKS, WAYS, Settings, Way, study_starts, train

SMALL = Settings(images=48, held=16, batch=16, epochs=2, points=3, passes=2)


def digits(settings):
    generator = torch.Generator().manual_seed(0)
    sizes = {"": settings.images, "held_": settings.held}
    x = {f"{k}x": torch.rand(n, 1, 28, 28, generator=generator) for k, n in sizes.items()}
    return {
        **x,
        **{f"{k}y": torch.randint(10, (n,), generator=generator) for k, n in sizes.items()},
    }


@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_learns_and_is_repeatable(network):
    way, data = WAYS["0.03, quick schedule"], digits(SMALL)
    found = train(NETWORKS[network], way, data, SMALL, seed=0)
    assert found["steps"] == [2, 4, 6]
    assert found["negative_elbo"][-1] < found["negative_elbo"][0]
    assert found == train(NETWORKS[network], way, data, SMALL, seed=0)
    assert found != train(NETWORKS[network], way, data, SMALL, seed=1)


def test_a_start_is_where_standard_deviations_start(monkeypatch):
    seen = []
    kept = studied.lb.convert

    def convert(net, posterior, *more):
        seen.append(posterior.scale)
        return kept(net, posterior, *more)

    monkeypatch.setattr(studied.lb, "convert", convert)
    train(NETWORKS["dense"], Way(0.07, Schedule(1e-3)), digits(SMALL), SMALL, seed=0)
    assert seen == [0.07]


def test_a_stopped_study_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(studied, "NETWORKS", {"dense": NETWORKS["dense"]})
    monkeypatch.setattr(studied, "_digits", digits)
    out, told = tmp_path / "starts.json", []
    first = study_starts(SMALL, out, seeds=1)
    again = study_starts(SMALL, out, seeds=2, tell=lambda key, _: told.append(key))
    assert len(told) == 2 * len(WAYS)
    assert all(again["parts"][key] == part for key, part in first["parts"].items())
    with pytest.raises(ValueError, match="with another images"):
        study_starts(Settings(), out)


def made_up(ends):
    """Two seeds of each network; ``ends`` has the last −ELBOs by way."""
    parts = {}
    for network in ("dense", "LSTM"):
        for way, values in ends.items():
            for seed, value in enumerate(values):
                parts[f"{network}; {way}; seed {seed}"] = {
                    "network": network,
                    "way": way,
                    "seed": seed,
                    "steps": [50, 100],
                    "negative_elbo": [value + 0.5, value],
                    "nll": value,
                    "accuracy": 0.9,
                }
    settings = {"images": 10, "held": 5, "batch": 2, "epochs": 1, "prior": 0.1, "passes": 4}
    return {"settings": settings, "parts": parts}


def test_the_page_advises_the_way_whose_worst_seed_is_best(tmp_path):
    published, quick, bold = next(iter(WAYS)), "0.03, quick schedule", "0.1, quick schedule"
    study = made_up({published: (1.2, 1.0), quick: (0.6, 0.5), bold: (0.3, 2.3)})
    assert best_way(study) == quick
    page = text(study)
    assert page.splitlines()[2].startswith("[Train well](train_well.md) has the recommendation")
    assert "this way: standard deviations start at 0.03, with Adam at 0.01" in page
    assert f"with `{published}` the −ELBO ends at 1.100, with `{quick}` at 0.550" in page
    assert "is there after 50% of them" in page
    assert "| 0.1, quick schedule | 1.30 ± 1.00 | 2.3 |" in page
    write(study, tmp_path)
    assert (tmp_path / "starts" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_is_up_to_date():
    file = ROOT / "results" / "starts.json"
    if not file.exists():
        pytest.skip("results/starts.json is not there; python -m research studies starts makes it")
    from leanbayes.lab.files import read_object

    study = read_object(file, {"settings", "parts"}, "a study", "run it")
    assert (DOCS / "starts.md").read_text(encoding="utf-8") == text(study)
