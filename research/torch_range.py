"""Core tests on other versions of torch and Python: what passes is declared in ``pyproject.toml``.

Each version is in a folder of its own, as ``pip install --target`` makes it, so nothing of this
environment is changed. The interpreter may be an emulated one: PyPI has builds for a CPU alone for
64-bit Arm, and none for x86-64.
"""

import json
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from leanbayes.lab.files import read_object, write_json
from leanbayes.lab.provenance import environment_facts, sources_hash
from research.publishing.pages import refresh
from research.publishing.tables import markdown_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "torch_range.json"
PAGE = ROOT / "docs" / "installation.md"
CORE = (
    "tests/conversion/test_convert.py",
    "tests/conversion/test_deterministic.py",
    "tests/kernels/test_kernels.py",
    "tests/layers/test_layers.py",
    "tests/models/test_model_kl.py",
    "tests/prediction/test_one_pass.py",
    "tests/prediction/test_predict.py",
    "tests/prediction/test_vectorized.py",
    "tests/saving/test_golden.py",
    "tests/test_torch_private.py",
    "tests/training/test_fit.py",
    "tests/training/test_objective.py",
)
"""Conversion, layers, KL, kernels, training, predictions and files."""
COMPILED = ("tests/kernels/test_operators.py", "tests/kernels/test_compile.py")
"""What ``torch.compile`` makes of them."""
FACTS = (
    "import json, platform, torch; print(json.dumps({'torch': torch.__version__, "
    "'python': platform.python_version(), 'machine': platform.machine()}))"
)

app = typer.Typer()


def _environment(folders: list[Path]) -> dict[str, str]:
    path = os.pathsep.join(str(each) for each in (*folders, ROOT / "src", ROOT))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def _outcome(text: str) -> dict[str, Any]:
    """Counts of pytest's last line, and the first error."""
    last = text.strip().rpartition("\n")[2]
    counts = {name: int(n) for n, name in re.findall(r"(\d+) (passed|failed|errors|skipped)", last)}
    found = re.search(r"^E\s+(\w*(?:Error|Exception|Warning)\b.*)$", text, re.MULTILINE)
    errors = found or re.search(r"^(\w*Error: .*)$", text, re.MULTILINE)
    return {**counts, "error": errors[1][:200] if errors else None}


def trial(python: str, folders: list[Path]) -> dict[str, Any]:
    """Run the core tests and the compiled ones with an interpreter and folders of packages."""
    run = partial(
        subprocess.run, env=_environment(folders), cwd=ROOT, capture_output=True, text=True
    )
    known = run([*python.split(), "-c", FACTS], check=True)

    def tested(tests: tuple[str, ...]) -> dict[str, Any]:
        begun = time.monotonic()
        done = run([*python.split(), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests])
        return {
            "tests": list(tests),
            **_outcome(done.stderr + done.stdout),
            "passes": done.returncode == 0,
            "seconds": round(time.monotonic() - begun),
        }

    facts = json.loads(known.stdout.strip().splitlines()[-1])
    return {**facts, **tested(CORE), "compiled": tested(COMPILED)}


@app.command(
    "torch-range",
    epilog="Example: python -m research torch-range envs/torch-2.6.0 --common envs/common",
)
def torch_range(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders with one torch each (pip install --target).")
    ],
    common: Annotated[
        Path | None, typer.Option(help="Folder with pytest, safetensors and the like.")
    ] = None,
    python: Annotated[
        str, typer.Option(help="Interpreter, with the words of an emulator before it.")
    ] = sys.executable,
) -> None:
    """Run the core tests on other versions of torch, and add them to the results."""
    for folder in folders:
        found = trial(python, [folder, *([common] if common else [])])
        key = f"{found['torch']}, Python {found['python']}, {found['machine']}"
        results = _results() if RESULTS.exists() else {"trials": {}}  # others may have added one
        results["trials"][key] = {**found, "sources": sources_hash()}
        results["measured_by"] = environment_facts()
        write_json(RESULTS, results)
        print(key, found)
    write_page()


def versions_table(results: dict[str, Any]) -> str:
    """Return the table of the page, oldest torch first."""
    rows = sorted(
        results["trials"].values(),
        key=lambda row: [int(n) for n in re.findall(r"\d+", row["torch"] + row["python"])],
    )
    cells = [
        [
            row["torch"].partition("+")[0],
            row["python"],
            row["machine"],
            _passed(row),
            _passed(row.get("compiled", {})),
        ]
        for row in rows
    ]
    headings = ["torch", "Python", "machine", "core tests passed", "compiled tests passed"]
    return markdown_table(headings, cells)


def _passed(counts: dict[str, Any]) -> str:
    passed = counts.get("passed", 0)
    total = passed + counts.get("failed", 0) + counts.get("errors", 0)
    return f"{passed:,} of {total:,}" if counts else ""


def _results() -> dict[str, Any]:
    return read_object(RESULTS, {"trials"}, "a table of versions", "run torch-range again")


def write_page() -> None:
    """Update the table of ``docs/installation.md``."""
    found = versions_table(_results())
    print(f"Written to {refresh(PAGE, {'torch-range': lambda _: found})}")
