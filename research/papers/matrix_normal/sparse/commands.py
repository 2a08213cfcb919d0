"""The studies of sparse networks as commands.

Annotations are read by typer, so they are ordinary objects here.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from leanbayes.lab.runs import Run
from research.papers.matrix_normal.sparse.compaction import study_compaction
from research.papers.matrix_normal.sparse.files import COMPACTION, SPARSITY
from research.papers.matrix_normal.sparse.study import study_sparsity
from research.papers.variance.trained_file import write_study
from research.publishing.paper import ROOT

__all__ = ["add_sparse"]

_RESULTS = ROOT / "results" / "matrix_normal"


def add_sparse(app: typer.Typer) -> None:
    """Give an application the commands ``sparsity`` and ``compaction``."""
    app.command(epilog="Example: python -m papers sparsity runs/mnist-mlp-mn")(sparsity)
    compaction_example = "python -m papers compaction runs/fashion-mnist-mlp-group-mn"
    app.command(epilog=f"Example: {compaction_example}")(compaction)


def sparsity(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    samples: Annotated[int, typer.Option(min=1, help="Draws that an average is over.")] = 5,
    images: Annotated[int | None, typer.Option(min=1, help="Test images; all.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The JSON file; sparsity/NAME-seedSEED.json in the results.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
) -> None:
    """Zero what has no relevance, threshold by threshold, and judge what is left."""
    file = _file(run, SPARSITY, out, overwrite)
    study = study_sparsity(run, samples=samples, images=images, progress=True)
    for point in study["sweep"]:
        left, of = point["weights"]
        print(f"log α < {point['log_alpha']:>2g}: {100 * left / of:6.2f} % left{_accuracy(point)}")
    print(f"Written to {write_study(file, study)}")


def compaction(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    samples: Annotated[int, typer.Option(min=1, help="Draws that an average is over.")] = 20,
    images: Annotated[int | None, typer.Option(min=1, help="Test images; all.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The JSON file; compaction/NAME-seedSEED.json in the results."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
) -> None:
    """Remove the rows and columns without relevance: multiply-adds and accuracy, and what stays."""
    file = _file(run, COMPACTION, out, overwrite)
    study = study_compaction(run, samples=samples, images=images, progress=True)
    for point in study["sweep"]:
        for kind in study["whole"]:
            sizes = " → ".join(map(str, point[kind]["multiply_adds"])) or "kept whole"
            accuracy = _accuracy(point[kind])
            print(f"log α < {point['log_alpha']:g}, {kind}: multiply-adds {sizes}{accuracy}")
    print(f"Written to {write_study(file, study)}")


def _file(run: Path, folder: str, out: Path | None, overwrite: bool) -> Path:
    recipe = Run(run).recipe
    file = out or _RESULTS / folder / f"{recipe.name}-seed{recipe.seed}.json"
    if file.exists() and not overwrite:
        raise FileExistsError(
            f"{file} exists; replace it with --overwrite, or choose another --out"
        )
    return file


def _accuracy(found: dict[str, Any]) -> str:
    if "accuracy" not in found:
        return ""
    return f", accuracy {100 * found['accuracy']['value']:.2f} %"
