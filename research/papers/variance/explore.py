"""Train a policy with several seeds, into one file that a stopped study goes on with."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from leanbayes.lab.files import read_object, write_text
from leanbayes.lab.provenance import environment_facts
from leanbayes.metrics import Score
from research.papers.variance.reinforce import Episodes, PolicyGradient, Reinforce

_NUMBERS = re.compile(r"\[[\s\d.,eE+-]*\]")


def explore(
    environment: str,
    settings: PolicyGradient,
    out: str | Path,
    *,
    seeds: int = 9,
    tell: Callable[[Mapping[str, Any]], object] | None = None,
) -> dict[str, Any]:
    """Train a policy with the seeds 0, 1, … and write what came out after each.

    Seeds that the file has already are not trained again. After Ctrl-C it also holds the episodes
    of the seed that was stopped, which the next call begins anew.

    Args:
        environment: a name that gymnasium knows.
        settings: how to train.
        out: the JSON file.
        seeds: how many.
        tell: is called with what the file holds about a seed, old or new.

    Returns:
        What the file holds.
    """
    out = Path(out)
    study = _begun(out, {"environment": environment, "settings": asdict(settings)})
    study["runs"] = [run for run in study["runs"] if run["finished"]]
    kept = {run["seed"]: run for run in study["runs"]}
    with _one_thread():
        for seed in range(seeds):
            if seed not in kept:
                learner = Reinforce(environment, settings, seed=seed)
                try:
                    learner.run()
                finally:
                    kept[seed] = _described(learner.result)
                    study["runs"] = [kept[number] for number in sorted(kept)]
                    study["last_100"] = _over_seeds(study["runs"])
                    _write(out, study)
            if tell is not None:
                tell(kept[seed])
    return study


def _begun(out: Path, started: dict[str, Any]) -> dict[str, Any]:
    """Return what a file holds of the same study; an empty one if there is no file."""
    if not out.exists():
        return {**started, "last_100": None, "runs": []}
    keys = {*started, "last_100", "runs"}
    study = read_object(out, keys, "a study of a policy", "choose another --output")
    before, now = ({"environment": s["environment"], **s["settings"]} for s in (study, started))
    for key, value in now.items():
        if before.get(key) != value:
            raise ValueError(
                f"{out} holds a study with another {key}: it was {before.get(key)!r} and is now "
                f"{value!r}; undo the change, or choose another --output"
            )
    return study


def _described(episodes: Episodes) -> dict[str, Any]:
    return {
        "seed": episodes.seed,
        "finished": episodes.finished,
        "last_100": episodes.last()._asdict() if episodes.returns else None,
        "seconds": round(episodes.seconds, 2),
        **environment_facts("gymnasium"),
        "returns": list(episodes.returns),
    }


def _over_seeds(runs: list[dict[str, Any]]) -> dict[str, float] | None:
    """Return the mean over finished seeds, and its standard error over them."""
    finished = [run["last_100"]["value"] for run in runs if run["finished"]]
    values = torch.tensor(finished, dtype=torch.float64)
    if not len(values):
        return None
    spread = float(values.std()) if len(values) > 1 else 0.0
    return Score(float(values.mean()), spread / len(values) ** 0.5)._asdict()


def _write(out: Path, study: Mapping[str, Any]) -> None:
    """Readable JSON, with lists of numbers on one line."""
    text = json.dumps(study, indent=2, ensure_ascii=False)
    write_text(out, _NUMBERS.sub(lambda numbers: " ".join(numbers[0].split()), text) + "\n")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Matrices this small are slower on two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
