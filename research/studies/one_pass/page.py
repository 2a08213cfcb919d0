"""Writes docs/one_pass.md from results/one_pass.json and results/bench/one_pass.json."""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from leanbayes.saving.files import replace_file
from research.publishing.cells import mean_with_error
from research.publishing.pages import page_of
from research.publishing.tables import markdown_table
from research.studies.one_pass.study import ONE_PASS, REFERENCE, SUQ, TASKS

Part = Mapping[str, Any]
Rows = dict[tuple[str, str], dict[str, dict[int, Part]]]
"""Parts by task and posterior, then by method and seed."""

BOUNDS = {"nll": ("NLL", 0.01), "ece": ("ECE", 0.005), "auroc": ("AUROC", 0.01)}
"""Title and largest difference that was asked for; that of the NLL is relative."""
_HEADER = (
    *("network", "posterior", "seeds", "NLL, mean weights", "NLL, 200 samples", "NLL, one pass"),
    *("Δ NLL (%)", "Δ ECE", "Δ AUROC"),
)


def write(study: Mapping[str, Any], bench: Mapping[str, Any] | None, docs: Path) -> Path:
    """Write the page."""
    return replace_file(docs / "one_pass.md", text(study, bench).encode())


def rows_of(study: Mapping[str, Any]) -> Rows:
    """Group parts; only seeds that have both methods count."""
    found: Rows = {}
    for part in study["parts"].values():
        methods = found.setdefault((part["task"], part["posterior"]), {})
        methods.setdefault(part["method"], {})[part["seed"]] = part
    complete: Rows = {}
    for row, methods in found.items():
        both = methods.get(ONE_PASS, {}).keys() & methods.get(REFERENCE, {}).keys()
        if both:
            complete[row] = {
                name: {seed: parts[seed] for seed in sorted(both & parts.keys())}
                for name, parts in methods.items()
            }
    return complete


def differences(methods: Mapping[str, Mapping[int, Part]], metric: str) -> list[float]:
    """Return one pass minus 200 samples, seed by seed; of the NLL as a share of it."""
    pairs = [
        (methods[ONE_PASS][s][metric], methods[REFERENCE][s][metric]) for s in methods[REFERENCE]
    ]
    return [(a - b) / abs(b) if metric == "nll" else a - b for a, b in pairs]


def _mean(methods: Mapping[str, Mapping[int, Part]], method: str, metric: str) -> str:
    return f"{fmean(part[metric] for part in methods[method].values()):.4f}"


def _table(rows: Rows) -> str:
    lines = []
    for (task, posterior), methods in rows.items():
        numbers = [_mean(methods, name, "nll") for name in ("mean weights", REFERENCE, ONE_PASS)]
        apart = [
            mean_with_error(differences(methods, metric), digits, factor).replace("-", "−")
            for metric, digits, factor in (("nll", 2, 100), ("ece", 4, 1), ("auroc", 4, 1))
        ]
        seeds = str(len(methods[REFERENCE]))
        lines.append([TASKS[task].title, posterior, seeds, *numbers, *apart])
    return markdown_table(_HEADER, lines, text=2)


def _verdicts(rows: Rows) -> str:
    """Return which rows are within each bound, by their mean over seeds."""
    lines = []
    for metric, (title, bound) in BOUNDS.items():
        off = {
            row: abs(fmean(differences(methods, metric)))
            for row, methods in rows.items()
            if abs(fmean(differences(methods, metric))) > bound
        }
        limit = f"{100 * bound:g}%" if metric == "nll" else f"{bound:g}"
        line = (
            f"{title} within {limit} of 200 samples in {len(rows) - len(off)} of {len(rows)} rows"
        )
        if off:
            worst = max(off, key=lambda row: off[row])
            size = f"{100 * off[worst]:.1f}%" if metric == "nll" else f"{off[worst]:.3f}"
            line += f"; furthest is {TASKS[worst[0]].title} with {worst[1]}, {size} off"
        lines.append(f"- {line}.")
    return "\n".join(lines)


def _beside(rows: Rows) -> str:
    """Return the rows of the package suq, where it was installed."""
    lines = []
    for (task, _), methods in rows.items():
        for method in (REFERENCE, ONE_PASS, SUQ) if SUQ in methods else ():
            numbers = [_mean(methods, method, metric) for metric in BOUNDS]
            lines.append([TASKS[task].title, method, str(len(methods[method])), *numbers])
    titles = [title for title, _ in BOUNDS.values()]
    return markdown_table(["network", "prediction", "seeds", *titles], lines, text=2)


def _claim(bench: Mapping[str, Any] | None) -> str:
    """Return the costs of the default posterior, in one sentence."""
    if bench is None:
        return ""
    from research.benchmarks.one_pass import NETWORKS, POSTERIORS, SAMPLED, SAMPLES

    method = f"{next(iter(POSTERIORS))}, one pass"
    costs = bench["branches"]["native"]["setups"].items()
    of_pass, of_samples = (
        ", ".join(f"{found[of]['median']:.1f} ({NETWORKS[name][2]})" for name, found in costs)
        for of in (method, SAMPLED)
    )
    return (
        f"- Cost of one pass of k-tied 2, in passes of the plain network: {of_pass}; "
        f"of {SAMPLES} samples: {of_samples}."
    )


def _within(rows: Rows) -> int:
    """Return how many rows are within all bounds."""
    return sum(
        all(abs(fmean(differences(methods, m))) <= limit for m, (_, limit) in BOUNDS.items())
        for methods in rows.values()
    )


def _costs(bench: Mapping[str, Any]) -> str:
    from research.benchmarks.one_pass import NETWORKS  # imports the libraries that are measured
    from research.benchmarks.page import cell

    (branch,) = (found for name, found in bench["branches"].items() if name == "native")
    setups = branch["setups"]
    methods = list(next(iter(setups.values())))
    lines = [[m, *(cell(costs.get(m)) for costs in setups.values())] for m in methods]
    trial = "**A trial on a busy machine.** " if bench["config"]["quick"] else ""
    return (
        f"{trial}Passes of the plain network over the same examples, medians and quartiles of "
        "interleaved turns.\n\n"
        + markdown_table(["prediction", *(NETWORKS[name][2] for name in setups)], lines, text=1)
    )


def text(study: Mapping[str, Any], bench: Mapping[str, Any] | None) -> str:
    """Return the whole page."""
    rows = rows_of(study)
    measured = "`python -m research bench run --only one_pass` measures it."
    return page_of(
        __file__,
        summary="\n".join(filter(None, (_verdicts(rows), _claim(bench)))),
        within=_within(rows),
        rows=len(rows),
        table=_table(rows),
        beside=_beside(rows),
        costs=_costs(bench) if bench else measured,
        settings=study["settings"],
        minutes=sum(part["duration"] for part in study["parts"].values()) / 60,
    )
