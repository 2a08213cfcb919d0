"""Four classes through two variance neurons: two kinds of solutions [variance, section 3.2]."""

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.lab.provenance import environment_facts
from research.publishing.plots import clouds
from research.publishing.rounding import rounded
from research.publishing.study_file import StudyFile, Tell
from research.publishing.tables import markdown_table

CENTERS = ((3.0, 3.0), (3.0, 10.0), (10.0, 3.0), (10.0, 10.0))
DUPLICATED, ORTHOGONAL, BETWEEN = "duplicated neurons", "orthogonal codes", "in between"
_SAME, _APART, _SPLIT, _NORMAL = 0.9, 0.5, 2.0, 0.6745


@dataclass(frozen=True)
class FourClasses:
    """How the toy is trained and judged.

    The released code takes 21,000 iterations at a rate of 1e-4, and puts a softmax before a
    cross entropy that has one; the settings here are a tenth of its time, and the likelihood.

    Args:
        iterations: steps of Adam on the full batch.
        rate: its learning rate.
        double_softmax: train on the softmax of the softmax, as the released code does.
        examples: of every class, to learn from, and as many to judge by.
        hidden: units of the deterministic layers.
        draws: of the ensemble, and of each example's activations.
        shown: activations of every class that the file keeps.
        data_seed: draws the examples, which are the same for all seeds.
    """

    iterations: int = 2100
    rate: float = 1e-3
    double_softmax: bool = False
    examples: int = 500
    hidden: int = 100
    draws: int = 101
    shown: int = 200
    data_seed: int = 0


def four_classes(
    settings: FourClasses,
    out: str | Path,
    *,
    seeds: int = 8,
    progress: bool = False,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """Train the network with the seeds 0, 1, … that the file lacks, and judge it."""
    parts = {str(seed): partial(_one_seed, settings, seed, progress) for seed in range(seeds)}
    return StudyFile(out, "four classes", asdict(settings)).fill(parts, tell)


def _one_seed(settings: FourClasses, seed: int, progress: bool) -> dict[str, Any]:
    started = time.monotonic()
    train, test, labels = _data(settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _network(settings.hidden)
        _fit(model, train, labels, settings, progress, seed)
        judged = _judged(model, test, labels, settings)
    seconds = round(time.monotonic() - started, 1)
    return {"seed": seed, **judged, "seconds": seconds, **environment_facts()}


def _data(settings: FourClasses) -> tuple[Tensor, Tensor, Tensor]:
    """Return examples to learn from, examples to judge by, and the classes of either."""
    generator = torch.Generator().manual_seed(settings.data_seed)
    noise = torch.randn(2, len(CENTERS), settings.examples, 2, generator=generator)
    train, test = (torch.tensor(CENTERS).unsqueeze(1) + noise).flatten(1, 2)
    return train, test, torch.arange(len(CENTERS)).repeat_interleave(settings.examples)


def _network(hidden: int) -> nn.Module:
    """Return seven linear layers; the fifth has two outputs, biases and only variances."""
    sizes = (2, hidden, hidden, hidden, hidden)
    encoder: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        encoder += [nn.Linear(inputs, outputs), nn.LeakyReLU()]
    decoder = [nn.LeakyReLU(), nn.Linear(2, hidden), nn.LeakyReLU(), nn.Linear(hidden, 4)]
    parts: OrderedDict[str, nn.Module] = OrderedDict(
        encoder=nn.Sequential(*encoder),
        variance=nn.Linear(hidden, 2),
        decoder=nn.Sequential(*decoder),
    )
    return lb.convert(
        nn.Sequential(parts),
        lb.posteriors.ZeroMean(),
        lb.priors.LogUniform(),
        include=("variance",),
    )


def _fit(
    model: nn.Module, x: Tensor, y: Tensor, settings: FourClasses, progress: bool, seed: int
) -> None:
    """The KL of a zero-mean layer is constant, so that the likelihood is the ELBO."""
    optimizer = torch.optim.Adam(model.parameters(), settings.rate)
    for _ in track(range(settings.iterations), f"Seed {seed}", disable=not progress):
        outputs = model(x)
        loss = F.cross_entropy(outputs.softmax(-1) if settings.double_softmax else outputs, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def _judged(model: nn.Module, x: Tensor, y: Tensor, settings: FourClasses) -> dict[str, Any]:
    code = model.get_submodule("encoder")(x)
    variance, decoder = model.get_submodule("variance"), model.get_submodule("decoder")
    drawn = torch.stack([variance(code) for _ in range(settings.draws)])
    probs = decoder(drawn).softmax(-1)
    with lb.using(model, lb.estimators.mean):
        means = model(x)
    by_class = drawn.unflatten(1, (len(CENTERS), -1)).transpose(0, 1).flatten(1, 2)
    each = torch.randperm(by_class.shape[1])[: settings.shown]
    return {
        "accuracy": {
            "one sample": _share(probs.argmax(-1) == y),
            "ensemble": _share(probs.mean(0).argmax(-1) == y),
            "means": _share(means.argmax(-1) == y),
        },
        "deviations": rounded(by_class.std(1).T, 4),
        "activations": rounded(by_class[:, each].transpose(1, 2), 4),
    }


def tell_seed(seed: str, part: Mapping[str, Any]) -> None:
    """Print what a seed came to."""
    spreads = spreads_of(part)
    shares = ", ".join(f"{name} {100 * share:.1f}%" for name, share in part["accuracy"].items())
    correlation = f"correlation {correlation_of(spreads):.2f}"
    print(f"seed {seed}: {kind_of(spreads)} ({correlation}); {shares}; {part['seconds']:.0f} s")


def kind_of(spreads: Tensor) -> str:
    """Return which kind of solution the spreads of two neurons, by class, show.

    Either neuron must spread at least twice as much in one class as in another. Then the
    correlation r of the logarithms over the classes tells: neurons are duplicated if r ≥ 0.9, and
    each codes its own split if |r| ≤ 0.5. Everything else is in between: also r near −1, which is
    one split that both tell, with large and small exchanged.

    Example:
        >>> kind_of(torch.tensor([[9.0, 9.0, 1.0, 1.0], [9.0, 1.0, 9.0, 1.0]]))
        'orthogonal codes'
        >>> kind_of(torch.tensor([[1.0, 5.0, 20.0, 90.0], [0.2, 1.1, 4.0, 15.0]]))
        'duplicated neurons'
    """
    correlation = correlation_of(spreads)
    splits = bool((spreads.amax(1) >= _SPLIT * spreads.amin(1)).all())
    if splits and correlation >= _SAME:
        return DUPLICATED
    return ORTHOGONAL if splits and abs(correlation) <= _APART else BETWEEN


def spreads_of(part: Mapping[str, Any]) -> Tensor:
    """Spreads of the two neurons by class, ``[2, 4]``, from the activations that a seed has kept.

    The median distance from the median, over 0.6745: the standard deviation of a normal law. Unlike
    the standard deviation of the activations it is not set by the few examples with the largest.
    """
    activations = torch.tensor(part["activations"])
    centered = activations - activations.median(2, keepdim=True).values
    return (centered.abs().median(2).values / _NORMAL).T


def correlation_of(spreads: Tensor) -> float:
    """Of the logarithms of two neurons' spreads over classes; zero if one spreads alike in all."""
    logs = spreads.double().clamp_min(1e-30).log()
    first, second = F.normalize(logs - logs.mean(1, keepdim=True), dim=1)
    return round(float(first @ second), 4)


def _share(right: Tensor) -> float:
    return round(float(right.double().mean()), 5)


def seeds_table(study: Mapping[str, Any]) -> str:
    """A Markdown table with a line for every seed, and the spreads of both neurons by class."""
    header = ["seed", "kind", "correlation", "one sample", "ensemble", "means"]
    header += ["neuron 1", "neuron 2"]
    lines = []
    for seed, part in study["parts"].items():
        spreads = spreads_of(part)
        shares = [f"{100 * share:.1f}%" for share in part["accuracy"].values()]
        neurons = [
            ", ".join(f"{spread:.2g}" if spread < 10 else f"{spread:.0f}" for spread in neuron)
            for neuron in spreads.tolist()
        ]
        told = [kind_of(spreads), f"{correlation_of(spreads):.2f}"]
        lines.append([seed, *told, *shares, *neurons])
    return markdown_table(header, lines, text=len(header))


def draw_activations(study: Mapping[str, Any]) -> bytes:
    """Return activations of the two neurons by class: the first seed of each kind, a panel each."""
    firsts: dict[str, Mapping[str, Any]] = {}
    for part in study["parts"].values():
        firsts.setdefault(kind_of(spreads_of(part)), part)
    panels = {
        f"{kind} (seed {firsts[kind]['seed']})": {
            f"class {center}": torch.tensor(points).T
            for center, points in zip(_NAMES, firsts[kind]["activations"], strict=True)
        }
        for kind in (DUPLICATED, ORTHOGONAL, BETWEEN)
        if kind in firsts
    }
    return clouds(panels, "neuron 1", "neuron 2")


_NAMES = tuple(f"({x:.0f}, {y:.0f})" for x, y in CENTERS)
