"""Commands of benchmarks.

Annotations are read by typer, so they are ordinary objects here.
"""

from pathlib import Path
from typing import Annotated, Literal

import torch
import typer

from leanbayes.errors import choose
from research.benchmarks import compaction as compacted
from research.benchmarks import corruptions as damage
from research.benchmarks import generator as noise
from research.benchmarks import laboratory as lab
from research.benchmarks import matrix_normal as correlated
from research.benchmarks import page, scaling_page
from research.benchmarks.everything import measure_everything
from research.benchmarks.quality import measure_quality
from research.benchmarks.step import Options
from research.benchmarks.worker import BENCHMARKS
from research.options import RunFolder, Seeds
from research.publishing.paper import DOCS, RESULTS

app = typer.Typer(no_args_is_help=True, help="Costs of steps, predictions, starts and more.")
_RESULTS = RESULTS / "bench"

Rounds = Annotated[int, typer.Option(min=2, help="Turns of every method; quartiles need 2.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Torch threads; its own choice.")]
Clock = Annotated[Literal["wall", "cpu"], typer.Option(help="cpu for a busy machine.")]
Out = Annotated[Path, typer.Option(help="JSON file.")]


def write_pages() -> None:
    """Update docs/performance.md from results, and docs/scaling.md from formulas."""
    print(f"Written to {page.write(_RESULTS, DOCS)}")
    print(f"Written to {scaling_page.write(DOCS)}")


def _set_threads(threads: int | None) -> None:
    if threads:
        torch.set_num_threads(threads)


@app.command(epilog="Example: python -m research bench run --quick --no-peers")
def run(
    only: Annotated[
        list[str] | None, typer.Option(help=f"Any of {', '.join(BENCHMARKS)}; may be repeated.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=2, help="Turns that must count; 12, or 3 with --quick.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="For steps and predictions; 3, or 1 with --quick.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Torch threads.")] = torch.get_num_threads(),
    clock: Clock = "wall",
    quick: Annotated[bool, typer.Option("--quick", help="Few turns and sizes: a trial.")] = False,
    peers: Annotated[bool, typer.Option(help="Measure other libraries too.")] = True,
    keep_memory: Annotated[
        bool, typer.Option("--keep-memory", help="The allocator returns nothing to the system.")
    ] = False,
    results: Annotated[Path, typer.Option(help="Folder of results.")] = _RESULTS,
    docs: Annotated[Path, typer.Option(help="Folder of pages.")] = DOCS,
) -> None:
    """Measure steps, predictions, starts, growth and scaling, and update the page."""
    for name in only or ():
        choose("benchmark", name, BENCHMARKS)
    measure_everything(
        Options(rounds or (3 if quick else 12), clock, quick),
        only=only or (),
        processes=processes or (1 if quick else 3),
        threads=threads,
        peers=peers,
        keep_memory=keep_memory,
        results=results,
    )
    print(f"Written to {page.write(results, docs)}")


@app.command(epilog="Example: python -m research bench matrix-normal")
def matrix_normal(
    rounds: Rounds = 30,
    threads: Threads = None,
    clock: Clock = "wall",
    out: Out = _RESULTS / "matrix_normal.json",
) -> None:
    """Measure a step of matrix normals against independent weights, on that paper's networks."""
    _set_threads(threads)
    correlated.measure_steps(rounds, clock, out)
    print(f"Written to {out}")


@app.command(epilog="Example: python -m research bench compaction runs/fashion-mnist-mlp-group-mn")
def compaction(
    run: RunFolder,
    log_alpha: Annotated[
        list[float] | None, typer.Option(help="Threshold; may be repeated. All.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images in a pass.")] = 256,
    rounds: Rounds = 20,
    threads: Threads = None,
    clock: Clock = "wall",
    out: Out = _RESULTS / "compaction.json",
) -> None:
    """Measure a compacted network against the whole one, beside their multiply-adds."""
    _set_threads(threads)
    compacted.measure_speeds(run, log_alpha or (), batch, rounds, clock, out)
    print(f"Written to {out}")


@app.command(epilog="Example: python -m research bench laboratory")
def laboratory(
    epochs: Annotated[int, typer.Option(min=2, help="Timed epochs; quartiles need 2.")] = 10,
    examples: Annotated[int, typer.Option(min=1, help="Generated images.")] = 50_000,
    threads: Threads = None,
    out: Out = _RESULTS / "laboratory.json",
) -> None:
    """Measure an epoch of leanbayes train against a bare loop."""
    _set_threads(threads)
    lab.measure_epochs(epochs, examples, out)
    print(f"Written to {out}")


@app.command(epilog="Example: python -m research bench corruptions")
def corruptions(
    images: Annotated[int, typer.Option(min=1, help="Number of images.")] = 1000,
    out: Out = damage.RESULTS,
    page: Annotated[Path, typer.Option(help="Page with the table.")] = damage.PAGE,
) -> None:
    """Measure images per second and squared errors of every corruption."""
    torch.set_num_threads(1)
    damage.measure_corruptions(images, out, page)
    print(f"Written to {out} and {page}")


@app.command(epilog="Example: python -m research bench generator")
def generator(
    blocks: Annotated[int, typer.Option(min=1, help="Millions of normals.")] = noise.BLOCKS,
    out: Out = _RESULTS / "generator.json",
) -> None:
    """Test the noise of the native kernels: statistics of 4 · 10⁸ normals, and Dieharder."""
    torch.set_num_threads(1)
    noise.judge_generator(blocks, out)
    print(f"Written to {out}")


@app.command(epilog="Example: python -m research bench quality --seeds 3")
def quality(seeds: Seeds = 3, out: Out = _RESULTS / "quality.json") -> None:
    """Measure seconds of training to a −ELBO on MNIST, beside two peers; a stopped run resumes."""
    measure_quality(seeds, out)
    print(f"Written to {out}")
