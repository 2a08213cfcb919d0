"""The benchmark of seconds to a bound: what it measures, and what its page says."""

import copy
import doctest
from dataclasses import asdict
from itertools import count

import pytest
import torch

from research.benchmarks import page, quality, quality_page
from research.benchmarks.quality import PEERS, ROWS, seconds_to, train
from research.measuring import schedule

OWN = [name for name in ROWS if not name.startswith(PEERS)]


def digits(images=64):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(images, 784, generator=generator)
    y = torch.randint(10, (images,), generator=generator)
    return {"x": x, "y": y, "held_x": x[:9], "held_y": y[:9]}


def ticks():
    """A clock that goes on by one second whenever it is read."""
    number = count()
    return lambda: float(next(number))


@pytest.mark.parametrize("name", OWN)
def test_only_steps_are_counted_and_the_bound_falls(name):
    row = ROWS[name]
    row = row._replace(epochs=6)
    curve = train(row, digits(), seed=0, clock=ticks())
    assert curve["seconds"] == [1, 2, 3, 4, 5, 6]  # one step an epoch, of one tick each
    bounds = [nll + kl for nll, kl in zip(curve["nll"], curve["kl"], strict=True)]
    assert bounds[-1] < bounds[0]
    assert curve == train(row, digits(), seed=0, clock=ticks())
    assert curve["nll"] != train(row, digits(), seed=1, clock=ticks())["nll"]


def test_scales_have_the_rate_of_the_schedule():
    network = ROWS["k-tied 2"].build(quality.mlp())
    rates = {group["lr"] for group in network.groups(0.01, 5.0)}
    assert rates == {0.01, 0.05}


def test_a_bound_must_be_kept_to_count_as_reached():
    curve = {"seconds": [1, 2, 3, 4], "nll": [0.5, 0.9, 0.5, 0.4], "kl": [0.0] * 4}
    assert seconds_to(curve, 0.6) == 3
    assert seconds_to(curve, 1.0) == 1
    assert seconds_to(curve, 0.3) is None


def run_of(bounds, seconds):
    return {"curve": {"seconds": seconds, "nll": bounds, "kl": [0.1] * len(bounds)}}


@pytest.fixture
def result():
    slow, quick = [10.0, 20.0, 60.0], [1.0, 2.0, 6.0]
    rows = {
        "k-tied 2": run_of([2.0, 0.4, 0.3], quick),
        "torchbnn": run_of([3.0, 1.0, 0.5], slow),
        "bayesian-torch": run_of([3.0, 1.0, 0.9], slow),
    }
    schedules = {
        name: {"epochs": ROWS[name].epochs, **asdict(ROWS[name].schedule)} for name in rows
    }
    parts = {
        f"{name}, seed {seed}": {"row": name, "seed": seed, **copy.deepcopy(run)}
        for seed in (0, 1)
        for name, run in rows.items()
    }
    return {"settings": {"prior": 0.1, "start": 0.03, "schedules": schedules}, "parts": parts}


def test_the_page_compares_with_the_best_peer(result, tmp_path):
    (said,) = quality_page.say({"quality": result})
    assert "torchbnn has a −ELBO of 0.600, in 60 s" in said
    assert "**2.0 s: 30.0 times less**" in said
    text = page.text({"quality": result})
    assert "| k-tied 2 | 5 | 2 | 0.400 | 0.300 | 6.0 | 2.0 | 30.0 |" in text
    assert "| bayesian-torch | 30 | 2 | 1.000 | 0.900 | 60.0 | – | – |" in text
    assert quality_page.draw(result)["quality"].startswith(b"\x89PNG")


def test_a_bound_that_one_seed_misses_is_not_reached(result):
    result["parts"]["k-tied 2, seed 1"] |= run_of([2.0, 0.9, 0.7], [1.0, 2.0, 6.0])
    (said,) = quality_page.say({"quality": result})
    assert said.endswith("k-tied 2 does not reach it in every seed.")


@pytest.mark.parametrize(("seeds", "sentence"), [(0, "seeds"), (1, "damaged")])
def test_an_unusable_request_or_file_is_refused(seeds, sentence, tmp_path):
    file = tmp_path / "quality.json"
    file.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=sentence):
        quality.measure_quality(seeds, file)


@pytest.mark.parametrize("module", [quality, schedule])
def test_examples_are_right(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed
