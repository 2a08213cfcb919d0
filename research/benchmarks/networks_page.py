"""The section of docs/performance.md about networks that people have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from research.benchmarks.networks_run import HEAD_TO_HEAD
from research.benchmarks.peers import PACKAGES
from research.benchmarks.real_networks import NETWORKS
from research.publishing.tables import markdown_table

Cost = Mapping[str, Any]
OURS = HEAD_TO_HEAD[0]


def section(result: Mapping[str, Any], cell: Callable[[Cost | None], str]) -> list[str]:
    """Tables of steps and predictions by network, of other settings and of a large transformer.

    Args:
        result: the file of the benchmark.
        cell: shows a cost.
    """
    branches = result["branches"]
    native, peers = branches["native"], branches.get("peers", {})
    return [
        "## Networks people have",
        "ResNet-20 for images of 32 × 32; an encoder with an embedding; an LSTM with an embedding; "
        "dense blocks that act on each token of 512 units (16 sequences of 64). Tokens are as "
        "frequent as words: the frequency falls as one over the rank among 10,000. A training "
        "step, in steps of the plain network:",
        _by_network("setups", native, peers, cell),
        f"A prediction of {native['samples']} samples for the same batch, in passes of the plain "
        "network in eval mode:",
        _by_network("predictions", native, peers, cell),
        " ".join((*_failures(branches), *_ahead(peers))),
        "Other settings on the MLP 784-400-400-10:",
        _others(native, cell),
        _large(native["large"], cell),
    ]


def say(result: Mapping[str, Any]) -> list[str]:
    """What the default costs on these networks, in one sentence."""
    native = result["branches"]["native"]
    parts = []
    for name, setup in NETWORKS.items():
        step, passes = (native[of][name][OURS]["median"] for of in ("setups", "predictions"))
        parts.append(f"{step:.2f} and {passes:.1f} ({setup.title.partition(',')[0]})")
    return [
        f"A step of k-tied 2 in plain steps, and {native['samples']} samples in plain passes: "
        f"{', '.join(parts)}."
    ]


def _by_network(
    of: str,
    native: Mapping[str, Any],
    peers: Mapping[str, Any],
    cell: Callable[[Cost | None], str],
) -> str:
    ours = dict.fromkeys(method for name in NETWORKS for method in native[of][name])
    rows = [[m, *(cell(native[of][name].get(m)) for name in NETWORKS)] for m in ours]
    theirs: Mapping[str, Any] = peers.get(of, {})
    names = dict.fromkeys(m for name in NETWORKS for m in theirs.get(name, {}))
    for method in sorted(names, key=lambda m: m not in PACKAGES):
        title = f"{method} (peer)" if method in PACKAGES else f"{method}, in the peers' process"
        rows.append([title, *(cell(theirs.get(name, {}).get(method)) for name in NETWORKS)])
    return markdown_table(("method", *(s.title for s in NETWORKS.values())), rows, text=1)


def _failures(branches: Mapping[str, Any]) -> list[str]:
    """Which methods cannot run which network, with the error of the first."""
    found = [
        f"{method} on {NETWORKS[name].title.partition(',')[0]} (`{error}`)"
        for branch in branches.values()
        for name, failed in branch.get("failures", {}).items()
        for method, error in failed.items()
    ]
    return [f"These raise errors: {'; '.join(found)}."] if found else []


def _ahead(peers: Mapping[str, Any]) -> list[str]:
    """Which peers need less than the default in their process, by more than the spread."""
    found = [
        f"{method}, {what} on {NETWORKS[name].title.partition(',')[0]} "
        f"({cost['median']:.2f} against {costs[OURS]['median']:.2f})"
        for of, what in (("setups", "step"), ("predictions", "prediction"))
        for name, costs in peers.get(of, {}).items()
        for method, cost in costs.items()
        if method in PACKAGES and cost["high"] < costs[OURS]["low"]
    ]
    if not peers:
        return []
    if not found:
        return [f"No peer is ahead of {OURS} beyond the spread."]
    return [f"Ahead of {OURS} beyond the spread, in one process: {'; '.join(found)}."]


def _others(native: Mapping[str, Any], cell: Callable[[Cost | None], str]) -> str:
    steps, passes = native["setups"], native["predictions"]
    rows: list[Sequence[str]] = []
    for part, batch, draws in (("readme", 128, native["samples"]), ("mixture", 1024, 1)):
        for method, cost in steps[part].items():
            predicted = passes.get(part, {}).get(method)
            rows.append([method, str(batch), cell(cost), str(draws), cell(predicted)])
    header = ("method", "batch", "step", "samples of each member", "prediction")
    return markdown_table(header, rows, text=1)


def _large(large: Mapping[str, Any], cell: Callable[[Cost | None], str]) -> str:
    times = [f"{name} {cell(cost)}" for name, cost in large["times"].items()]
    memory = [f"{name} {ratio:.2f}" for name, ratio in large["memory"].items()]
    return (
        f"A transformer of {large['parameters'] / 1e6:.0f} million parameters with k-tied 2, two "
        f"sequences of 32 tokens in a batch, times in those of the plain network: "
        f"{', '.join(times)}. Most memory, in that of the plain network: {', '.join(memory)}."
    )
