"""One network in six ways on Fashion-MNIST, with digits of MNIST as OOD images."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.lab.evaluation import foreign_auroc
from leanbayes.lab.provenance import environment_facts
from research.data import load_dataset
from research.measuring.harness import as_json, measure
from research.measuring.machine import facts
from research.publishing.study_file import StudyFile, Tell
from research.studies.small_tasks import Rows

CHOICES, COSTS = "choices", "costs"
"""The parts of a study that say which settings were chosen, and what a step costs."""

_BINS = 40


@dataclass(frozen=True)
class Settings:
    """How every network is trained and judged.

    Args:
        images: training images.
        epochs: over them; the rate of Adam falls along a cosine to zero.
        batch: images in a step.
        rate: the first rate of Adam.
        warmup: over which share of the steps the KL comes in.
        samples: functions that a prediction averages over, where there are several.
        hidden: units of both hidden layers.
        held_out: the share of training images by which methods choose their setting, by NLL.
    """

    images: int = 20_000
    epochs: int = 20
    batch: int = 128
    rate: float = 1e-3
    warmup: float = 0.8
    samples: int = 20
    hidden: int = 400
    held_out: float = 0.25


def network(settings: Settings, dropout: float = 0.0) -> nn.Sequential:
    """Return the network of the README."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs in (784, settings.hidden):
        layers += [nn.Linear(inputs, settings.hidden), nn.ReLU()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers, nn.Linear(settings.hidden, 10))


def _bayesian(posterior: lb.posteriors.Posterior) -> Callable[[Settings, float], nn.Module]:
    prior = lb.priors.Normal(0.2, learn="layer")
    return lambda settings, _: lb.convert(network(settings), posterior, prior)


class Method(NamedTuple):
    """A way to make the network.

    Attributes:
        build: gives a new one, by the settings of the study and the method's own.
        bayesian: whether the KL is trained with it; its own setting is then the KL's weight, and
            the recommended weight if it has none.
        networks: how many are trained.
        choices: what its own setting may be.
    """

    build: Callable[[Settings, float], nn.Module]
    bayesian: bool = False
    networks: int = 1
    choices: tuple[float, ...] = ()


_WEIGHTS = (1.0, 0.3, 0.1, 0.03, 0.01)
METHODS = {
    "plain network": Method(lambda settings, _: network(settings)),
    "ensemble of 5": Method(lambda settings, _: network(settings), networks=5),
    "MC dropout": Method(network, choices=(0.05, 0.1, 0.2, 0.3, 0.5)),
    "mean field": Method(_bayesian(lb.MeanField()), bayesian=True, choices=_WEIGHTS),
    "k-tied": Method(_bayesian(lb.KTied(2)), bayesian=True, choices=_WEIGHTS),
    "k-tied, nothing tuned": Method(
        lambda settings, _: lb.convert(network(settings)), bayesian=True
    ),
}


def read_images(settings: Settings) -> Rows:
    """Return the first training images of Fashion-MNIST, its test images, and those of MNIST."""
    own, other = (
        load_dataset(name, download=False, scaling="unit") for name in ("fashion-mnist", "mnist")
    )
    train = own.train[: settings.images]
    return Rows(train.x, train.y, own.test.x, own.test.y, other.test.x)


def train(model: nn.Module, images: Rows, settings: Settings, kl_weight: float = 0) -> nn.Module:
    """Return Adam on the cross-entropy, plus a KL that comes in if it has a weight."""
    lb.fit(
        model,
        (images.x, images.y),
        epochs=settings.epochs,
        batch_size=settings.batch,
        lr=settings.rate,
        kl_weight=kl_weight,
        kl_warmup=settings.warmup,
        seed=int(torch.randint(2**31, ())),
        progress=False,
    )
    return model.eval()


def _trained(method: Method, images: Rows, settings: Settings, choice: float) -> nn.Module:
    networks = []
    for _ in range(method.networks):
        model = method.build(settings, choice)
        weight = choice if method.bayesian else 0.0
        if method.bayesian and not method.choices:
            weight = lb.training.recommended_kl_weight(model, len(images.x))
        networks.append(train(model, images, settings, weight))
    if len(networks) > 1:
        return lb.DeepEnsemble(networks)
    drops = any(isinstance(layer, nn.Dropout) for layer in networks[0].modules())
    return lb.mc_dropout(networks[0]) if drops else networks[0]


def _chosen(method: Method, images: Rows, settings: Settings) -> dict[str, float]:
    """Return the NLL of held-out training images by each choice of a method."""
    kept = round((1 - settings.held_out) * len(images.x))
    x, y = images.x[kept:], images.y[kept:]
    part = images._replace(x=images.x[:kept], y=images.y[:kept])
    found = {}
    for choice in method.choices:
        torch.manual_seed(0)
        model = _trained(method, part, settings, choice)
        p = lb.predict(model, x, samples=settings.samples, seed=0, batch_size=1000)
        found[f"{choice:g}"] = round(p.metrics(y)["nll"].value, 5)
    return found


def _judged(model: nn.Module, images: Rows, settings: Settings, seed: int) -> dict[str, Any]:
    """Return scores of the test images, how well foreign ones are told, and entropies of both."""
    counted = 1 if isinstance(model, lb.DeepEnsemble) else settings.samples
    own, foreign = (
        lb.predict(model, x, samples=counted, seed=seed, batch_size=1000)
        for x in (images.test_x, images.ood_x)
    )
    scores = own.metrics(images.test_y)
    return {
        **{name: scores[name].value for name in ("accuracy", "nll", "ece")},
        "auroc": foreign_auroc(own.entropy, foreign.entropy),
        "sure": float((foreign.probs.amax(-1) > 0.9).float().mean()),
        "entropies": [_histogram(each.entropy) for each in (own, foreign)],
    }


def _histogram(entropy: Tensor) -> list[float]:
    """The share of images in each of some bins from 0 to the entropy of ten equal classes."""
    top = float(torch.tensor(10.0).log())
    counts = torch.histc(entropy.clamp(0, top), _BINS, 0.0, top)
    return [round(float(count) / len(entropy), 5) for count in counts]


def study_methods(
    settings: Settings, out: str | Path, *, seeds: int = 3, tell: Tell | None = None
) -> dict[str, Any]:
    """Choose every method's setting, then train and judge it with every seed the file lacks."""
    file = StudyFile(out, "overview", asdict(settings))
    images = read_images(settings)
    choices = file.parts.get(CHOICES, {})
    for name, method in METHODS.items():
        if method.choices and name not in choices:
            choices = {**choices, name: _chosen(method, images, settings)}
            file.keep(CHOICES, choices)
    best = {name: float(min(found, key=found.__getitem__)) for name, found in choices.items()}
    parts = {
        f"{name}, seed {seed}": partial(_part, name, best.get(name, 0.0), images, settings, seed)
        for seed in range(seeds)
        for name in METHODS
    }
    return file.fill(parts, tell)


def _part(name: str, choice: float, images: Rows, settings: Settings, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    began = time.monotonic()
    model = _trained(METHODS[name], images, settings, choice)
    return {
        "method": name,
        "choice": choice,
        "seed": seed,
        "parameters": sum(p.numel() for p in model.parameters()),
        **_judged(model, images, settings, seed),
        "duration": round(time.monotonic() - began, 1),
        **environment_facts(),
    }


def study_costs(settings: Settings, out: str | Path, *, rounds: int = 40) -> dict[str, Any]:
    """Measure a training step of every method against that of the plain network, in turns."""
    file = StudyFile(out, "overview", asdict(settings))
    torch.manual_seed(0)
    x, y = torch.rand(settings.batch, 1, 28, 28), torch.randint(10, (settings.batch,))
    steps = {name: _step(method, x, y, settings) for name, method in METHODS.items()}
    costs = measure(steps.pop("plain network"), steps, rounds=rounds)
    file.keep(COSTS, {"step": as_json(costs), "rounds": rounds, **facts()})
    return file.study


def _step(method: Method, x: Tensor, y: Tensor, settings: Settings) -> Callable[[], None]:
    """Return a step of every network that the method trains."""
    choice = method.choices[0] if method.choices else 0.0
    models = [method.build(settings, choice).train() for _ in range(method.networks)]
    optimizers = [torch.optim.Adam(model.parameters(), settings.rate) for model in models]

    def step() -> None:
        for model, optimizer in zip(models, optimizers, strict=True):
            loss = F.cross_entropy(model(x), y)
            if method.bayesian:
                loss = lb.elbo(loss, lb.kl(model), data_size=settings.images).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return step
