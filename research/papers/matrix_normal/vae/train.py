"""Training of a variational auto-encoder: one thread's worth of Python a step, resumable."""

import time
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.errors import require
from leanbayes.lab.data import Batches, Dataset, Examples
from leanbayes.lab.provenance import environment_facts
from research.data import load_dataset
from research.papers.matrix_normal.vae.folder import VaeFolder
from research.papers.matrix_normal.vae.network import Vae, standard_kl
from research.papers.matrix_normal.vae.settings import VaeSettings

_EVALUATED = 500
"""Images that are judged at once: their activations fit the cache."""
_JUDGED_BY = 1_000_003
"""Seed of the noise by which validation images are judged: the same in all epochs and runs."""

_CLOCKS = ("seconds", "processor_seconds")
"""What passed on the wall, and what the process was given: less, where others worked, too."""


class Bound(NamedTuple):
    """The evidence lower bound of some images and its two parts, averages over images."""

    bound: float
    log_likelihood: float
    kl: float


def _parts(model: Vae, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return sums over a batch of ``−log p(x | z)``, for one draw of z each, and of the KL."""
    logits, posterior = model(x)
    missed = F.binary_cross_entropy_with_logits(logits, x.flatten(1), reduction="sum")
    return missed, standard_kl(posterior).sum()


@torch.no_grad()
def evidence_bound(model: Vae, images: Examples, *, draws: int = 1, seed: int = 0) -> Bound:
    """Return the evidence lower bound, with the KL in closed form and drawn latent vectors."""
    totals = torch.zeros(2, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for _ in range(draws):
            for x, _ in Batches(images, _EVALUATED).in_order():
                totals += torch.stack(_parts(model, x)).double()
    missed, kl = (totals / (draws * len(images))).tolist()
    return Bound(-missed - kl, -missed, kl)


def load_images(settings: VaeSettings) -> Dataset:
    """Return the data set that an auto-encoder is trained on, if it is one of binary images."""
    dataset = load_dataset(settings.data)
    require(
        dataset.task == "density" and dataset.validation is not None,
        f"data set {settings.data!r} has no binary images with some for validation; choose "
        "'mnist-static-binarized'",
    )
    return dataset


def train_vae(
    settings: VaeSettings,
    out: str | Path,
    *,
    dataset: Dataset | None = None,
    tell: Callable[[Mapping[str, float]], object] | None = None,
) -> dict[str, Any]:
    """Train an auto-encoder in a folder; a stopped one goes on, a finished one is only read.

    Batches and noise of an epoch depend on the seed and the epoch alone, so that one that was
    stopped ends with the numbers of one that was not. The weights that stay are those with the
    best evidence lower bound of the validation images.

    Returns:
        The content of ``result.json``.
    """
    folder = VaeFolder(out)
    with folder.alone():
        folder.begin(settings)
        result = folder.result()
        if result is None:
            training = _Training(settings, dataset or load_images(settings), folder)
            result = training.run(tell or (lambda row: None))
        return result


class _Training:
    """One auto-encoder on its way: its curve so far, and the best weights."""

    def __init__(self, settings: VaeSettings, dataset: Dataset, folder: VaeFolder) -> None:
        self.settings, self.dataset, self.folder = settings, dataset, folder
        train = dataset.train[: settings.images]
        self.batches = Batches(train, settings.batch_size, seed=settings.seed)
        self.model = settings.network(dataset.train.stored[0].numel())
        self.model.reset(torch.Generator().manual_seed(settings.seed))
        self.optimizer = torch.optim.Adam(self.model.parameters(), settings.rate, fused=True)
        self.curve: list[dict[str, float]] = []
        self.best: dict[str, Any] = {"epoch": -1, "bound": -float("inf"), "weights": {}}

    def run(self, tell: Callable[[Mapping[str, float]], object]) -> dict[str, Any]:
        """Train until the bound stops rising; return the result."""
        state = self.folder.last_state(self.model)
        if state is not None:
            self._restore(state)
        while not self._is_over():
            tell(self._epoch(len(self.curve)))
            self.folder.save_state(self._state())
        result = self._result()
        self.folder.finish(self.best["weights"], result)
        return result

    def _is_over(self) -> bool:
        """Patience counts from the first epoch in which the KL has its whole weight."""
        done, settings = len(self.curve), self.settings
        waited = done - 1 - max(self.best["epoch"], settings.annealing_epochs)
        return done >= settings.epochs or waited >= settings.patience

    def _epoch(self, epoch: int) -> dict[str, float]:
        began, worked = time.perf_counter(), time.process_time()
        weight, rate = self.settings.kl_weight(epoch), self.settings.learning_rate(epoch)
        missed, kl = (self._pass(epoch, weight, rate) / len(self.batches.examples)).tolist()
        assert self.dataset.validation is not None
        judged = evidence_bound(self.model, self.dataset.validation, seed=_JUDGED_BY)
        require(
            isfinite(missed + kl + judged.bound),
            f"numbers are not finite any more in epoch {epoch}; choose a lower rate and another "
            "folder",
        )
        if judged.bound > self.best["bound"]:
            weights = {name: value.clone() for name, value in self.model.state_dict().items()}
            self.best = {"epoch": epoch, "bound": judged.bound, "weights": weights}
        row = {
            "epoch": epoch,
            "kl_weight": weight,
            "rate": rate,
            "train_bound": -missed - kl,
            "train_kl": kl,
            "validation_bound": judged.bound,
            "validation_kl": judged.kl,
            "seconds": round(time.perf_counter() - began, 3),
            "processor_seconds": round(time.process_time() - worked, 3),
        }
        self.curve.append(row)
        return row

    def _pass(self, epoch: int, weight: float, rate: float) -> Tensor:
        """Return one pass over the training images; sums of ``−log p(x | z)`` and of the KL."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        totals = torch.zeros(2, dtype=torch.float64)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed((self.settings.seed * _JUDGED_BY + epoch) % 2**63)
            for x, _ in self.batches.epoch(epoch):
                missed, kl = _parts(self.model, x)
                self.optimizer.zero_grad()
                ((missed + weight * kl) / len(x)).backward()
                self.optimizer.step()
                totals += torch.stack((missed.detach(), kl.detach()))
        return totals

    def _state(self) -> dict[str, Any]:
        return {
            "settings": self.settings.to_json(),
            "epoch": len(self.curve) - 1,
            "state_dict": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best": self.best,
            "curve": self.curve,
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["state_dict"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.best, self.curve = dict(state["best"]), list(state["curve"])

    def _result(self) -> dict[str, Any]:
        """Return numbers of the best weights."""
        self.model.load_state_dict(self.best["weights"])
        return {
            "settings": self.settings.to_json(),
            "annealing": self.settings.annealing_epochs,
            "epochs": len(self.curve),
            "best_epoch": self.best["epoch"],
            "validation_bound": self.best["bound"],
            "bound": evidence_bound(self.model, self.dataset.test, seed=_JUDGED_BY)._asdict(),
            "encoder_outputs": self.model.latent.outputs,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            **{name: round(sum(row[name] for row in self.curve), 1) for name in _CLOCKS},
            **environment_facts("numpy"),
        }
