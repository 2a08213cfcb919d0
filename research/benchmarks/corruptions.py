"""How many images a second every corruption damages, and how much they suffer.

Images are the first of CIFAR-10's test images if it is in a folder that ``LEANBAYES_DATA`` names,
else random pixels of the same size, of which only the speed is kept. Processor time of one thread
is counted, so that a busy machine does not matter much. The table goes to ``docs/corruptions.md``.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leanbayes.lab.files import write_json, write_text
from research.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from research.data.formats import read_column_of_images
from research.measuring.machine import facts
from research.publishing import paper
from research.publishing.tables import markdown_table

RESULTS, PAGE = paper.RESULTS / "bench" / "corruptions.json", paper.DOCS / "corruptions.md"
BEGIN, END = "<!-- measured -->\n", "<!-- end of what was measured -->"


def photographs(count: int) -> Tensor | None:
    folder = Path(os.environ.get("LEANBAYES_DATA", ""), "cifar-10", "test")
    files = sorted(folder.glob("*.webp"))[: -(-count // 500)]
    if not files:
        return None
    pixels = [torch.from_numpy(read_column_of_images(path)) for path in files]
    return torch.cat(pixels)[:count].float() / 255


def measure(count: int) -> dict[str, Any]:
    found = photographs(count)
    images = torch.rand(count, 3, 32, 32) if found is None else found
    results = {}
    for name in CORRUPTIONS:
        corrupt(images[:8], name, 1)  # photographs of frost are read once
        began = time.process_time()
        damaged = [corrupt(images, name, severity) for severity in SEVERITIES]
        seconds = time.process_time() - began
        squares = [float((x - images).square().mean()) for x in damaged]
        results[name] = {
            "images_per_second": len(SEVERITIES) * count / seconds,
            "squared_error": None if found is None else squares,
        }
    return {"images": count, "corruptions": results}


def is_growing(errors: list[float]) -> bool:
    """Up to a thousandth: motion blur has two severities that are all but the same."""
    return all(later >= 0.999 * before for before, later in itertools.pairwise(errors))


def table(result: dict[str, Any]) -> str:
    """Return squared errors in thousandths and speeds, as Markdown."""
    lines = []
    for name, row in result["corruptions"].items():
        errors = row["squared_error"]
        cells = ["–"] * 5 if errors is None else [f"{1000 * error:.2f}" for error in errors]
        grows = "–" if errors is None else "yes" if is_growing(errors) else "no"
        speed = f"{float(format(row['images_per_second'], '.2g')):,.0f}"
        lines.append([f"`{name}`", *cells, grows, speed])
    header = ["Corruption", "1", "2", "3", "4", "5", "grows", "images a second"]
    return markdown_table(header, lines, text=1) + "\n"


def measure_corruptions(count: int, out: Path, page: Path) -> None:
    """Measure all corruptions, write the file of results and the table of the page."""
    result = {**facts(), **measure(count)}
    write_json(out, result)
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    write_text(page, f"{before}{BEGIN}\n{table(result)}\n{END}{rest.partition(END)[2]}")
