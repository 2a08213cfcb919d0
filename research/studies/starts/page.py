"""Writes docs/starts.md and its picture from results/starts.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from leanbayes.plots import COLORS
from leanbayes.saving.files import replace_file
from research.publishing.cells import Cell, averaged
from research.publishing.plots import side_by_side
from research.publishing.tables import markdown_table
from research.studies.starts.study import WAYS, Way

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Study = Mapping[str, Any]
Parts = Sequence[Mapping[str, Any]]
PUBLISHED = next(iter(WAYS))
"""What the papers do: ways are compared with it."""


def write(study: Study, docs: Path) -> Path:
    """Write the page and its picture."""
    folder = docs / "starts"
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / "curves.png", picture(study))
    return replace_file(docs / "starts.md", text(study).encode())


def _networks(study: Study) -> dict[str, dict[str, Parts]]:
    """Return the seeds of every network and way."""
    found: dict[str, dict[str, Parts]] = {}
    for part in study["parts"].values():
        ways = found.setdefault(part["network"], {})
        ways[part["way"]] = [*ways.get(part["way"], []), part]
    return found


def _ends(parts: Parts) -> list[float]:
    """Return the last −ELBO of every seed."""
    return [part["negative_elbo"][-1] for part in parts]


def best_way(study: Study) -> str:
    """The way whose worst seed is best, as a multiple of the best worst seed of a network."""
    networks = _networks(study).values()
    least = [min(max(_ends(parts)) for parts in ways.values()) for ways in networks]
    names = set.intersection(*(set(ways) for ways in networks))
    worst = {
        name: fmean(max(_ends(ways[name])) / low for ways, low in zip(networks, least, strict=True))
        for name in names
    }
    return min(worst, key=lambda name: worst[name])


def _share(parts: Parts, bound: float) -> float | None:
    """The mean share of the steps after which a bound is kept; none unless all seeds keep it."""
    shares = []
    for part in parts:
        late = [n for n, value in zip(part["steps"], part["negative_elbo"], strict=True)
                if value > bound]  # fmt: skip
        after = [n for n in part["steps"] if not late or n > late[-1]]
        if not after:
            return None
        shares.append(after[0] / part["steps"][-1])
    return fmean(shares)


def text(study: Study) -> str:
    """Return the whole page."""
    settings, networks, best = study["settings"], _networks(study), best_way(study)
    seeds = len(next(iter(next(iter(networks.values())).values())))
    parts = [
        "# First values and schedules",
        "[Train well](train_well.md) has the recommendation, with another first scale and KL "
        "weight; this page has measurements with KL weight 1, judged by the −ELBO.",
        f"**Best setting: {_in_words(WAYS[best])}.** It has the best worst seed of "
        f"{len(WAYS)} settings over a dense, a convolutional and a recurrent network "
        f"({seeds} seeds each).",
        "\n".join(
            [
                *(_says(name, ways, best) for name, ways in networks.items()),
                _same_schedule(networks, best),
            ]
        ),
        "![−ELBO over steps.](starts/curves.png)",
        "*The −ELBO of a held-out digit over steps, the mean over seeds.*",
    ]
    for name, ways in networks.items():
        parts += [f"## The {name} network", _table(ways)]
    parts += ["## Setup", _how(settings)]
    return "\n\n".join(parts) + "\n"


def _in_words(way: Way) -> str:
    schedule = way.schedule
    said = f"initial standard deviations of {way.start:g}, Adam at {schedule.lr:g}"
    if schedule.scales != 1:
        said += f" ({schedule.scales:g} times that for scales)"
    if schedule.falls:
        said += ", cosine decay"
    if schedule.rise:
        return f"{said}, KL warm-up over {100 * schedule.rise:.0f}% of the steps"
    return f"{said}, the full KL from the first step"


def summary(study: Study) -> str:
    """Return what a user needs of the study, for the page with the recommendation."""
    networks, best = _networks(study), best_way(study)
    schedule = WAYS[best].schedule
    shares = [_share(ways[best], max(_ends(ways[PUBLISHED]))) for ways in networks.values()]
    reached = [share for share in shares if share is not None]
    speed = f"It does not reach in every seed what `{PUBLISHED}` reaches at the end."
    if len(reached) == len(shares):
        speed = (
            f"It needs {100 * min(reached):.0f}% to {100 * max(reached):.0f}% of the steps for "
            f"what `{PUBLISHED}` reaches at the end."
        )
    return (
        "[Starts and schedules](starts.md) were compared by the −ELBO, with KL weight 1. The best "
        f"setting has initial standard deviations of {WAYS[best].start:g}, Adam at "
        f"{schedule.lr:g}, and {schedule.scales:g} times that for scales. {speed} With Adam at 1e-3 "
        f"alone, {_alone(networks)}."
    )


def _says(network: str, ways: Mapping[str, Parts], best: str) -> str:
    bound = max(_ends(ways[PUBLISHED]))
    share = _share(ways[best], bound)
    found = "not in every seed"
    if share is not None:
        found = f"after {100 * share:.0f}% of the steps"
    return (
        f"- The {network} network: with `{PUBLISHED}` the final −ELBO is "
        f"{fmean(_ends(ways[PUBLISHED])):.3f}, with `{best}` {fmean(_ends(ways[best])):.3f}. The "
        f"second reaches the first's worst seed ({bound:.3f}) {found}."
    )


def _same_schedule(networks: Mapping[str, Mapping[str, Parts]], best: str) -> str:
    """Return what is left of the start if all ways have the schedule of the best."""
    same = [name for name, way in WAYS.items() if way.schedule == WAYS[best].schedule]
    starts = ", ".join(f"{WAYS[name].start:g}" for name in same)
    ranges = []
    for network, ways in networks.items():
        ends = [fmean(_ends(ways[name])) for name in same if name in ways]
        ranges.append(f"{min(ends):.3f} to {max(ends):.3f} ({network})")
    return (
        f"- With that schedule the start matters little: from {starts} the −ELBO ends at "
        f"{', '.join(ranges)}.\n- With {PUBLISHED.partition(', ')[2]} alone it decides: "
        f"{_alone(networks)}."
    )


def _alone(networks: Mapping[str, Mapping[str, Parts]]) -> str:
    """Return bounds and likelihoods by start, where nothing but the start changes."""
    usual = [name for name, way in WAYS.items() if way.schedule == WAYS[PUBLISHED].schedule]
    said = []
    for name in usual:
        found = [ways[name] for ways in networks.values() if name in ways]
        bounds = ", ".join(f"{fmean(_ends(parts)):.2f}" for parts in found)
        likelihoods = ", ".join(f"{fmean(part['nll'] for part in parts):.2f}" for parts in found)
        said.append(
            f"from {WAYS[name].start:g} the −ELBOs end at {bounds} and the NLLs at {likelihoods}"
        )
    return "; ".join(said)


def _table(ways: Mapping[str, Parts]) -> str:
    bound = max(_ends(ways[PUBLISHED]))
    lines = []
    for name, parts in ways.items():
        share = _share(parts, bound)
        lines.append(
            [
                name,
                str(averaged(_ends(parts))),
                str(Cell(max(_ends(parts)))),
                str(averaged([part["nll"] for part in parts])),
                str(averaged([100 * part["accuracy"] for part in parts])),
                "–" if share is None else f"{100 * share:.0f}",
            ]
        )
    header = ["start and schedule", "−ELBO", "worst seed", "NLL", "accuracy, %"]
    return markdown_table([*header, f"steps to {bound:.3f}, %"], lines)


def _how(settings: Mapping[str, Any]) -> str:
    return (
        f"Networks with k-tied weights of rank 2 train on {settings['images']:,} digits of MNIST "
        f"for {settings['epochs']} epochs in batches of {settings['batch']}, with a normal prior "
        f"of standard deviation {settings['prior']:g}. They are evaluated on {settings['held']:,} "
        "held-out training images. The −ELBO is the NLL of one draw, averaged over "
        f"{settings['passes']} draws, plus the KL divided by the number of training images. *Quick "
        "schedule*: Adam at 0.01 (five times that for scales), cosine decay, KL warm-up over half "
        "of the steps. The dense network has two hidden layers of 200 units, and the convolutional "
        "one 16 and 32 filters of 5 × 5. The LSTM reads an image row by row into 64 units. "
        "[scikit-learn estimators](sklearn.md) have separate defaults, found on UCI sets.\n\n"
        "`python -m research studies starts` trains everything again, into "
        "[results/starts.json](../results/starts.json); `python -m research page studies` makes "
        "this page."
    )


def picture(study: Study) -> bytes:
    """Return the −ELBO over steps, one panel per network."""

    def panel(ways: Mapping[str, Parts]) -> Any:
        def draw(axes: Axes) -> None:
            for number, (name, parts) in enumerate(ways.items()):
                curves = zip(*(part["negative_elbo"] for part in parts), strict=True)
                axes.plot(
                    parts[0]["steps"],
                    [fmean(at) for at in curves],
                    color=COLORS[number % len(COLORS)],
                    label=name,
                )
            axes.set_yscale("log")
            axes.set_xlabel("step")
            axes.set_ylabel("−ELBO of a held-out digit")

        return draw

    return side_by_side({name: panel(ways) for name, ways in _networks(study).items()})
