"""The first screen of the README, from the file of the study: a table and a picture."""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from leanbayes import plots as draw
from leanbayes.errors import require
from leanbayes.lab.files import write_bytes
from research.publishing.cells import mean_with_error
from research.publishing.pages import Makers, refresh
from research.publishing.plots import one_panel
from research.publishing.study_file import read_study
from research.publishing.tables import markdown_table
from research.studies.overview.study import CHOICES, COSTS, METHODS

_SHOWN = ("plain network", "MC dropout", "k-tied, nothing tuned")


def write(results: Path, readme: Path, image: Path) -> Path:
    """Make the table of the README and its picture again."""
    study = read_study(results, "studies overview")
    require(
        {CHOICES, COSTS} <= study["parts"].keys() and all(_parts(study).values()),
        f"{results} is not finished; resume research studies overview",
    )
    write_bytes(image, picture(study))
    return refresh(readme, makers(study))


def makers(study: Mapping[str, Any]) -> Makers:
    """Return what makes the blocks of the README."""
    return {
        "overview": lambda _: table(study),
        "overview-claim": lambda _: claim(study),
        "overview-caption": lambda _: caption(study),
        "overview-how": lambda _: how(study),
    }


def _parts(study: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the results of every method, by seed."""
    return {
        name: [part for part in study["parts"].values() if part.get("method") == name]
        for name in METHODS
    }


def table(study: Mapping[str, Any]) -> str:
    """Return what every method buys and costs: means over seeds ± standard errors."""
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
                mean_with_error([part["auroc"] for part in found], 1, 100),
                mean_with_error([part["nll"] for part in found], 3, 1),
                mean_with_error([part["ece"] for part in found], 1, 100),
                mean_with_error([part["accuracy"] for part in found], 1, 100),
                f"× {found[0]['parameters'] / plain:.2f}",
                f"× {steps[name]['median']:.2f}" if name in steps else "× 1.00",
            ]
            for name, found in parts.items()
        ),
    )


def caption(study: Mapping[str, Any]) -> str:
    """Return what the picture shows, and how many OOD images each network is confident about."""
    parts = _parts(study)
    plain, dropout, tied = (100 * fmean(part["sure"] for part in parts[name]) for name in _SHOWN)
    return (
        "*A network trained on clothes (Fashion-MNIST) sees digits (MNIST). Lower curves are "
        f"better. The plain network is more than 90% confident about {plain:.0f}% of the digits, "
        f"MC dropout about {dropout:.0f}%, the converted network about {tied:.0f}%.*"
    )


def how(study: Mapping[str, Any]) -> str:
    """Return how it was measured, and which settings were chosen."""
    settings, parts, found = study["settings"], _parts(study), study["parts"][CHOICES]
    hidden = settings["hidden"]
    chosen = {name: min(nll, key=nll.get) for name, nll in found.items()}
    return (
        f"Means over {len(parts['k-tied'])} seeds ± standard errors: MLP 784-{hidden}-{hidden}-10, "
        f"{settings['images']:,} images, {settings['samples']} samples per prediction. `lb.fit` "
        f"trains each network for {settings['epochs']} epochs in batches of {settings['batch']}. "
        "The last row is the code above: `lb.convert(net)` and the defaults of `lb.fit`. "
        "Others have the best NLL on held-out training images: KL weights of "
        f"{chosen['k-tied']} (k-tied) and {chosen['mean field']} (mean field) with a learned prior "
        f"scale, a dropout rate of {chosen['MC dropout']}. `python -m research studies overview` "
        "measures it again."
    )


def claim(study: Mapping[str, Any]) -> str:
    """Return what the library as it is gains over the plain network, and what that costs."""
    parts, name = _parts(study), _SHOWN[-1]
    before, after = parts["plain network"], parts[name]
    ece, accuracy = (
        [100 * fmean(part[what] for part in found) for found in (before, after)]
        for what in ("ece", "accuracy")
    )
    size = after[0]["parameters"] / before[0]["parameters"]
    step = study["parts"][COSTS]["step"][name]["median"]
    return (
        f"For an [MLP on Fashion-MNIST](#measured) the calibration error falls from {ece[0]:.1f}% "
        f"to {ece[1]:.1f}%. It has {size:.2f} times the parameters and takes {step:.2f} times the "
        f"training step. Accuracy changes from {accuracy[0]:.1f}% to {accuracy[1]:.1f}%, and a "
        f"prediction averages {study['settings']['samples']} passes."
    )


def picture(study: Mapping[str, Any]) -> bytes:
    """Return share of OOD images accepted over the largest entropy that is accepted, by method."""
    parts = _parts(study)

    def drawn(axes: Any) -> None:
        draw.style(axes, "largest entropy that is accepted (nats)", "digits accepted (%)")
        for index, name in enumerate(_SHOWN):
            shares = accepted([part["entropies"][1] for part in parts[name]])
            edges = [math.log(10) * i / (len(shares) - 1) for i in range(len(shares))]
            line = draw.line_style(index, name)
            axes.plot(edges, [100 * share for share in shares], linewidth=2, **line)
        draw.add_legend(axes, len(_SHOWN))

    return one_panel("OOD digits accepted", drawn)


def accepted(histograms: Sequence[Sequence[float]]) -> list[float]:
    """Return the share of images up to each edge of the bins, averaged over seeds; from 0."""
    means = [fmean(column) for column in zip(*histograms, strict=True)]
    return [0.0, *accumulate(means)]
