"""Targeted attacks on plain, dropped-out, ensembled and variance networks [variance, 6.3]."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.errors import require
from leanbayes.lab import plots
from leanbayes.lab.data import Dataset, Scaling
from leanbayes.lab.provenance import environment_facts
from leanbayes.lab.runs import Run
from leanbayes.prediction.eval_mode import evaluating
from research.papers.variance.sign_attack import dropping_out, fast_sign_attack
from research.publishing.cells import with_error
from research.publishing.run_commands import folded, with_seeds
from research.publishing.study_file import StudyFile, Tell
from research.publishing.tables import markdown_table

Gradient = Literal["averaged", "of_average"]
GRADIENTS: tuple[Gradient, ...] = ("averaged", "of_average")
ROLES = ("deterministic", "dropout", "variance")
NETWORKS = ("deterministic", "dropout", "deep ensemble", "variance", "variance ensemble")
PUBLISHED = {"variance ensemble": "1", "variance": "2"}
"""Ranks by the text of the paper, the most resistant first; it does not rank the others."""


@dataclass(frozen=True)
class AttackSettings:
    """How networks are attacked.

    Args:
        images: how many test images, all of which every network takes for what they are.
        iterations: how many steps.
        step: how far one goes, on the scale of the pixels (0 to 255).
        draws: of a random network, for a gradient, and as many to count; ensembles share them.
        seed: chooses images, targets and draws.
    """

    images: int = 500
    iterations: int = 20
    step: float = 0.5
    draws: int = 10
    seed: int = 0


class _Network(NamedTuple):
    """Models that answer together, and how many draws each of them gives."""

    models: Sequence[nn.Module]
    samples: int
    dropout: bool = False

    @property
    def gradients(self) -> tuple[Gradient, ...]:
        """With a single draw the two gradients are the same."""
        single = self.samples == 1 and len(self.models) == 1
        return GRADIENTS[:1] if single else GRADIENTS

    def labels(self, x: Tensor, seed: int) -> Tensor:
        """Return what the network takes inputs for, by the mean over models and draws."""
        probs = torch.stack([self._probs(model, x, seed) for model in self.models])
        return probs.mean(0).argmax(-1)

    @torch.no_grad()
    def _probs(self, model: nn.Module, x: Tensor, seed: int) -> Tensor:
        if not self.dropout:
            return lb.predict(model, x, samples=self.samples, seed=seed).probs
        with torch.random.fork_rng(devices=[]), evaluating(model), dropping_out(model):
            torch.manual_seed(seed)
            return torch.stack([model(x).softmax(-1) for _ in range(self.samples)]).mean(0)


class _FromPixels(nn.Module):
    """A network that takes pixels as they are stored, so that a step means the same for all."""

    def __init__(self, model: nn.Module, scaling: Scaling) -> None:
        super().__init__()
        self.model, self.scaling = model, scaling

    def forward(self, x: Tensor) -> Tensor:
        return self.model(self.scaling(x))


def attack_runs(
    runs: Sequence[str | Path],
    settings: AttackSettings,
    out: str | Path,
    *,
    progress: bool = False,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """Attack the networks of finished runs, and write the share of successes after every step.

    A recipe's name ends with its role: deterministic, dropout or variance. The first run of a role,
    by its seed, is the single network; several plain runs are the deep ensemble, and several
    variance runs the variance ensemble. Attacks that the file holds are not repeated.
    """
    by_role = _by_role([Run(folder) for folder in runs])
    described = {role: [_described(run) for run in group] for role, group in by_role.items()}
    file = StudyFile(out, "attacks", {**asdict(settings), "runs": described})
    data = next(iter(by_role.values()))[0].dataset
    networks = _networks(by_role, data, settings.draws)
    images = _images(data, networks, settings)
    parts = {
        f"{name}, {gradient}": partial(_attacked, network, gradient, images, settings)
        for name, network in networks.items()
        for gradient in network.gradients
    }
    return file.fill(parts, tell, progress=progress)


def _by_role(runs: Sequence[Run]) -> dict[str, list[Run]]:
    by_role: dict[str, list[Run]] = {role: [] for role in ROLES}
    for run in sorted(runs, key=lambda run: run.recipe.seed):
        role = run.recipe.name.rpartition("-")[2]
        require(
            role in by_role,
            f"{run.folder} is a run of {run.recipe.name!r}, whose name ends with none of "
            f"{', '.join(ROLES)}; give runs of recipes that do",
        )
        seeds = [other.recipe.seed for other in by_role[role]]
        require(
            run.recipe.seed not in seeds,
            f"{run.folder} is a second {role} run with seed {run.recipe.seed}; an ensemble needs "
            "different seeds",
        )
        by_role[role].append(run)
    require(any(by_role.values()), "there is no run to attack; give run folders")
    data = {repr(run.recipe.data) for group in by_role.values() for run in group}
    require(len(data) == 1, f"the runs learned {' and '.join(sorted(data))}; give runs of one")
    return {role: group for role, group in by_role.items() if group}


def _described(run: Run) -> dict[str, Any]:
    metrics = run.metrics
    accuracy = round(metrics["accuracy"].value, 5) if "accuracy" in metrics else None
    return {"recipe": run.recipe.name, "seed": run.recipe.seed, "accuracy": accuracy}


def _networks(
    by_role: Mapping[str, Sequence[Run]], data: Dataset, draws: int
) -> dict[str, _Network]:
    """Return what is attacked, by name; the members of an ensemble share the draws."""
    models = {role: [_loaded(run, data) for run in runs] for role, runs in by_role.items()}
    networks = {}
    for role, ensemble in (("deterministic", "deep ensemble"), ("variance", "variance ensemble")):
        found = models.get(role, [])
        samples = draws if role == "variance" else 1
        if found:
            networks[role] = _Network(found[:1], samples)
        if len(found) > 1:
            networks[ensemble] = _Network(found, max(1, samples // len(found)))
    if "dropout" in models:
        networks["dropout"] = _Network(models["dropout"][:1], draws, dropout=True)
    return {name: networks[name] for name in NETWORKS if name in networks}


def _loaded(run: Run, data: Dataset) -> nn.Module:
    if data.scaling is None or data.test.stored.dtype != torch.uint8:
        raise ValueError(
            f"{run.folder} learned {data.name}, which has no pixels; give runs on images"
        )
    return _FromPixels(run.load()[0], data.scaling).eval()


class _Images(NamedTuple):
    x: Tensor
    labels: Tensor
    targets: Tensor
    highest: float
    looked_at: int


def _images(data: Dataset, networks: Mapping[str, _Network], settings: AttackSettings) -> _Images:
    """The first images of a random order that all networks are right about, and their targets."""
    generator = torch.Generator().manual_seed(settings.seed)
    order = torch.randperm(len(data.test), generator=generator)
    right: list[int] = []
    looked_at = 0
    for part in order.split(settings.images):
        x, y = data.test.stored[part].float(), data.test.y[part]
        all_right = torch.ones(len(part), dtype=torch.bool)
        for network in networks.values():
            all_right &= network.labels(x, settings.seed) == y
        right += part[all_right].tolist()
        looked_at += len(part)
        if len(right) >= settings.images:
            break
    require(
        len(right) >= settings.images,
        f"all networks are right about {len(right)} test images, and {settings.images} are to be "
        "attacked; ask for fewer, or train longer",
    )
    chosen = torch.tensor(right[: settings.images])
    labels = data.test.y[chosen]
    others = torch.randint(1, len(data.classes), labels.shape, generator=generator)
    targets = (labels + others) % len(data.classes)
    highest = float(data.train.stored.max())
    return _Images(data.test.stored[chosen].float(), labels, targets, highest, looked_at)


def _attacked(
    network: _Network, gradient: Gradient, images: _Images, settings: AttackSettings
) -> dict[str, Any]:
    started = time.monotonic()
    attack = fast_sign_attack(
        list(network.models),
        images.x,
        images.targets,
        step=settings.step,
        iterations=settings.iterations,
        samples=network.samples,
        gradient=gradient,
        labels=images.labels,
        clip=(0.0, images.highest),
        dropout=network.dropout,
        batch_size=100,
        seed=settings.seed,
    )
    success = attack.success
    return {
        "success": [round(score.value, 5) for score in success],
        "error": [round(score.error, 5) for score in success],
        "models": len(network.models),
        "draws of each": network.samples,
        "looked_at": images.looked_at,
        "distance": attack.distance,
        "seed": settings.seed,
        "seconds": round(time.monotonic() - started, 1),
        **environment_facts(),
    }


def draw_attacks(study: Mapping[str, Any], gradient: str = "averaged") -> bytes:
    """Return the share of images taken for their target over iterations ± one standard error."""
    lines, bands = {}, {}
    for name in NETWORKS:
        if part := _part(study, name, gradient):
            pairs = list(zip(part["success"], part["error"], strict=True))
            lines[name] = [100 * value for value, _ in pairs]
            lows, highs = ([100 * (v + sign * e) for v, e in pairs] for sign in (-1, 1))
            bands[name] = lows, highs
    x = range(len(next(iter(lines.values()))))
    label = "taken for the target, %"
    return plots.curves(x, lines, label, xlabel="iteration", bands=bands)


def _part(study: Mapping[str, Any], name: str, gradient: str) -> Mapping[str, Any] | None:
    parts: Mapping[str, Any] = study["parts"]
    return parts.get(f"{name}, {gradient}", parts.get(f"{name}, {GRADIENTS[0]}"))


def attacks_table(study: Mapping[str, Any]) -> str:
    """A Markdown table: successes half-way and at the end, ranks by the mean over iterations."""
    found = {name: part for name in NETWORKS if (part := _part(study, name, "averaged"))}
    means = {name: sum(part["success"]) / len(part["success"]) for name, part in found.items()}
    ranks = {name: i for i, name in enumerate(sorted(means, key=means.__getitem__), 1)}
    last = study["settings"]["iterations"]
    half = last // 2
    header = ["network", "accuracy", f"after {half}", f"after {last}"]
    header += [f"after {last}, gradient of the average", "mean", "rank", "rank in the paper"]
    of_average = {name: study["parts"].get(f"{name}, of_average") for name in found}
    lines = (
        [
            name,
            _accuracy(study, name),
            _success(part, half),
            _success(part, last),
            _success(of_average[name], last),
            f"{100 * means[name]:.1f}%",
            str(ranks[name]),
            PUBLISHED.get(name, "3–5"),
        ]
        for name, part in found.items()
    )
    return "\n\n".join((markdown_table(header, lines, text=len(header)), _commands(study)))


def _commands(study: Mapping[str, Any]) -> str:
    """Return what trains the attacked runs and attacks them, folded."""
    seeds: dict[str, list[int]] = {}
    for run in chain.from_iterable(study["settings"]["runs"].values()):
        seeds.setdefault(run["recipe"], []).append(run["seed"])
    lines = [
        with_seeds(f"python -m research.lab train variance/{recipe} --budget paper", known)
        for recipe, known in seeds.items()
    ]
    attack = "python -m research papers attack runs/cifar10-attack-* --out attack.json"
    return folded([*lines, attack])


def _success(part: Mapping[str, Any] | None, iteration: int) -> str:
    if part is None:
        return "–"
    success, error = 100 * part["success"][iteration], 100 * part["error"][iteration]
    return f"{with_error(success, error, 1)}%"


def _accuracy(study: Mapping[str, Any], name: str) -> str:
    """Of a single network as its run was judged."""
    runs = study["settings"]["runs"].get(name)
    return "–" if not runs or runs[0]["accuracy"] is None else f"{100 * runs[0]['accuracy']:.1f}%"
