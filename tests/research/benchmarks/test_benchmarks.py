"""The benchmarks' own arithmetic: what counts, how costs grow, what the pages say."""

import doctest
import json
import re

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

import leanbayes as lb
from research.__main__ import app
from research.benchmarks import formulas, page, scaling_page
from research.benchmarks.everything import together
from research.benchmarks.methods import METHODS, plain
from research.benchmarks.networks import SETUPS, mlp
from research.benchmarks.peers import PACKAGES, PEERS
from research.benchmarks.prediction import EXAMPLES
from research.measuring import harness
from research.measuring.harness import Cost, Turn, as_json, cost, exponent, measure, peak_memory
from research.measuring.machine import facts
from research.publishing import tables
from research.publishing.pages import refreshed
from research.publishing.paper import DOCS


class Machine:
    """A clock that work moves on, and other programs too."""

    def __init__(self):
        self.now, self.slower, self.probes = 0.0, 1.0, 0
        self.busy = set()

    def clock(self):
        return self.now

    def work(self, seconds):
        def run():
            self.now += seconds * self.slower

        return run

    def probe(self):
        """Slow from now until the next one, where something else runs."""
        self.slower = 3.0 if self.probes in self.busy else 1.0
        self.probes += 1
        before = self.now
        self.work(0.01)()
        return self.now - before


def measured(machine, rounds, **options):
    work = {"twice": machine.work(2.0), "thrice": machine.work(3.0)}
    plain_work = machine.work(1.0)
    return measure(
        plain_work, work, rounds=rounds, clock=machine.clock, probe=machine.probe, **options
    )


def test_ratios_of_a_calm_machine():
    costs = measured(Machine(), rounds=4)
    assert costs["twice"] == Cost(2.0, 2.0, 2.0, kept=4, discarded=0)
    assert costs["thrice"].median == pytest.approx(3.0)


def test_a_disturbed_turn_is_discarded_and_taken_again():
    machine = Machine()
    machine.busy = {3, 4, 9}  # the probe after the first turn is the third
    costs = measured(machine, rounds=6)
    assert sum(found.discarded for found in costs.values()) > 0
    assert all(found.kept >= 6 and found.calm for found in costs.values())


def test_a_machine_that_is_never_calm_is_told():
    turns = [Turn(1.0, 2.0, probe) for probe in (0.5, 0.6, 0.7, 0.8)]
    found = cost(turns, limit=0.1)
    assert not found.calm
    assert (found.kept, found.discarded) == (2, 2)


def test_what_disturbed_one_half_of_a_turn_does_not_enter_the_median():
    calm = [Turn(1.0, 2.0, 0.01)] * 5
    disturbed = [Turn(1.0, 20.0, 0.05)] * 4
    assert cost([*calm, *disturbed]).median == 2.0


def test_processes_count_alike_however_many_turns_they_took():
    turns = ([Turn(1.0, 1.0, 0.1)] * 2, [Turn(1.0, 2.0, 0.1)] * 2, [Turn(1.0, 9.0, 0.1)] * 20)
    runs = [{"native": True, "setups": {"mlp": as_json({"ours": cost(t)})}} for t in turns]
    merged = together(json.loads(json.dumps(runs)))
    found = merged["setups"]["mlp"]["ours"]
    assert (found["median"], found["medians"], found["kept"]) == (2.0, [1.0, 2.0, 9.0], 24)
    assert (found["low"], found["high"]) == (9.0, 9.0)  # of all turns
    assert "ratios" not in found
    assert merged["native"]


@pytest.mark.parametrize(
    ("option", "least"), [("--rounds", "2"), ("--processes", "1"), ("--threads", "1")]
)
def test_too_few_turns_or_processes_are_refused(option, least):
    done = CliRunner().invoke(app, ["bench", "run", option, "0", "--no-peers"])
    assert done.exit_code == 2
    assert re.search(rf"greater\s+than or equal to {least}", re.sub(r"[│\s]+", " ", done.output))


def test_one_process_is_what_it_found():
    (run,) = runs = [{"setups": {"mlp": as_json({"ours": cost([Turn(1.0, 2.0, 0.1)] * 3)})}}]
    assert together(runs) is run


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_exponents_of_known_powers(power):
    sizes = [1, 2, 4, 8, 16]
    assert exponent(sizes, [7 * size**power for size in sizes]) == pytest.approx(power)


@pytest.mark.filterwarnings("ignore::Warning:torch")
def test_peak_memory_is_the_most_that_is_held_at_once():
    def work():
        first = torch.ones(1000)
        second = first + 1
        del first
        return second + 1

    assert 0 <= peak_memory(work) - 2 * 4000 < 100  # single numbers come and go too


@pytest.mark.filterwarnings("ignore::Warning:torch")
def test_peak_memory_is_the_same_however_often_it_is_asked_for():
    works, x, y = plain(mlp((64, 64, 10))), torch.rand(32, 64), torch.randint(10, (32,))
    asked = [peak_memory(lambda: works.step(x, y)) for _ in range(3)]
    assert max(asked) - min(asked) < 100
    assert min(asked) > 0


def test_facts_do_not_name_the_machine():
    found = facts("torch", "no-such-package")
    assert found["versions"]["no-such-package"] is None
    assert set(found["machine"]) == {
        *("system", "architecture", "processor", "cores", "threads", "load"),
    }


@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_a_step_and_predicts(name):
    torch.manual_seed(0)
    net = mlp((6, 5, 3))
    works = METHODS[name](net)
    x, y = torch.rand(8, 6), torch.randint(3, (8,))
    before = [p.detach().clone() for p in works.model.parameters()]
    works.step(x, y)
    assert any(not torch.equal(a, b) for a, b in zip(before, works.model.parameters(), strict=True))
    probs = works.predict(x, 3)
    assert probs.shape == (8, 3)
    torch.testing.assert_close(probs.sum(-1), torch.ones(8))


def test_networks_take_their_data():
    for setup in SETUPS.values():
        x, _ = setup.data(2)
        assert plain(setup.network()).predict(x, 1).shape == (2, 10)


def test_every_peer_names_its_package():
    assert PEERS.keys() == PACKAGES.keys()


@pytest.mark.parametrize("module", [formulas, harness, page, tables])
@pytest.mark.filterwarnings("ignore::Warning:torch")
def test_examples_are_right(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


# the page


def made_up(value):
    return {"median": value, "low": value - 0.1, "high": value + 0.1, "kept": 5, "discarded": 1} | {
        "calm": value < 50
    }


def made_up_results(folder, *, native=True, ivon=1.1):
    versions = {"python": "3", "torch": "2", "leanbayes": "0", "torchbnn": "1", "ivon-opt": "1"}
    machine = {"system": "S", "architecture": "A", "processor": "P", "cores": 2, "threads": 2}
    known = {"versions": versions, "machine": machine, "native": native}
    ours = {name: made_up(1.2 + i) for i, name in enumerate(METHODS)}
    theirs = {"torchbnn": made_up(1.5), "IVON": made_up(ivon), "k-tied 2, auto": made_up(1.25)}

    def branches(*setups, **more):
        values = {"native": ours, "python": ours, "peers": theirs}
        return {b: known | {"setups": dict.fromkeys(setups, v)} | more for b, v in values.items()}

    growth = {"plain": 1.0, "k-tied 2": 1.5}
    points = [
        {
            "ratios": {"k-tied 2": made_up(1.5)},
            "growth": {name: value * size for name, value in growth.items()},
            "megabytes": {name: value * size for name, value in growth.items()},
        }
        for size in (1, 2)
    ]
    axis = {"title": "units", "sizes": [256, 512], "points": points}
    axis["exponents"] = dict.fromkeys(growth, 1.0)
    seconds = {"import torch": 1.0, "import torch, leanbayes": 1.2, "leanbayes --help": 0.3}
    ratios = {"import torch, leanbayes": made_up(1.2), "leanbayes --help": made_up(0.3)}
    pairs = {"weak": made_up(0.9), "strong": made_up(60.0)}
    results = {
        "step": branches(*SETUPS),
        "prediction": branches(*EXAMPLES, samples=20, examples=EXAMPLES),
        "startup": {"native": known | {"seconds": seconds, "ratios": ratios}},
        "scale": {"native": known | {"axes": {"width": axis, "depth": axis}}},
        "distributed": {"native": known | {"batch": 8, "posteriors": {"plain": pairs}}},
    }
    config = {"rounds": 5, "clock": "wall", "quick": False, "keep_memory": False}
    for name, found in results.items():
        written = {"config": config, "minutes": 1.0, "branches": found}
        (folder / f"{name}.json").write_text(json.dumps(written))


def test_a_page_is_written_from_results(tmp_path):
    made_up_results(tmp_path, ivon=1.0)
    text = page.write(tmp_path, tmp_path / "docs").read_text()
    first = text.split("\n## ")[0]
    assert (
        "costs **1.20** plain steps (MLP, batch 128); IVON is ahead with 1.00 against 1.25" in first
    )
    assert "answers after **0.30 s**" in first
    assert "takes **0.20 s** over" in first
    assert "| k-tied 2, auto | **1.20** (1.10–1.30) | **1.20** (1.10–1.30) |" in text
    assert "| IVON (peer) | **1.00** (0.90–1.10) | – |" in text
    assert "Not installable here: bayesian-torch, posteriors." in text
    assert "**60.0**†" in text
    for picture in re.findall(r"\]\((performance/\w+\.png)\)", text):
        assert (tmp_path / "docs" / picture).read_bytes().startswith(b"\x89PNG")
    assert {p.stem for p in (tmp_path / "docs" / "performance").iterdir()} == {
        *("step", "prediction", "scale", "memory"),
    }


def test_nobody_is_ahead_by_less_than_the_spread(tmp_path):
    made_up_results(tmp_path, ivon=1.1)
    text = page.text(page.read(tmp_path))
    assert "IVON takes 1.10 against 1.25, within the spread of both, in one process" in text
    assert "is ahead" not in text


def test_a_page_says_when_no_peer_is_ahead_and_no_kernel_was_there(tmp_path):
    made_up_results(tmp_path, native=False, ivon=1.4)
    text = page.text(page.read(tmp_path))
    assert "the fastest peer, IVON, takes 1.40 against 1.25 in one process" in text
    assert "is ahead" not in text
    assert "A trial" not in text
    assert "all methods are pure Python" in text
    assert "| pure Python |" not in text


def test_a_page_says_first_that_it_is_a_trial(tmp_path):
    made_up_results(tmp_path)
    found = page.read(tmp_path)
    found["scale"]["config"]["quick"] = True
    assert page.text(found).splitlines()[2].startswith("**A trial")


def test_a_page_has_only_what_was_measured(tmp_path):
    made_up_results(tmp_path)
    for name in ("step", "prediction", "scale", "distributed"):
        (tmp_path / f"{name}.json").unlink()
    text = page.text(page.read(tmp_path))
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Starting", "Setup"]


# large transformers


class SmallTransformer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        width = shape.width
        self.tokens = nn.Embedding(shape.vocabulary, width)
        self.positions = nn.Embedding(shape.context, width)
        block = nn.TransformerEncoderLayer(width, 2, 4 * width, norm_first=True)
        self.blocks = nn.TransformerEncoder(
            block, shape.layers, nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.head = nn.Linear(width, shape.vocabulary, bias=False)


POSTERIORS = {
    "k-tied": (lb.KTied(2), lb.priors.Normal(1.0)),
    "rank-1": (lb.Rank1(4), lb.priors.Normal(0.1, loc=1.0)),
    "mean field": (lb.MeanField(), lb.priors.Normal(1.0)),
}


@pytest.mark.parametrize("family", formulas.FAMILIES, ids=lambda family: family.kind)
def test_counts_are_those_of_a_transformer_that_is_converted(family):
    shape = formulas.Transformer(layers=3, width=8, vocabulary=29, context=7)
    net = SmallTransformer(shape)
    if family.kind == "plain":
        counted = sum(parameter.numel() for parameter in net.parameters())
    else:
        counted = lb.count_parameters(lb.convert(net, *POSTERIORS[family.kind])).total
    assert formulas.parameters(shape, family) == counted


@pytest.mark.usefixtures("torch_noise")  # native kernels are not torch's to count
@pytest.mark.parametrize("kind", ["k-tied", "mean field"])
def test_flops_of_local_noise_are_those_of_a_layer(kind):
    tokens, shape = 16, formulas.Shape(40, 30)
    (family,) = (f for f in formulas.FAMILIES if f.kind == kind)
    net = nn.Linear(shape.columns, shape.rows, bias=False)
    model = lb.convert(net, *POSTERIORS[kind], lb.estimators.local)
    with FlopCounterMode(display=False) as counter:
        model(torch.rand(tokens, shape.columns, requires_grad=True)).sum().backward()
    counted = counter.get_total_flops() / tokens
    assert family.flops(shape, local=True, tokens=tokens) == pytest.approx(counted)


def test_sharding_divides_memory_and_not_what_is_sent():
    count = 1000
    assert formulas.memory_per_device(count, 8, "DDP") == 16 * count
    assert formulas.memory_per_device(count, 8, "FSDP") == 2 * count
    assert formulas.bytes_sent(count, 8, "DDP") == 2 * 4 * count * 7 / 8
    assert formulas.bytes_sent(count, 8, "FSDP") == 3 * 4 * count * 7 / 8


def test_the_models_are_as_large_as_they_are_called():
    counts = [
        formulas.parameters(model, formulas.FAMILIES[0]) for model in formulas.MODELS.values()
    ]
    output = formulas.MODELS["125 M"].vocabulary * formulas.MODELS["125 M"].width
    assert counts[0] - output == pytest.approx(124.4e6, rel=1e-3)  # GPT-2, whose output is tied
    assert counts[1] == pytest.approx(7e9, rel=0.03)
    assert counts[2] == pytest.approx(70e9, rel=0.07)


def test_the_page_about_scaling_is_up_to_date():
    written = (DOCS / "scaling.md").read_text(encoding="utf-8")
    assert written.count("<!-- scaling: ") == 4
    assert written == refreshed(written, scaling_page.makers()), "run python -m research page bench"
