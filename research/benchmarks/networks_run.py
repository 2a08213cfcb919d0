"""Steps, predictions and memory on the networks that people have, beside other libraries."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from research.benchmarks.methods import (
    DATA_SIZE,
    PRIOR,
    Builder,
    Works,
    mean_of_passes,
    ours,
    plain,
)
from research.benchmarks.networks import Setup
from research.benchmarks.peers import PACKAGES, available
from research.benchmarks.real_networks import LARGE, NETWORKS, README
from research.benchmarks.step import Options
from research.measuring.harness import Work, as_json, measure, peak_memory
from research.measuring.machine import facts

SAMPLES = 20
FEW = 4
"""Samples of a prediction of the large transformer."""
LEARNED = lb.priors.Normal(0.3, learn="layer")
FACTORS = lb.priors.Normal(0.1, loc=1.0)


def mc_dropout(net: nn.Sequential) -> Works:
    """Dropout of a tenth where the network has dropout layers; predictions draw it in eval mode."""
    for layer in net.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.1
    works = plain(net)

    return works._replace(predict=mean_of_passes(lb.mc_dropout(net, inplace=True)))


METHODS: dict[str, Builder] = {
    "k-tied 2": ours(lb.KTied(2)),
    "mean field": ours(lb.MeanField()),
    "rank-1, 1 member": ours(lb.Rank1(1), FACTORS),
    "matrix normal, low rank": ours(lb.posteriors.MatrixNormal(rank=2)),
    "MC dropout": mc_dropout,
}
HEAD_TO_HEAD = ("k-tied 2", "mean field")
"""Measured in the process of the peers too."""
LEARNED_SCALES: dict[str, Builder] = {
    "k-tied 2, default prior": ours(lb.KTied(2), lb.priors.He()),
    "mean field, default prior": ours(lb.MeanField(), lb.priors.He()),
    "k-tied 2, learned prior scale": ours(lb.KTied(2), LEARNED),
    "mean field, learned prior scale": ours(lb.MeanField(), LEARNED),
}
MIXTURE: dict[str, Builder] = {
    "rank-1, 4 members, batch split": ours(lb.Rank1(4), FACTORS, split=True)
}


PARTS = (*NETWORKS, "readme", "mixture", "large")
"""What is measured in separate processes, so that a stopped run resumes."""


def run(options: Options) -> dict[str, Any]:
    """One part of the networks, or all of them."""
    found: dict[str, Any] = {**facts(*PACKAGES.values()), "samples": SAMPLES}
    return merged([found, *(_part(name, options) for name in options.chosen(PARTS))])


def merged(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge what parts of a benchmark found; dictionaries of the same name are united."""
    together: dict[str, Any] = {}
    for part in found:
        for name, value in part.items():
            is_dict = isinstance(value, dict) and isinstance(together.get(name), dict)
            together[name] = {**together[name], **value} if is_dict else value
    return together


def _part(name: str, options: Options) -> dict[str, Any]:
    """Return costs of a network or of other settings."""
    if name == "large":
        return {"large": large(options)}
    failures: dict[str, str] = {}
    if name == "readme":
        steps, passes = _costs(README, LEARNED_SCALES, options, failures)
    elif name == "mixture":
        setup = replace(README, batch=1024)
        steps, passes = _costs(setup, MIXTURE, options, failures, samples=1)
    else:
        peers = {**available(), **{of: METHODS[of] for of in HEAD_TO_HEAD}}
        methods = peers if options.peers else METHODS
        steps, passes = _costs(NETWORKS[name], methods, options, failures)
    found = {"setups": {name: steps}, "predictions": {name: passes}, "failures": {name: failures}}
    return {key: value for key, value in found.items() if value[name]}


def _costs(
    setup: Setup,
    methods: Mapping[str, Builder],
    options: Options,
    failures: dict[str, str],
    samples: int = SAMPLES,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Steps and predictions of one network; what a method cannot do is noted, not raised."""
    torch.manual_seed(0)
    x, y = setup.data(4 if options.quick else setup.batch)
    base, works = plain(setup.fresh()), dict[str, Works]()
    for name, build in methods.items():
        torch.manual_seed(0)
        try:
            made = build(setup.fresh())
            made.step(x, y)
            made.predict(x, 1)
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
            print(f"{setup.title}: {name} cannot run: {failures[name]}", file=sys.stderr)
        else:
            works[name] = made
    few = {"most": 2, **options.timing, "rounds": max(2, options.rounds // 3)}
    steps = _measured(lambda: base.step(x, y), works, lambda w: lambda: w.step(x, y), few)
    for network in (base, *works.values()):
        network.model.eval()
    samples = min(samples, 2) if options.quick else samples
    few |= {"rounds": max(2, options.rounds // 6), "repeats": 1}
    passes = _measured(
        lambda: base.predict(x, 1), works, lambda w: lambda: w.predict(x, samples), few
    )
    return steps, passes


def _measured(
    base: Work,
    works: Mapping[str, Works],
    work_of: Callable[[Works], Work],
    timing: Mapping[str, Any],
) -> dict[str, Any]:
    gc.collect()
    return as_json(measure(base, {name: work_of(w) for name, w in works.items()}, **timing))


def large(options: Options) -> dict[str, Any]:
    """Convert, train and ask a transformer of 100 million parameters: ratios of times and bytes."""
    setup = replace(NETWORKS["transformer"], batch=2) if options.quick else LARGE
    torch.manual_seed(0)
    (x, y), net = setup.data(), setup.fresh()
    parameters = sum(p.numel() for p in net.parameters())
    converting = peak_memory(lambda: lb.convert(net, lb.KTied(2), PRIOR))
    base, works = plain(net), ours(lb.KTied(2))(setup.fresh())
    model = works.model

    def kl() -> None:
        (lb.kl(model) / DATA_SIZE).backward()

    timing = {**options.timing, "rounds": max(2, options.rounds // 3)}
    times = {"training step": lambda: works.step(x, y), "KL and its gradient": kl}
    costs = measure(lambda: base.step(x, y), times, **timing)
    asked = {f"prediction, {FEW} samples": lambda: works.predict(x, FEW)}
    passes = measure(lambda: base.predict(x, 1), asked, **{**timing, "rounds": 2, "repeats": 1})
    return {
        "parameters": parameters,
        "times": as_json({**costs, **passes}),
        "memory": {
            "conversion, over the weights": converting / (4 * parameters),
            "training step": _held(works, x, y) / _held(base, x, y),
        },
    }


def _held(works: Works, x: Tensor, y: Tensor) -> int:
    """Bytes of parameters, gradients and Adam's moments, and the most of a step beside them."""
    standing = sum(16 * p.numel() for p in works.model.parameters())
    return standing + peak_memory(lambda: works.step(x, y))
