"""One benchmark in a separate process: ``-m research.benchmarks.worker NAME OPTIONS OUT``.

The peers' environment runs it too, which has torch and safetensors and nothing else.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from research.benchmarks import (
    distributed,
    networks_run,
    one_pass,
    prediction,
    scale,
    startup,
    step,
)
from research.benchmarks.step import Options

BENCHMARKS = {
    "step": step.run,
    "prediction": prediction.run,
    "one_pass": one_pass.run,
    "networks": networks_run.run,
    "startup": startup.run,
    "scale": scale.run,
    "distributed": distributed.run,
}


def main(name: str, options: str, out: str) -> None:
    settings = json.loads(options)
    torch.set_num_threads(settings.pop("threads"))
    found = BENCHMARKS[name](Options(**settings))
    Path(out).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
