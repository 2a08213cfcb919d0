"""The benchmark of networks people have: its page, its failures and how it resumes."""

import pytest
import torch
from torch import nn

from research.benchmarks import everything, networks_page, page
from research.benchmarks.everything import Parts, together
from research.benchmarks.methods import plain
from research.benchmarks.networks_run import METHODS, _costs
from research.benchmarks.real_networks import LARGE, NETWORKS
from research.benchmarks.step import Options

QUICK = Options(rounds=2, quick=True)


def cost(median):
    return {"median": median, "low": median, "high": median, "calm": True, "kept": 2}


def result():
    costs = {name: {"k-tied 2": cost(1.25)} for name in NETWORKS}
    mixture = {"rank-1": cost(4.5)}
    native = {
        "setups": costs | {"readme": {"k-tied 2": cost(1.5)}, "mixture": mixture},
        "predictions": costs | {"mixture": mixture},
        "samples": 20,
        "failures": {"lstm": {"torchbnn": "TypeError: none"}},
        "large": {"parameters": 10**8, "times": {"KL": cost(0.5)}, "memory": {"step": 1.25}},
    }
    return {"branches": {"native": native}}


def test_the_page_has_every_number_and_names_failures():
    text = "\n".join(networks_page.section(result(), page.cell))
    assert text.count("**1.25** (1.25–1.25)") == 2 * len(NETWORKS)
    assert "torchbnn on LSTM (`TypeError: none`)" in text
    assert "100 million parameters" in text
    assert "1.25 and 1.2 (ResNet-20)" in networks_page.say(result())[0]


def test_peers_are_ahead_beyond_the_spread_only():
    found = result()
    near = {"median": 1.2, "low": 1.1, "high": 1.3, "calm": True, "kept": 2}
    peers = {"setups": {"resnet": {"k-tied 2": cost(1.25), "IVON": near, "torchbnn": cost(1.01)}}}
    found["branches"]["peers"] = peers
    text = "\n".join(networks_page.section(found, page.cell))
    assert "torchbnn, step on ResNet-20 (1.01 against 1.25)" in text
    assert "IVON, step" not in text
    del peers["setups"]["resnet"]["torchbnn"]
    assert "No peer is ahead of k-tied 2" in "\n".join(networks_page.section(found, page.cell))


def test_a_method_that_cannot_run_is_noted():
    def broken(net):
        raise TypeError("it has no LSTM")

    failures = {}
    methods = {"k-tied 2": METHODS["k-tied 2"], "broken": broken}
    steps, predictions = _costs(NETWORKS["lstm"], methods, QUICK, failures)
    assert set(steps) == set(predictions) == {"k-tied 2"}
    assert failures == {"broken": "TypeError: it has no LSTM"}


def test_a_stopped_run_resumes_where_the_settings_are_the_same(tmp_path):
    def broken():
        raise AssertionError("this part is known")

    Parts(tmp_path / "a.partial", [1]).once("native 0", lambda: {"found": 3})
    assert Parts(tmp_path / "a.partial", [1]).once("native 0", broken) == {"found": 3}
    assert Parts(tmp_path / "a.partial", [2]).once("native 0", lambda: {"found": 4}) == {"found": 4}


def test_a_finished_benchmark_is_kept_for_the_same_settings(tmp_path, monkeypatch):
    runs = []
    monkeypatch.setattr(everything, "_apart", lambda *a: runs.append(a[0]) or {"found": len(runs)})

    def measure(rounds):
        everything.measure_everything(
            Options(rounds=rounds), only=["startup", "scale"], peers=False, results=tmp_path
        )

    measure(2)
    measure(2)
    assert runs == ["startup", "scale"]
    measure(3)
    assert runs == ["startup", "scale"] * 2


def test_processes_are_pooled_by_method():
    found = [{part: {"lstm": {"a": {**cost(m), "discarded": 0, "ratios": [m]}}}
              for part in ("setups", "predictions")} for m in (1.0, 3.0)]  # fmt: skip
    assert together(found)["predictions"]["lstm"]["a"]["median"] == 2.0


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_their_sizes(name):
    setup = NETWORKS[name]
    x, y = setup.data(2)
    assert plain(setup.fresh()).predict(x, 1).shape == (2, 10)
    assert len(y) == 2


def test_the_large_transformer_has_100_million_parameters():
    with torch.device("meta"):
        net = LARGE.network()
    assert isinstance(net, nn.Sequential)
    assert 0.95e8 < sum(p.numel() for p in net.parameters()) < 1.05e8
