"""Training by the recommended recipe: cosine decay, KL warm-up, the best epoch."""

import copy
import io
import math
import os
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from leanbayes.errors import LoadError, NonFiniteLossError, require, require_count, require_positive
from leanbayes.likelihoods import Categorical, Likelihood
from leanbayes.prediction.eval_mode import noise_by
from leanbayes.prediction.predict import Method
from leanbayes.saving.files import replace_file
from leanbayes.training.batches import Batches, batches_of
from leanbayes.training.history import History, ProgressLine
from leanbayes.training.objective import BatchObjective, mixture_nll
from leanbayes.training.parameter_groups import parameter_groups
from leanbayes.training.schedules import recommended_kl_weight

_CLIP = 10.0
"""Largest norm of a gradient where noise is predicted: an example believed to have none pulls
without bound."""
_VALIDATIONS = 100
"""Longer trainings are not validated after every epoch."""


@dataclass(frozen=True)
class _Settings:
    """Settings of a training; a checkpoint continues only with equal ones."""

    epochs: int
    lr: float
    kl_weight: float
    kl_warmup: float
    clip: float | None
    validation_samples: int
    seed: int
    cosine: bool = True
    patience: int | None = None
    validation_method: Method = "samples"

    def __post_init__(self) -> None:
        require_count("epochs", self.epochs, 1)
        require_positive(lr=self.lr)
        require_count("validation_samples", self.validation_samples, 1)
        if self.patience is not None:
            require_count("patience", self.patience, 1)
        require(
            0 <= self.kl_weight < math.inf,
            f"kl_weight must not be negative, got {self.kl_weight}. 1 is the ELBO",
        )
        require(
            0 <= self.kl_warmup <= 1,
            f"kl_warmup must be from 0 to 1, got {self.kl_warmup}. It is a share of the steps",
        )

    def kl_at(self, done: float) -> float:
        """Return the KL weight after a share of the training."""
        return self.kl_weight * min(1.0, done / self.kl_warmup if self.kl_warmup else 1.0)

    def lr_factor(self, done: float) -> float:
        """Return cosine decay of all learning rates to zero."""
        return 0.5 + 0.5 * math.cos(math.pi * done) if self.cosine else 1.0

    def is_validated(self, epoch: int) -> bool:
        """Return whether an epoch, counted from 1, ends with a validation; the last one does."""
        return epoch % -(-self.epochs // _VALIDATIONS) == 0 or epoch == self.epochs


def fit(
    model: nn.Module,
    train: Any,
    validation: Any = None,
    *,
    epochs: int,
    likelihood: Likelihood | None = None,
    lr: float = 1e-3,
    cosine: bool = True,
    weight_decay: float = 0.0,
    batch_size: int = 128,
    optimizer: Callable[[list[dict[str, Any]]], Optimizer] | None = None,
    kl_weight: float | None = None,
    kl_warmup: float = 0.8,
    clip: float | None = None,
    data_size: float | None = None,
    validation_samples: int = 10,
    validation_method: Method = "samples",
    patience: int | None = None,
    target: str = "labels",
    output: Callable[[Any], Tensor] | None = None,
    batch_dim: int = 0,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> History:
    """Train a model in place by the recommended recipe and return its history.

    The learning rate falls along a cosine, the KL weight rises over the first ``kl_warmup`` of the
    steps, weight decay acts on means only. With validation data the model ends with the weights
    of its best epoch. Ctrl-C ends the training early and keeps what was learned so far. A plain
    network is trained too, without a KL.

    Args:
        model: Converted model (:func:`leanbayes.convert`), or a plain network.
        train: Pair ``(x, y)`` of arrays, or ``(x, y, weight)`` with weights of examples; a Dataset;
            or a DataLoader of pairs or dictionaries.
        validation: The same for validation data, which is looked at about 100 times at most.
        epochs: Number of passes over the training data.
        likelihood: Likelihood of the outputs; classes if not given. Its parameters are trained too.
        lr: Learning rate at the start.
        cosine: Whether it falls to zero along a cosine. If not, it stays, as for data that arrive
            piece by piece.
        weight_decay: Weight decay of the means; scales have their prior instead.
        batch_size: Number of examples per step, for arrays and Datasets.
        optimizer: Makes the optimizer from parameter groups; AdamW if not given.
        kl_weight: Weight of the KL at the end; 1 is the ELBO. If not given, the one that needs no
            tuning, :func:`~leanbayes.training.recommended_kl_weight`.
        kl_warmup: Share of the steps over which that weight rises from zero.
        clip: Largest norm of the gradient; by default none, and 10 where noise is predicted.
        data_size: Number of training examples, where the loader does not know it or more will
            come; for arrays the sum of their weights if not given.
        validation_samples: Draws per validation.
        validation_method: Method of these predictions, as in :func:`leanbayes.predict`.
        patience: Stop after so many validations without a better one; by default never.
        target: Key of the targets in batches that are dictionaries.
        output: Chooses the tensor that the likelihood describes.
        batch_dim: Dimension of the inputs that counts examples.
        seed: Random seed of batches and noise. Torch's own generators stay as they were.
        checkpoint: File that is written after every epoch; a training that was stopped
            continues from it and ends in the same numbers.
        progress: Whether to show a line of progress; by default on a terminal.

    Returns:
        One row per epoch, which :func:`leanbayes.diagnose` and :mod:`leanbayes.plots` take.

    Raises:
        NonFiniteLossError: The loss became NaN or infinite.
        LoadError: The checkpoint belongs to another training.

    Example:
        >>> import leanbayes as lb
        >>> x, y = torch.randn(200, 3), torch.randint(2, (200,))
        >>> model = lb.convert(nn.Linear(3, 2), lb.KTied(), lb.priors.Normal(1.0))
        >>> history = fit(model, (x, y), epochs=2)
        >>> len(history)
        2
    """
    batches = batches_of(train, batch_size, data_size)
    likelihood = likelihood or _classes(batches, target)
    if clip is None and getattr(likelihood, "noise", None) == "predicted":
        clip = _CLIP
    if kl_weight is None:
        kl_weight = recommended_kl_weight(model, batches.data_size)
    settings = _Settings(
        *(epochs, lr, kl_weight, kl_warmup, clip, validation_samples, seed, cosine, patience),
        validation_method,
    )
    require(
        patience is None or validation is not None,
        f"patience is {patience}, and there is no validation data. Give validation=…",
    )
    options: dict[str, Any] = {"target": target, "output": output, "batch_dim": batch_dim}
    objective = BatchObjective(model, likelihood, batches.data_size, **options)
    groups = parameter_groups(model, lr, weight_decay=weight_decay)
    groups += [{"role": "likelihood", "params": list(likelihood.parameters()), "lr": lr}]
    groups = [{**group, "initial_lr": group["lr"]} for group in groups if group["params"]]
    made = (optimizer or torch.optim.AdamW)(groups)
    held_out = None if validation is None else batches_of(validation, batch_size, 1)
    path = None if checkpoint is None else Path(checkpoint)
    require(
        path is None or path.parent.is_dir(),
        f"checkpoint must be in a folder that exists, got {checkpoint}. Make the folder first",
    )
    return _Fitting(objective, made, settings, held_out, path).run(batches, progress)


class _Fitting:
    """A training that is under way, and all that is needed to go on with it."""

    def __init__(
        self,
        objective: BatchObjective,
        optimizer: Optimizer,
        settings: _Settings,
        validation: Batches | None,
        checkpoint: Path | None,
    ) -> None:
        self.objective, self.optimizer, self.settings = objective, optimizer, settings
        self.validation, self.checkpoint = validation, checkpoint
        self.history = History(likelihood=objective.likelihood)
        self.best: dict[str, Any] | None = None
        self._modules = nn.ModuleDict(
            {"model": objective.model, "likelihood": objective.likelihood}
        )

    def run(self, batches: Batches, progress: bool | None) -> History:
        """Return all epochs that are left."""
        self._resume()
        steps, done = self.settings.epochs * len(batches), len(self.history) * len(batches)
        line = ProgressLine(max(steps, 1), done, progress if steps else False)
        try:
            for epoch in range(len(self.history), self.settings.epochs):
                if self._is_over():
                    break
                self.history.append(self._epoch(epoch, batches, line))
                self._keep_best()
                self._save()
        except KeyboardInterrupt:
            self.history.interrupted = True
        finally:
            line.close()
        if self.best is not None:
            self._modules.load_state_dict(self.best)
        return self.history

    def _is_over(self) -> bool:
        patience = self.settings.patience
        return patience is not None and self.history.validations_since_best >= patience

    def _epoch(self, epoch: int, batches: Batches, line: ProgressLine) -> dict[str, float]:
        """Return one pass over the data, and a validation; returns the row of the history."""
        started = time.monotonic()
        seed = (self.settings.seed * 1_000_003 + epoch) % 2**63
        with noise_by(seed, self._modules, quick=True):
            row = self._pass(epoch, seed, batches, line)
            if self.validation is not None and self.settings.is_validated(epoch + 1):
                row |= self._validated(self.validation)
        return row | {"seconds": time.monotonic() - started}

    def _pass(
        self, epoch: int, seed: int, batches: Batches, line: ProgressLine
    ) -> dict[str, float]:
        """See every example once."""
        self._modules.train()
        totals, examples = torch.zeros(3), 0
        count, weight, said = max(len(batches), 1), 0.0, self._said()
        for number, batch in enumerate(batches.epoch(torch.Generator().manual_seed(seed))):
            done = (epoch + min(number / count, 1.0)) / self.settings.epochs
            weight = self.settings.kl_at(done)
            parts = self._step(batch, done, weight)
            size = self.objective.size_of(batch)
            totals += torch.stack([parts.loss, parts.nll, parts.kl]).detach().float().cpu() * size
            examples += size
            line.step(f"epoch {epoch + 1}/{self.settings.epochs}{said}")
        require(examples > 0, "the training data has no batch; give at least one")
        loss, nll, kl = (totals / examples).tolist()
        self._check(loss, epoch)
        return {"epoch": epoch + 1, "loss": loss, "nll": nll, "kl": kl, "weight": weight}

    def _step(self, batch: Any, done: float, kl_weight: float) -> Any:
        factor = self.settings.lr_factor(done)
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        parts = self.objective(batch, kl_weight)
        self.optimizer.zero_grad()
        parts.loss.backward()
        if self.settings.clip is not None:
            nn.utils.clip_grad_norm_(self._modules.parameters(), self.settings.clip)
        self.optimizer.step()
        return parts

    def _check(self, loss: float, epoch: int) -> None:
        if not math.isfinite(loss):
            raise NonFiniteLossError(
                f"the loss is {loss} in epoch {epoch + 1}",
                "Lower lr, give clip=…, or look for extreme values in the inputs",
            )

    @torch.no_grad()
    def _validated(self, batches: Batches) -> dict[str, float]:
        nll, right, examples = 0.0, 0.0, 0
        settings = self.settings
        for batch in batches.epoch(None):
            p = self.objective.predict(
                batch,
                settings.validation_samples,
                method=settings.validation_method,
                seed=settings.seed,
            )
            y, weight = p.targets(self.objective.targets(batch)), self.objective.weights(batch)
            size = len(y)
            nll += float(mixture_nll(p.samples, y, self.objective.likelihood, weight)) * size
            if p.has_classes:
                right += float((p.labels == y).sum())
            examples += size
        row = {"validation_nll": nll / examples}
        return row | ({"validation_accuracy": right / examples} if right else {})

    def _said(self) -> str:
        """Return the last validation, for the line of progress."""
        seen = [row["validation_nll"] for row in self.history if "validation_nll" in row]
        return f", validation NLL {seen[-1]:.3f}" if seen else ""

    def _keep_best(self) -> None:
        if self.validation is not None and self.history.best_epoch == len(self.history):
            self.best = copy.deepcopy(self._modules.state_dict())

    def _save(self) -> None:
        if self.checkpoint is None:
            return
        state = {
            "settings": vars(self.settings),
            "rows": list(self.history),
            "modules": self._modules.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best": self.best,
        }
        buffer = io.BytesIO()
        torch.save(state, buffer)
        replace_file(self.checkpoint, buffer.getbuffer())

    def _resume(self) -> None:
        if self.checkpoint is None or not self.checkpoint.exists():
            return
        try:
            damaged = zipfile.ZipFile(self.checkpoint).testzip()  # torch.load checks no checksums
            require(damaged is None, f"{damaged} is damaged")
            state = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
            same = _Settings(**state["settings"]) == self.settings
        except Exception as error:
            raise LoadError(
                f"{self.checkpoint} is damaged, or not a checkpoint of lb.fit. Remove it, or name "
                "another file"
            ) from error
        if not same:
            raise LoadError(
                f"{self.checkpoint} belongs to a training with other settings. Use those, or name "
                "another file"
            )
        self._modules.load_state_dict(state["modules"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.history.extend(state["rows"])
        self.best = state["best"]


def _classes(batches: Batches, target: str) -> Likelihood:
    """Return the likelihood of whole-numbered targets; real ones need a choice."""
    y = getattr(batches, "y", None)
    require(
        y is None or not y.is_floating_point(),
        "targets are real numbers. Give a likelihood, such as "
        "likelihood=lb.likelihoods.Gaussian(0.1, 'learned')",
    )
    return Categorical()
