"""The first screen of the README, from the file of the study: a table and a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from leanbayes import plots as draw
from leanbayes.errors import require
from leanbayes.lab import plots
from leanbayes.lab.files import write_bytes
from research.publishing.pages import Makers, refresh
from research.publishing.study_file import read_study
from research.publishing.tables import markdown_table
from research.studies.overview.study import CHOICES, COSTS, METHODS

_SHOWN = ("plain network", "k-tied, nothing tuned")
_HIGHEST = 30
_GROUPS = ("clothes (in distribution)", "digits (OOD)")


def write(results: Path, readme: Path, image: Path) -> Path:
    """Make the table of the README and its picture anew."""
    study = read_study(results, "studies overview")
    require(
        {CHOICES, COSTS} <= study["parts"].keys() and all(_parts(study).values()),
        f"{results} is not finished; resume research studies overview",
    )
    write_bytes(image, picture(study))
    return refresh(readme, makers(study))


def makers(study: Mapping[str, Any]) -> Makers:
    """What makes the blocks of the README."""
    return {
        "overview": lambda _: table(study),
        "overview-caption": lambda _: caption(study),
        "overview-how": lambda _: how(study),
    }


def _parts(study: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """What came out for every method, by seed."""
    return {
        name: [part for part in study["parts"].values() if part.get("method") == name]
        for name in METHODS
    }


def table(study: Mapping[str, Any]) -> str:
    """What every method buys and costs: means over seeds ± standard errors."""
    parts = _parts(study)
    plain = parts["plain network"][0]["parameters"]
    steps = study["parts"][COSTS]["step"]
    header = ["", "OOD detection, AUROC (%)", "NLL", "ECE (%)", "accuracy (%)"]
    header += ["parameters", "training step"]
    return markdown_table(
        header,
        (
            [
                name,
                _mean(found, "auroc", 100, 1),
                _mean(found, "nll", 1, 3),
                _mean(found, "ece", 100, 1),
                _mean(found, "accuracy", 100, 1),
                f"× {found[0]['parameters'] / plain:.2f}",
                f"× {steps[name]['median']:.2f}" if name in steps else "× 1.00",
            ]
            for name, found in parts.items()
        ),
    )


def caption(study: Mapping[str, Any]) -> str:
    """What the picture shows, and how many OOD images each network is confident about."""
    parts = _parts(study)
    plain, tied = (100 * fmean(part["sure"] for part in parts[name]) for name in _SHOWN)
    return (
        "*A network trained on clothes (Fashion-MNIST) sees clothes and digits. The plain network "
        f"is more than 90% confident about {plain:.0f}% of the digits, the converted one about "
        f"{tied:.0f}%.*"
    )


def how(study: Mapping[str, Any]) -> str:
    """How it was measured, and which settings were chosen."""
    settings, parts, found = study["settings"], _parts(study), study["parts"][CHOICES]
    chosen = {name: min(nll, key=nll.get) for name, nll in found.items()}
    return (
        f"Means over {len(parts['k-tied'])} seeds ± standard errors; {settings['images']:,} "
        f"training images, {settings['epochs']} epochs, {settings['samples']} samples per "
        f"prediction, KL warm-up over the first {100 * settings['warmup']:.0f}% of steps. The last "
        "row is `lb.convert(net)` with the recommended KL weight. All rows have cosine decay, as "
        "in `lb.fit`. Other settings "
        "were chosen by the NLL of held-out training images: a KL weight of "
        f"{chosen['k-tied']} for k-tied and {chosen['mean field']} for mean field, both with a "
        f"learned prior scale, and a dropout rate of {chosen['MC dropout']}. "
        "`python -m research studies overview` measures it again."
    )


def _mean(parts: list[Mapping[str, Any]], name: str, factor: float, digits: int) -> str:
    values = [factor * part[name] for part in parts]
    mean = f"{fmean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} ± {stdev(values) / math.sqrt(len(values)):.{digits}f}"


def picture(study: Mapping[str, Any]) -> bytes:
    """Entropies of known and OOD images under the plain network and the k-tied one."""
    parts = _parts(study)

    def entropies(name: str) -> Callable[[Any], None]:
        known, foreign = parts[name][0]["entropies"]

        def drawn(axes: Any) -> None:
            edges = [math.log(10) * i / len(known) for i in range(len(known) + 1)]
            draw.style(axes, "uncertainty (entropy, nats)", "share of images, %")
            for index, (title, shares) in enumerate(zip(_GROUPS, (known, foreign), strict=True)):
                heights = [100 * share for share in shares]
                line = draw.line_style(index, title)
                axes.stairs(heights, edges, linewidth=1.8, **line)
                axes.stairs(heights, edges, fill=True, alpha=0.15, color=line["color"])
            axes.set_ylim(0, _HIGHEST)
            draw.add_legend(axes, len(_GROUPS))

        return drawn

    return plots.side_by_side({name: entropies(name) for name in _SHOWN})
