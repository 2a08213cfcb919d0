"""Blocks of docs/trust.md: tables of the long checks, from results/trust."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from research.publishing.pages import Makers
from research.publishing.paper import ROOT
from research.publishing.tables import markdown_table
from research.trust.cifar10_hmc import PUBLISHED

Part = Mapping[str, Any]

HMC_KEYS = ("agreement", "total_variation", "accuracy")


def trust_makers() -> Makers:
    """What makes the blocks, by kind; the argument is a file of results."""
    makers = {
        "calibration": calibration_table,
        "gold-chains": chains_table,
        "gold": gold_tables,
        "mutants": mutants_table,
        "survivors": survivors_table,
        "faults": faults_table,
        "properties": properties_table,
        "fuzz": fuzz_table,
        "cifar10-hmc": hmc_table,
        "coverage": coverage_table,
    }
    return {kind: lambda name, make=make: make(_read(name)) for kind, make in makers.items()}  # type: ignore[misc]


def _read(name: str) -> dict[str, Any]:
    path: Path = ROOT / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def calibration_table(study: Mapping[str, Any]) -> str:
    """Spread of ranks per family and model, and whether they are uniform."""
    rows: dict[str, dict[str, Part]] = defaultdict(dict)
    for name, part in study["parts"].items():
        model, family = name.split(" | ")
        rows[family][model] = part
    models = list(dict.fromkeys(name.split(" | ")[0] for name in study["parts"]))
    header = ["posterior", *models]
    body = (
        [family, *(_spread(by_model.get(m)) for m in models)] for family, by_model in rows.items()
    )
    settings = study["settings"]
    said = (
        f"{settings['simulations']} simulated data sets of {settings['examples']} examples per "
        f"cell, {settings['draws']} draws each, seed {settings['seed']}."
    )
    return f"{said}\n\n{markdown_table(header, body, text=1)}"


def _spread(part: Part | None) -> str:
    if part is None:
        return "–"
    return f"{part['spread']:.2f}{'' if part['uniform'] else ' (not uniform)'}"


def chains_table(study: Mapping[str, Any]) -> str:
    """How well the chains of every problem mixed."""
    header = ["problem", "median R̂", "95% of R̂ below", "largest R̂", "effective draws, median",
              "divergences"]  # fmt: skip
    rows = (
        [
            name,
            *(f"{part[key]:.3f}" for key in ("rhat_median", "rhat_95", "rhat_max")),
            f"{part['effective_draws_median']:,.0f}",
            str(part["divergences"]),
        ]
        for name, part in study["parts"].items()
    )
    s = study["settings"]
    length = f"{s['chains']} chains of {s['draws']} draws after {s['warmup']} steps"
    table = markdown_table(header, rows, text=1)
    return f"{length}, seed {s['seed']}.\n\n{table}"


def gold_tables(study: Mapping[str, Any]) -> str:
    """One table per problem: distance of every method from the gold posterior."""
    problems: dict[str, dict[str, list[Part]]] = defaultdict(lambda: defaultdict(list))
    for name, part in study.get("parts", {}).items():
        problem, method = name.split(" | ")[:2]
        problems[problem][method].append(part)
    return "\n\n".join(_gold_table(name, rows) for name, rows in problems.items())


def _gold_table(problem: str, methods: Mapping[str, list[Part]]) -> str:
    classes = any("agreement" in part for parts in methods.values() for part in parts)
    keys = [*["agreement"] * classes, "total_variation", "mean_distance", "std_ratio", "nll"]
    header = ["method", *["agreement (%)"] * classes, "total variation", "distance of means",
              "ratio of standard deviations", "NLL"]  # fmt: skip
    rows = [[method, *(_mean(parts, key) for key in keys)] for method, parts in methods.items()]
    gold = next(iter(methods.values()))[0]["gold_nll"]
    others = [len(parts) for name, parts in methods.items() if "half" not in name]
    seeds = f"{min(others)} to {max(others)}" if others and min(others) != max(others) else (
        str(min(others)) if others else "no"
    )  # fmt: skip
    near = sorted((m for m in methods if "half" not in m), key=lambda m: _value(methods[m]))
    said = (
        f"NUTS has an NLL of {gold:.3f}. Seeds per method: {seeds}. Nearest by total variation: "
        f"{', '.join(near[:3])}."
    )
    title, table = problem[:1].upper() + problem[1:], markdown_table(header, rows, text=1)
    return f"### {title}\n\n{said}\n\n{table}"


def _value(parts: list[Part]) -> float:
    return float(sum(part["total_variation"] for part in parts)) / len(parts)


def _mean(parts: Iterable[Part], key: str) -> str:
    values = [part[key] for part in parts if key in part]
    if not values:
        return "–"
    mean = sum(values) / len(values)
    return f"{100 * mean:.1f}" if key == "agreement" else f"{mean:.3f}"


def _recorded(study: Mapping[str, Any], parts: Iterable[Part]) -> str:
    """Seed, duration and revisions of a long run, as far as they were recorded."""
    parts = list(parts)
    minutes = sum(part.get("duration", 0) for part in parts) / 60
    revisions = dict.fromkeys(f"`{part['revision'][:7]}`" for part in parts if part.get("revision"))
    seed = study.get("settings", {}).get("seed", 0)
    of = f", revision {', '.join(revisions)}" if revisions else ""
    return f"Seed {seed}, {minutes:.0f} minutes{of}."


def mutants_table(study: Mapping[str, Any]) -> str:
    """Noticed errors per folder of the package; those that change nothing count apart."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for part in study.get("parts", {}).values():
        changes = not part.get("reason", "").startswith("equivalent")
        verdict = part["verdict"] if changes or part["verdict"] == "killed" else "equivalent"
        counts[_folder(part["file"])][verdict] += 1
    total = sum(counts.values(), Counter[str]())
    rows = [*sorted(counts.items()), ("all", total)]
    header = ["folder", "planted", "noticed", "share (%)", "equivalent", "share of the others (%)",
              "never called by its tests"]  # fmt: skip
    table = markdown_table(header, (_mutants_row(name, c) for name, c in rows), text=1)
    return f"{_recorded(study, study.get('runs', ()))}\n\n{table}"


def _folder(file: str) -> str:
    folder = file.partition("/")[0]
    return folder if file.endswith(".py") else f"{folder} (C++)"


def _mutants_row(name: str, c: Counter[str]) -> list[str]:
    others = c["killed"] + c["survived"] + c["uncovered"]
    planted = others + c["equivalent"]
    shares = [f"{100 * c['killed'] / of:.1f}" if of else "–" for of in (planted, others)]
    noticed, same, unseen = (str(c[key]) for key in ("killed", "equivalent", "uncovered"))
    return [name, str(planted), noticed, shares[0], same, shares[1], unseen]


def survivors_table(study: Mapping[str, Any]) -> str:
    """Every mutant that no test noticed, with the reason where one was found."""
    rows = [
        [
            f"{part['file']}:{part['at']}",
            f"`{_cell(part['before'])}`",
            f"`{_cell(part['after'])}`",
            part.get("reason", "to be looked at"),
        ]
        for part in study.get("parts", {}).values()
        if part["verdict"] in {"survived", "uncovered"}
    ]
    return markdown_table(["place", "before", "planted", "reason"], rows) if rows else "None."


def _cell(source: str) -> str:
    line = " ".join(source.split()).replace("|", "∣").replace("`", "'")
    return line if len(line) <= 60 else f"{line[:57]}…"


def coverage_table(study: Mapping[str, Any]) -> str:
    """Share of lines and branches that the suite runs, per folder of the package."""
    if not study:
        return "Coverage was not measured."
    parts = study["parts"]
    keys = ("num_statements", "missing_lines", "num_branches", "missing_branches")
    every = {key: sum(part[key] for part in parts.values()) for key in keys}
    core = {key: every[key] - parts.get("lab", {}).get(key, 0) for key in keys}
    rows = [*sorted(parts.items()), ("all but lab", core), ("all", every)]
    header = ["folder", "lines", "run (%)", "branches", "taken (%)"]
    table = markdown_table(header, (_coverage_row(*row) for row in rows), text=1)
    said = f"Measured in {study['duration'] / 60:.0f} minutes, revision `{study['revision'][:7]}`."
    return f"{said}\n\n{table}"


def _coverage_row(name: str, part: Part) -> list[str]:
    row = [name]
    for of, missed in (("num_statements", "missing_lines"), ("num_branches", "missing_branches")):
        share = f"{100 - 100 * part[missed] / part[of]:.1f}" if part[of] else "–"
        row += [f"{part[of]:,}", share]
    return row


def faults_table(study: Mapping[str, Any]) -> str:
    """Cases per command and fault, and those that ended otherwise."""
    parts = study.get("parts", {}).values()
    commands = list(dict.fromkeys(part["command"] for part in parts))
    kinds = list(dict.fromkeys(part["fault"] for part in parts))
    count = Counter((part["fault"], part["command"]) for part in parts)
    rows = ([kind, *(str(count[kind, c] or "–") for c in commands)] for kind in kinds)
    wrong = [f"{p['command']}, {p['fault']}: {p['problem']}" for p in parts if p["problem"]]
    said = f"{len(list(parts))} cases, {len(wrong)} of which ended otherwise. "
    said += _recorded(study, parts)
    listed = "".join(f"\n- {' '.join(each.split())}" for each in wrong)
    return f"{said}\n{listed}\n{markdown_table(['fault', *commands], rows, text=1)}"


def properties_table(study: Mapping[str, Any]) -> str:
    """How many examples of every property the long run tried."""
    if not study:
        return "The long run was not recorded."
    parts = study["parts"]
    failed = [
        f"{_title(name)}: {_cell(part['problem'])}"
        for name, part in parts.items()
        if not part["passed"]
    ]
    total = sum(part["examples"] for part in parts.values())
    minutes = sum(part["duration"] for part in parts.values()) / 60
    said = (
        f"{total:,} examples of {len(parts)} properties with seed {study['settings']['seed']}, in "
        f"{minutes:.0f} minutes; {len(failed) or 'none'} of the properties failed."
    )
    rows = ([_title(name), f"{part['examples']:,}"] for name, part in parts.items())
    listed = "".join(f"\n- {' '.join(each.split())}" for each in failed)
    return f"{said}\n{listed}\n{markdown_table(['property', 'examples'], rows, text=1)}"


def _title(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def fuzz_table(study: Mapping[str, Any]) -> str:
    """Mutated files per kind, and findings."""
    if not study:
        return "The long run was not recorded."
    kinds: dict[str, list[Part]] = defaultdict(list)
    for name, part in study["parts"].items():
        kinds[name.partition(" | ")[0]].append(part)
    rows = [_fuzz_row(name, parts) for name, parts in kinds.items()]
    rows.append(_fuzz_row("all", [*study["parts"].values()]))
    header = ["files", "mutations", "read all the same", "findings", "slowest (ms)"]
    said = _recorded(study, study["parts"].values())
    return f"{said}\n\n{markdown_table(header, rows, text=1)}"


def _fuzz_row(name: str, parts: list[Part]) -> list[str]:
    tried, accepted = (sum(part[key] for part in parts) for key in ("mutations", "accepted"))
    findings = sum(len(part["findings"]) for part in parts)
    slowest = max(part["slowest"] for part in parts)
    return [name, f"{tried:,}", f"{accepted:,}", str(findings), f"{1000 * slowest:.0f}"]


def hmc_table(study: Mapping[str, Any]) -> str:
    """CIFAR-10 runs against HMC, beside published ones."""
    parts = study.get("parts", {})
    rows = [[name, *(f"{part[k]:.3f}" for k in HMC_KEYS)] for name, part in parts.items()]
    rows += [
        [f"{name} (Izmailov et al., 2021)", *(f"{value:.3f}" for value in values), "–"]
        for name, values in PUBLISHED.items()
    ]
    table = markdown_table(["run", "agreement", "total variation", "accuracy"], rows, text=1)
    if parts:
        return table
    return (
        "No run of leanbayes was compared yet, since archived results have no predictions. "
        "`python -m research trust cifar10-hmc RUN` needs the folder of a finished CIFAR-10 run "
        f"with its checkpoint.\n\n{table}"
    )
