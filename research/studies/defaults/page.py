"""Tables of docs/train_well.md from results/defaults.json."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from research.publishing.pages import Makers
from research.publishing.tables import markdown_table
from research.studies.defaults.runs import (
    DROPOUT,
    PLAIN,
    RECOMMENDED,
    BySeed,
    Difference,
    Rule,
    Study,
    difference,
    dropout_rate,
    gaps,
    methods,
    rules,
    tested_pairs,
    value,
)

_COMPARED = {"quality": 2, "nll": 3, "calibration": 3}
"""What is compared, and the decimal places of its means."""


def makers(study: Study) -> Makers:
    """Return what makes every block."""
    return {
        "defaults-found": lambda _: found(study),
        "defaults-undecided": lambda _: undecided(study),
        "defaults": lambda rows: table(study, rows),
        "defaults-tried": lambda _: tried(study),
        "defaults-decay": lambda _: decay(study),
        "defaults-tasks": lambda _: tasks(study),
    }


def _title(study: Study, task: str) -> str:
    return str(study["settings"]["tasks"][task]["title"])


def table(study: Study, rows: str) -> str:
    """Return every task and method, and differences from the plain network paired by seed."""
    lines = []
    for task in study["settings"]["tasks"]:
        of_task = methods(study, task, rows)
        if RECOMMENDED not in of_task:
            continue
        for name, seeds in of_task.items():
            title = f"{name} {dropout_rate(study, task):g}" if name == DROPOUT else name
            lines.append([_title(study, task), title, *_scores(seeds), *_against(seeds, of_task)])
    header = ["task", "method", "seeds", "accuracy, % (RMSE)", "NLL", "calibration error"]
    differences = ["pairs", "Δ accuracy (RMSE)", "Δ NLL", "Δ calibration error"]
    return markdown_table([*header, *differences], lines)


def _scores(seeds: BySeed) -> list[str]:
    means = (
        f"{fmean(value(metrics, what) for metrics in seeds.values()):.{places}f}"
        for what, places in _COMPARED.items()
    )
    return [", ".join(map(str, sorted(seeds))), *means]


def _against(seeds: BySeed, of_task: Mapping[str, BySeed]) -> list[str]:
    plain = of_task[PLAIN]
    if seeds is plain:
        return ["", "", "", ""]
    found = [difference(gaps(seeds, plain, what)) for what in _COMPARED]
    return [str(found[0].pairs if found[0] else 0), *(str(each or "–") for each in found)]


def found(study: Study) -> str:
    """Return what the recommended rule gains and loses on test rows."""
    likelihoods, errors, quality = (
        list(tested_pairs(study, what)) for what in ("nll", "calibration", "quality")
    )
    classes = [task for task in study["settings"]["tasks"] if _has_classes(study, task)]
    worst, points = min((each for each in quality if each[0] in classes), key=lambda each: each[1])
    means = {task: fmean(g for t, g in quality if t == task) for task in dict(quality)}
    lowest = min((t for t in means if t in classes), key=lambda task: round(means[task], 4))
    dearest = max((t for t in means if t not in classes), key=lambda task: means[task])
    return "\n".join(
        [
            f"- On test rows, NLL is lower in {_better(likelihoods)} pairs of runs, and the "
            f"calibration error in {_better(errors)}.",
            f"- Accuracy falls by at most {-means[lowest]:.2f} points in the mean of a task. In "
            f"the worst pair it falls by {-points:.2f} points ({_title(study, worst)}).",
            f"- RMSE may rise: on {_title(study, dearest)} by "
            f"{_of(study, dearest, 'test', 'quality')}.",
            _against_dropout(study),
        ]
    )


def _has_classes(study: Study, task: str) -> bool:
    parts = study["parts"].values()
    return any("accuracy" in p.get("test", {}) for p in parts if p["task"] == task)


def _better(pairs: list[tuple[str, float]]) -> str:
    return f"{sum(gap < 0 for _, gap in pairs)} of {len(pairs)}"


def _against_dropout(study: Study) -> str:
    sides: dict[str, list[str]] = {"lower": [], "higher": [], "undecided": []}
    for task in study["settings"]["tasks"]:
        of_task = methods(study, task, "test")
        gap = difference(gaps(of_task.get(RECOMMENDED, {}), of_task.get(DROPOUT, {}), "nll"))
        if gap is not None:
            clear = gap.error is not None and abs(gap.mean) > 2 * gap.error
            side = ("lower" if gap.mean < 0 else "higher") if clear else "undecided"
            sides[side].append(f"{_title(study, task)} {gap}")
    said = "; ".join(f"{side}: {', '.join(found)}" for side, found in sides.items() if found)
    return f"- NLL beside MC dropout, by two standard errors, is {said}."


def _of(study: Study, task: str, rows: str, what: str) -> str:
    of_task = methods(study, task, rows)
    found = difference(gaps(of_task[RECOMMENDED], of_task[PLAIN], what))
    return _with_pairs(found).lstrip("+")


def _with_pairs(found: Difference | None) -> str:
    assert found is not None
    return f"{found} ({found.pairs} {'pairs' if found.pairs > 1 else 'pair'})"


def undecided(study: Study) -> str:
    """Return what the runs do not settle."""
    return "\n".join(
        [
            "- On validation rows the CNN only ties with the plain network: its NLL differs by "
            f"{_of(study, 'cnn', 'validation', 'nll')}. On test rows it differs by "
            f"{_of(study, 'cnn', 'test', 'nll')}.",
            "- The ResNet has few seeds. Its NLL differs by "
            f"{_of(study, 'resnet', 'validation', 'nll')} on validation rows and by "
            f"{_of(study, 'resnet', 'test', 'nll')} on test rows.",
            "- Accuracy on test rows differs, in points, on MLP 20k by "
            f"{_of(study, 'mlp20k', 'test', 'quality')}, on the CNN by "
            f"{_of(study, 'cnn', 'test', 'quality')}.",
        ]
    )


def tried(study: Study) -> str:
    """Return differences of validation NLL from the plain network, by rule and task."""
    all_rules = rules(study)
    shown = {rule: by_task for rule, by_task in all_rules.items() if by_task.keys() - {"mlp5k"}}
    names = list(study["settings"]["tasks"])
    lines = [
        [*_in_words(study, rule), *(_gap(study, task, by_task.get(task)) for task in names)]
        for rule, by_task in shown.items()
    ]
    header = ["prior", "KL weight", "first scale", *(_title(study, task) for task in names)]
    rest = [by_task["mlp5k"] for rule, by_task in all_rules.items() if rule not in shown]
    likelihoods = [fmean(value(m, "nll") for m in seeds.values()) for seeds in rest]
    others = (
        f"{len(rest)} other rules were tried on MLP 5k alone. "
        f"Their NLL is {min(likelihoods):.3f} to {max(likelihoods):.3f}."
    )
    parts = (_whole_kl(study), markdown_table(header, lines), others, _runner_up(study))
    return "\n\n".join(parts)


def _runner_up(study: Study) -> str:
    """Return what the runner-up does to accuracy where it lost."""
    settings = study["settings"]
    by_task = rules(study)[tuple(sorted((settings["defaults"] | settings["runner_up"]).items()))]
    said = []
    for task in ("mlp20k", "resnet"):
        plain = methods(study, task, "validation")[PLAIN]
        gap = difference(gaps(by_task[task], plain, "quality"))
        said.append(f"{_title(study, task)} {_with_pairs(gap)}")
    return f"The runner-up changes accuracy, in points: {', '.join(said)}."


def _whole_kl(study: Study) -> str:
    """Return the worst rules of weight 1 on convolutional networks."""
    said = []
    for task in ("cnn", "resnet-halved"):
        found = [
            (gap, rule)
            for rule, by_task in rules(study).items()
            if "weights_per_example" not in dict(rule)
            and (gap := _validation(study, task, by_task.get(task)))
        ]
        gap, rule = max(found, key=lambda each: each[0].mean)
        said.append(f"{_title(study, task)} {gap} with prior *{_in_words(study, rule)[0]}*")
    return f"With KL weight 1, rules that serve MLPs fail on convolutions: {'; '.join(said)}."


def _validation(study: Study, task: str, seeds: BySeed | None) -> Difference | None:
    return difference(gaps(seeds or {}, methods(study, task, "validation")[PLAIN], "nll"))


def _gap(study: Study, task: str, seeds: BySeed | None) -> str:
    gap = _validation(study, task, seeds)
    return f"{gap} ({gap.pairs})" if gap else ""


def _in_words(study: Study, rule: Rule) -> list[str]:
    """Return the prior, the KL weight and the first scale."""
    values = dict(rule)
    c, tau, size = values["c"], values["tau"], "RMS of means"
    kind = {"inf": "centered", 0.001: "normal"}.get(tau, f"hierarchical, τ = {tau}")
    if "tau_by_fan_in" in values:
        kind = f"hierarchical, τ = {values['tau_by_fan_in']:g}/√fan-in"
    by_fan_in = values["scale_of"] == "fan_in"
    prior = f"{kind}, {c:g}/√fan-in" if by_fan_in else f"{kind}, {c:g} × {size}"
    if values["convolutions"] != "auto":
        prior += f", {values['convolutions']}"
    divisor = values.get("weights_per_example")
    weight = {None: "1", 1: "N/P"}.get(divisor, f"N/({divisor}P)")
    start = f"{values['start']:g}"
    if "start_by_prior" in values:
        first = values["start_by_prior"] * c
        start = f"{first:.2g}/√fan-in" if by_fan_in else f"{first:.2g} × {size}"
    for name in ("recommended", "runner_up"):
        if rule == tuple(sorted((study["settings"]["defaults"] | study["settings"][name]).items())):
            prior = f"**{name.replace('_', '-')}**: {prior}"
    return [prior, weight, start]


def decay(study: Study) -> str:
    """Where weight decay takes standard deviations that no data hold."""
    ends: dict[str, dict[str, float]] = {}
    for run in study["decay"]:
        ends.setdefault(run["optimizer"], {})[run["stored"]] = run["end"]
    start, steps = study["decay"][0]["start"], study["decay"][0]["steps"]
    stored = ["as a logarithm", "as a logarithm relative to the start"]
    lines = [[name, f"{end['log']:g}", f"{end['relative']:g}"] for name, end in ends.items()]
    return (
        f"Standard deviations of {start:g} after {steps:,} steps without data, all parameters "
        "decayed, by how they are stored:\n\n" + markdown_table(["optimizer", *stored], lines)
    )


def tasks(study: Study) -> str:
    """Return every task, and the KL weight that the rule gives it."""
    lines = [_task(study, task) for task in study["settings"]["tasks"]]
    header = ["task", "network", "data", "examples", "random weights", "KL weight", "training"]
    return markdown_table([*header, "validation", "test"], lines)


def _task(study: Study, name: str) -> list[str]:
    facts: Mapping[str, Any] = study["settings"]["tasks"][name]
    size, weights = facts["examples"], facts["random_weights"]
    divisor = study["settings"]["recommended"]["weights_per_example"]
    length = f"{facts['epochs']} epochs" if facts["epochs"] else f"{facts['steps']:,} steps"
    how = f"{facts['optimizer']} at {facts['rate']:g}, {length} in batches of {facts['batch']}"
    if facts["weight_decay"]:
        how += f", weight decay {facts['weight_decay']:g}, {facts['augmentation']}"
    sizes = [f"{size:,}", f"{weights:,}", f"{min(1.0, size / (divisor * weights)):.2g}"]
    texts = [facts["title"], facts["network"], facts["data"]]
    return [*texts, *sizes, how, facts["validation"], facts["test"]]
