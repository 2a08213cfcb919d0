"""Saved files with something changed: one sentence or a right load, soon and in little memory."""

from __future__ import annotations

import copy
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import LoadError

MUTATIONS = 20_000
SECONDS = 10.0  # no speed: a changed file must not keep a process busy
BYTES = 200 * 2**20
LONGEST_SENTENCE = 1000

RAW = "@raw "
"""A value that begins so is written as it stands, though it may be no JSON."""

HOSTILE: list[Any] = [
    *(None, True, False, 0, 1, 2, 3, -1, 300_000, 2**31, 2**63, 10**30, 10**400),
    *(0.5, -0.0, 1e-300, 1e300, "", "x", "normal", "mean", "F64", "I32", "BF16", "F16", "\ud800"),
    *([], [1], [2, 2], [0, 8], [10**9, 10**9], {}, {"kind": "KTied", "rank": 300_000}),
    *({"kind": "Scale"}, {"kind": "Normal", "scale": "1"}, "a" * 10_000),
    *(RAW + text for text in ("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "'", "}")),
    *(RAW + "[" * 20_000 + "]" * 20_000, RAW + '{"a":' * 20_000 + "1" + "}" * 20_000),
]


@dataclass(frozen=True)
class Saved:
    """A network, how it is converted, and what is saved with it."""

    net: Callable[[], nn.Module]
    posterior: lb.posteriors.Posterior
    prior: lb.priors.Prior
    options: dict[str, Any] = field(default_factory=dict)
    likelihood: lb.likelihoods.Likelihood | None = None


SCALE = lb.posteriors.Scale(0.1, raw_spread=0.1, stored="softplus", ceiling=0.2)
MODELS = {
    "k_tied": Saved(lambda: nn.Linear(2, 2), lb.KTied(2), lb.priors.Normal(0.5, learn="layer")),
    "mean_field": Saved(
        lambda: nn.Linear(2, 1),
        lb.MeanField(SCALE),
        lb.priors.GroupARD(),
        {"bias": lb.MeanField(0.3), "bias_prior": lb.priors.Laplace(2.0)},
        lb.likelihoods.Gaussian(0.5, "learned"),
    ),
    "matrix_normal": Saved(
        lambda: nn.Conv1d(1, 2, 2), lb.posteriors.MatrixNormal(rank=1), lb.priors.StudentT(3.0)
    ),
    "triangular": Saved(
        lambda: nn.Linear(2, 2), lb.posteriors.MatrixNormal(diagonal=True), lb.priors.He()
    ),
    "dropout": Saved(
        lambda: nn.Embedding(3, 2),
        lb.posteriors.VariationalDropout("neuron"),
        lb.priors.LogUniform(),
    ),
    "rank1": Saved(
        lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)),
        lb.Rank1(2, factors=("normal", "fixed")),
        lb.priors.Normal(0.1, loc=1.0),
    ),
    "variance": Saved(lambda: nn.GRUCell(1, 2), lb.posteriors.ZeroMean(), lb.priors.ScaleMixture()),
    "shared": Saved(
        lambda: nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 1, bias=False)),
        lb.posteriors.Point(),
        lb.priors.Normal(0.5, learn="model"),
        {"overrides": {"1": {"posterior": lb.MeanField(), "estimator": lb.estimators.weights}}},
    ),
}


def parsed(content: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """The tensors' entries, the description and the numbers of a right file."""
    end = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:end])
    description = json.loads(entries.pop("__metadata__")["leanbayes"])
    return entries, description, content[end:]


def text_of(value: Any) -> str:
    """JSON, but for what is raw."""
    raw = rf'"{RAW}((?:[^"\\]|\\.)*)"'
    return re.sub(raw, lambda m: json.loads(f'"{m[1]}"'), json.dumps(value))


def written(entries: dict[str, Any], description: str, numbers: bytes) -> bytes:
    head = text_of({"__metadata__": {"leanbayes": "@description"}, **entries})
    head = head.replace('"@description"', json.dumps(description), 1)
    encoded = head.encode("utf-8", "surrogatepass")
    return len(encoded).to_bytes(8, "little") + encoded + numbers


def unsealed(content: bytes) -> bytes:
    """The file without its checksum, as the first versions wrote it."""
    entries, description, numbers = parsed(content)
    del description["checksum"]
    return written(entries, json.dumps(description), numbers)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container inside a value with every key it has."""
    keys = value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    for key in keys:
        yield value, key
        yield from places(value[key])


def edit(value: Any, chance: random.Random) -> None:
    """Change one thing somewhere inside a value."""
    spots = list(places(value))
    if not spots:
        return
    (container, key), (other, place) = chance.choice(spots), chance.choice(spots)
    how = chance.choice(("hostile", "hostile", "hostile", "delete", "rename", "copy"))
    if how == "hostile":
        container[key] = copy.deepcopy(chance.choice(HOSTILE))
    elif how == "copy":
        container[key] = copy.deepcopy(other[place]) if isinstance(key, str) else 1
    elif how == "delete" or isinstance(container, list):
        del container[key]
    else:
        container[chance.choice([f"{key}x", key[:-1], "kind", str(place)])] = container.pop(key)


def doubled(text: str, chance: random.Random) -> str:
    """A key stands twice."""
    spots = list(re.finditer(r'"\w*": (?=[\w"\[{])', text))
    if not spots:
        return text
    spot = chance.choice(spots)
    before, after = text[: spot.start()], text[spot.start() :]
    return f"{before}{spot[0]}{chance.choice(['null', '1', '2'])}, {after}"


def edited(content: bytes, chance: random.Random) -> bytes:
    """Something in the header is other JSON."""
    entries, description, numbers = parsed(content)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        edit(chance.choice((entries, description, description)), chance)
    text = text_of(description)
    return written(entries, doubled(text, chance) if chance.random() < 0.1 else text, numbers)


def scrambled(content: bytes, chance: random.Random) -> bytes:
    """Bytes are flipped, cut out, put in, moved or written over."""
    changed = bytearray(content)
    end = 8 + int.from_bytes(content[:8], "little")
    low, high = chance.choice(((0, 8), (8, end), (8, end), (end, len(content))))
    for _ in range(chance.choice((1, 1, 2, 8))):
        a, b = sorted(min(chance.randrange(low, high), len(changed)) for _ in range(2))
        some = chance.randbytes(chance.choice((1, 1, 4, 40)))
        how = chance.choice(("flip", "flip", "flip", "over", "in", "out", "cut", "move"))
        if how == "flip" and a < len(changed):
            changed[a] ^= 1 << chance.randrange(8)
        elif how == "over":
            changed[a : a + len(some)] = some
        elif how == "in":
            changed[a:a] = some
        elif how == "out":
            del changed[a : min(b, a + 64)]
        elif how == "cut":
            del changed[a:]
        else:
            changed[a:a] = changed[a:b]
        if not changed:
            break
    return bytes(changed)


def assert_right(model: nn.Module, content: bytes) -> None:
    """The model is what the file says, number by number and option by option."""
    stored = safetensors.torch.load(content)
    state = model.state_dict()
    for name, tensor in stored.items():
        if not name.startswith(".likelihood."):
            assert state[name].dtype == tensor.dtype
            assert bytes_of(state[name]) == bytes_of(tensor)
    _, description, _ = parsed(content)
    for name, maps in description["layers"].items():
        for inner, made in maps.items():
            part = model.get_submodule(name).get_submodule(inner)
            assert_spec(part.posterior.spec, made["posterior"])
            assert_spec(part.prior.spec, made["prior"])
            assert part.estimator.__name__ == made["estimator"]
    lb.kl(model)


def bytes_of(tensor: torch.Tensor) -> bytes:
    """They tell a NaN from another."""
    return tensor.detach().numpy().tobytes()


def assert_spec(spec: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if name == "kind":
            assert type(spec).__name__ == value
        elif isinstance(value, dict):
            assert_spec(getattr(spec, name), value)
        else:
            given = tuple(value) if isinstance(value, list) else value
            assert getattr(spec, name) == given
            assert isinstance(getattr(spec, name), bool) == isinstance(given, bool)


def loaded_or_refused(load: Callable[[Path], Any], path: Path) -> Any:
    """What is loaded; None where one sentence names the file."""
    try:
        return load(path)
    except LoadError as error:
        sentence = str(error)
    assert str(path) in sentence
    assert len(sentence.splitlines()) == 1
    assert len(sentence) < LONGEST_SENTENCE
    return None


class Peak:
    """How much memory a process has taken at most since it was asked to look."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self.start = self.now()

    @staticmethod
    def now() -> int:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])

    @property
    def growth(self) -> int:
        return self.now() - self.start


@pytest.mark.tried(
    "Files",
    what="20,000 saved models with bytes or header changed",
    holds="one sentence or a right load, each in less than a second and 200 MB",
)
@pytest.mark.parametrize("name", MODELS)
def test_a_changed_file_is_refused_in_a_sentence_or_loaded_right(name, tmp_path):
    saved, chance = MODELS[name], random.Random(name)
    torch.manual_seed(0)
    net = saved.net()
    model = lb.convert(net, saved.posterior, saved.prior, **saved.options)
    path = lb.save(model, tmp_path / "m", saved.likelihood)
    sealed = path.read_bytes()
    bare = unsealed(sealed)
    slowest, right, peak = 0.0, 0, Peak()
    for _ in range(MUTATIONS // len(MODELS)):
        change, content = chance.choice(
            [(scrambled, sealed), (scrambled, bare), (edited, bare), (edited, bare)]
        )
        changed = change(content, chance)
        path.write_bytes(changed)
        start = time.process_time()
        loaded = loaded_or_refused(partial(lb.load, net), path)
        slowest = max(slowest, time.process_time() - start)
        if saved.likelihood is not None:
            loaded_or_refused(lb.saving.load_likelihood, path)
        if loaded is not None:
            assert content is bare or changed == sealed, "a checksum misses nothing"
            assert_right(loaded, changed)
            right += 1
    assert right > 50
    assert slowest < SECONDS
    assert peak.growth < BYTES
