"""Policies of several kinds on several seeds: kept small, as a table, and as curves with bands."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from leanbayes.errors import require
from leanbayes.lab import plots
from leanbayes.lab.files import read_object, write_json
from leanbayes.lab.path_names import path_name
from research.papers.variance.reinforce import PolicyGradient
from research.publishing.cells import with_error
from research.publishing.run_commands import folded
from research.publishing.tables import markdown_table

_POINTS = 50
_KEYS = {"environment", "settings", "last_100", "runs"}

Study = Mapping[str, Any]


def keep_policy(file: Path, out: Path) -> Path:
    """Keep what ``python -m research.lab explore`` wrote, with averages over blocks of episodes."""
    study = read_object(file, _KEYS, "a study of a policy", "run explore again")
    for run in study["runs"]:
        require(
            run["finished"], f"seed {run['seed']} of {file} is not finished; run the command again"
        )
    runs = [{**run, "returns": _blocks(run["returns"])} for run in study["runs"]]
    name = path_name(f"{study['environment']}-{study['settings']['policy']}")
    return write_json(out / f"{name}.json", {**study, "runs": runs})


def _blocks(returns: Sequence[float]) -> list[float]:
    """Return averages over as many blocks of equal length as are drawn.

    Example:
        >>> len(_blocks([1.0] * 100)), _blocks([1.0] * 7)
        (50, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    """
    size = max(len(returns) // _POINTS, 1)
    whole = len(returns) // size * size
    return [round(fmean(returns[start : start + size]), 2) for start in range(0, whole, size)]


def read_policy(file: Path) -> Study:
    """Return what :func:`keep_policy` wrote."""
    return read_object(file, _KEYS, "a kept study of a policy", "keep it again")


def table_of_policies(studies: Sequence[Study]) -> str:
    """Return the return over the last hundred episodes: mean, error and range over seeds."""
    header = ["environment", "policy", "return of the last 100", "worst seed", "best seed", "seeds"]
    lines = []
    for study in studies:
        last, seeds = study["last_100"], [run["last_100"]["value"] for run in study["runs"]]
        mean = with_error(last["value"], last["error"], 1)
        numbers = (mean, f"{min(seeds):.1f}", f"{max(seeds):.1f}")
        signed = (number.replace("-", "−") for number in numbers)
        policy = study["settings"]["policy"]
        lines.append([study["environment"], policy, *signed, str(len(seeds))])
    return markdown_table(header, lines)


def commands_of_policies(studies: Sequence[Study]) -> str:
    """Return commands that train the policies again, folded, with options that are not defaults."""
    return folded([*map(_command, studies), "python -m research papers policies runs/*-v?-*.json"])


def _command(study: Study) -> str:
    settings = study["settings"]
    defaults = asdict(PolicyGradient(settings["policy"]))
    words = ["python -m research.lab explore", study["environment"], "--policy", settings["policy"]]
    words += ["--seeds", str(len(study["runs"]))]
    for name in ("episodes", "environments", "lr", "steps"):
        if settings[name] != defaults[name]:
            words += [f"--{name}", f"{settings[name]:g}"]
    return " ".join(words)


def curves_of_policies(studies: Sequence[Study]) -> bytes:
    """Return rewards over episodes, the mean over seeds inside two standard errors, as a PNG."""
    lines, bands, places = {}, {}, set[tuple[float, ...]]()
    for study in studies:
        name, episodes = study["settings"]["policy"], study["settings"]["episodes"]
        returns = torch.tensor([run["returns"] for run in study["runs"]], dtype=torch.float64)
        mean, count = returns.mean(0), len(returns)
        error = returns.std(0) / count**0.5 if count > 1 else torch.zeros_like(mean)
        places.add(tuple(((torch.arange(len(mean)) + 0.5) * episodes / len(mean)).tolist()))
        lines[name] = mean.tolist()
        bands[name] = (mean - 2 * error).tolist(), (mean + 2 * error).tolist()
    require(len(places) == 1, "studies of other numbers of episodes do not share a picture")
    return plots.curves(places.pop(), lines, "return", xlabel="episode", bands=bands)
