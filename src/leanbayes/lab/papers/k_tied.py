"""The k-tied Normal (001, 002): what its page shows, and the published rows that no recipe has.

Rows of trained models come from recipes. Truncations of a trained mean field (001, Table 2; ICML,
Figure 5 and Table 3; 002, Figure 2) come from ``leanbayes compress``, one file for each run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from leanbayes.lab import plots
from leanbayes.lab.files import write_bytes
from leanbayes.lab.papers import Cell, Row, experiments, markdown, merge_seeds, table
from leanbayes.lab.papers.page import Blocks
from leanbayes.spectrum import Spectrum

__all__ = ["POST_TRAINING", "blocks"]

_RATIOS = ("gradient", "median", "square")
_MLP_CNN_LSTM = ("negative_elbo", "nll", "accuracy")
_RESNET = (*_MLP_CNN_LSTM, "brier", "ece")

POST_TRAINING: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    run: {
        name: dict(zip(columns, values, strict=True))
        for name, values in zip(
            ("full", "truncated 1", "truncated 2", "truncated 3"), rows, strict=True
        )
    }
    for run, columns, rows in (
        (
            "mnist-mlp-full",
            _MLP_CNN_LSTM,
            (
                (0.431, 0.1, 0.976),
                (3.41, 0.677, 0.936),
                (0.456, 0.107, 0.976),
                (0.45, 0.106, 0.976),
            ),
        ),
        (
            "cifar100-lenet-full",
            _MLP_CNN_LSTM,
            ((3.83, 2.23, 0.421), (4.33, 2.3, 0.417), (3.88, 2.24, 0.422), (3.86, 2.24, 0.421)),
        ),
        (
            "imdb-lstm-full",
            _MLP_CNN_LSTM,
            (
                (0.536, 0.493, 0.801),
                (0.687, 0.491, 0.8),
                (0.621, 0.494, 0.801),
                (0.595, 0.493, 0.801),
            ),
        ),
        (
            "cifar10-resnet-full",
            _RESNET,
            (
                (122.61, 0.495, 0.835, 0.239, 0.0477),
                (122.57, 0.658, 0.817, 0.305, 0.1642),
                (122.77, 0.503, 0.832, 0.242, 0.054),
                (122.67, 0.501, 0.832, 0.242, 0.0541),
            ),
        ),
        (
            "cifar10-resnet-he-full",
            _MLP_CNN_LSTM,
            (
                (1.379, 0.6384, 0.79),
                (5.428, 1.485, 0.57),
                (1.448, 0.648, 0.788),
                (1.411, 0.646, 0.789),
            ),
        ),
    )
}
"""Published metrics of a mean field and its truncations, by recipe; Brier scores less one there."""


def blocks(results: Path, page: Path) -> Blocks:
    """What makes the blocks of the page, from the files of results.

    Args:
        results: the folder of archived runs, with ``post_training/`` in it.
        page: the page; its pictures lie in a folder of the same name.
    """
    pictures = page.with_suffix("")

    def picture(name: str, png: bytes, caption: str) -> str:
        write_bytes(pictures / f"{name}.png", png)
        return f"![{caption}]({pictures.name}/{name}.png)\n\n*{caption}*"

    def runs(name: str) -> list[dict[str, Any]]:
        return [_read(path) for path in sorted(results.glob(f"{name}-seed*.json"))]

    def spectra(argument: str) -> str:
        name, caption = _split(argument)
        found = _read(results / "post_training" / f"{name}.json")["spectra"]
        layers = {
            layer: Spectrum(torch.tensor(shares["scale"]), torch.tensor(shares["mean"]))
            for layer, shares in found.items()
        }
        return picture(f"spectra-{name}", plots.spectra_of(layers), caption)

    def heat_maps(argument: str) -> str:
        name, caption = _split(argument)
        run, _, layer = name.partition("/")
        scale = torch.tensor(_read(results / "post_training" / f"{run}.json")["maps"][layer])
        u, s, v = torch.linalg.svd(scale, full_matrices=False)
        shown = []
        for rank in (None, 1, 2):
            matrix = scale if rank is None else (u[:, :rank] * s[:rank]) @ v[:rank]
            title = "full" if rank is None else f"rank {rank}"
            png = plots.heat_map(matrix, f"σ, {title}")
            words = f"{caption}: {title}"
            shown.append(picture(f"{run}-{layer}-{title.replace(' ', '-')}", png, words))
        return "\n\n".join(shown)

    def curves(argument: str) -> str:
        """``COLUMN of RUN, RUN, … | caption``."""
        what, caption = _split(argument)
        column, _, names = what.partition(" of ")
        lines, epochs = {}, []
        for name in names.split(", "):
            history = runs(name)[0]["history"]
            epochs = history["epoch"]
            lines[name] = history[column]
        slug = column.replace("/", "-") + "-" + names.replace(", ", "-")
        return picture(slug, plots.curves(epochs, lines, _ylabel(column), log=True), caption)

    return {
        "table": lambda title: _table(table("k_tied", [results]), title),
        "seeds": lambda name: _seeds(runs(name)),
        "post-training": lambda name: _post_training(results / "post_training", name),
        "spectra": spectra,
        "heat-maps": heat_maps,
        "curves": curves,
        "probes": lambda names: _probes([run for n in names.split(", ") for run in runs(n)]),
    }


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; run and archive it first")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _ylabel(column: str) -> str:
    """A column of the metrics in words."""
    kind, _, name = column.partition("/")
    if kind == "scale":
        return f"mean σ of {name.removeprefix('model.')}"
    return f"{kind} {name.replace('negative_elbo', '−ELBO')}"


def _split(argument: str) -> tuple[str, str]:
    what, _, caption = argument.partition(" | ")
    return what, caption


def _table(rows: Sequence[Row], title: str) -> str:
    found = experiments(merge_seeds(rows))
    if title not in found:
        raise ValueError(f"no experiment is called {title!r}; there are {', '.join(found)}")
    return markdown(found[title])


def _seeds(runs: Sequence[Mapping[str, Any]]) -> str:
    """Every seed of a recipe, in one line a metric."""
    if not runs:
        return "Not run."
    lines = []
    for name in ("accuracy", "nll", "negative_elbo"):
        values = ", ".join(f"{run['metrics'][name]['value']:.4f}" for run in runs)
        lines.append(f"{name.replace('_', ' ')}: {values}")
    return f"Seeds {', '.join(str(run['seed']) for run in runs)}: " + "; ".join(lines) + "."


def _post_training(folder: Path, name: str) -> str:
    path = folder / f"{name}.json"
    found = _read(path)["rows"] if path.is_file() else {}
    published = POST_TRAINING[name]
    rows = []
    for title in found or published:
        metrics = found[title]["metrics"] if found else {}
        printed = published.get(title, {})
        cells = {
            metric: Cell(
                metrics.get(metric, {}).get("value"),
                metrics.get(metric, {}).get("error"),
                printed.get(metric),
            )
            for metric in published["full"]
        }
        if found:
            cells["nll + kl"] = Cell(metrics["nll"]["value"] + metrics["kl"]["value"])
            cells["parameters"] = Cell(found[title]["parameters"])
        rows.append(Row(name, title, cells, ran=bool(found)))
    return markdown(rows)


def _probes(runs: Sequence[Mapping[str, Any]]) -> str:
    """The −ELBO and the ratios of the probed layer, a line for every run and step."""
    header = ["run", "seed", "step", "−ELBO", "mean of E[g²]/Var[g]", "median", "E[g²]/Var[g²]"]
    lines = [header, ["---"] * len(header)]
    for run in runs:
        layer = run["recipe"]["probe"]["layer"]
        for step, found in run["probe"].items():
            ratios = [found["snr"].get(kind, {}).get(layer) for kind in _RATIOS]
            shown = ["–" if ratio is None else f"{ratio:.3g}" for ratio in ratios]
            elbo = f"{found['negative_elbo']:.2f}"
            lines.append([run["name"], str(run["seed"]), step, elbo, *shown])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
