"""How benchmarks were measured: turns, processes and the machine, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Result = Mapping[str, Any]
BUSY = "†"


def how(found: Mapping[str, Result]) -> str:
    """Return the last section of the page."""
    run = {k: v for k, v in found.items() if "branches" in v}
    lines = [
        "`make bench` measures everything and writes this page; the numbers are in "
        "[results/bench](../results/bench). [Scaling](scaling.md) has what follows for large "
        "transformers, on paper.",
        "- A method and the plain network take turns in one process, and a ratio is that of one "
        "turn: whatever slows the machine slows both. Each runs twice in a turn; the second run "
        "counts.",
        "- Steps and predictions run in several processes, because timings depend on "
        "memory layout: a median is that of the medians of processes, quartiles are those of all "
        "turns.",
        "- Before and after every turn a small fixed workload is timed. Where it is slow, "
        f"something else was running: the turn is discarded and taken again. {BUSY} marks a median "
        "that had to be taken from a busy machine.",
        "- Peers run in a separate virtual environment with the same torch, the same plain "
        "network and this leanbayes, each as its documentation has it.",
    ]
    for name, result in sorted(run.items()):
        lines.append(f"- {name}: {_facts(result)}")
    return lines[0] + "\n\n" + "\n".join(lines[1:])


def _facts(result: Result) -> str:
    branch, settings = result["branches"]["native"], result["config"]
    machine, versions = branch["machine"], branch["versions"]
    memory = "kept by the process" if settings.get("keep_memory") else "as the system has it"
    return (
        f"{_rounds(result)}{_processes(settings)}, {settings['clock']} clock, "
        f"threads: {machine['threads']} of {machine['cores']} cores ({machine['processor']}, "
        f"{machine['system']} {machine['architecture']}), Python {versions['python']}, "
        f"torch {versions['torch']}, leanbayes {versions['leanbayes']}, freed memory {memory}, "
        f"{result['minutes']} minutes."
    )


def _rounds(result: Result) -> str:
    """Return the turns that count, fewest and most of all costs, over all processes."""
    kept = sorted(_kept(result["branches"]))
    if not kept:
        return f"{result['config']['rounds']} rounds asked for"
    return f"{kept[0]} to {kept[-1]} turns kept" if kept[0] < kept[-1] else f"{kept[0]} turns kept"


def _kept(found: Any) -> Iterator[int]:
    """``kept`` of every cost in a result, however deep."""
    if isinstance(found, Mapping):
        if "median" in found and "kept" in found:
            yield found["kept"]
        for part in found.values():
            yield from _kept(part)
    elif isinstance(found, list):
        for part in found:
            yield from _kept(part)


def _processes(settings: Mapping[str, Any]) -> str:
    count = settings.get("processes", 1)
    return f" of {count} processes together" if count > 1 else ""
