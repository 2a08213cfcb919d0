"""The training objective: the ELBO, the losses over several samples, and the ELBO of a batch."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from leanbayes.errors import require
from leanbayes.layers.forward_pass import forward_pass
from leanbayes.likelihoods import Categorical, Likelihood
from leanbayes.likelihoods.mixtures import log_mean
from leanbayes.models.random_maps import kl, members, random_maps, splits_batch, tile
from leanbayes.models.random_maps import kl as model_kl
from leanbayes.prediction.eval_mode import is_compiled
from leanbayes.prediction.predict import Prediction, predict, shared_layers
from leanbayes.training.batches import Called, Parts, parts_of
from leanbayes.training.schedules import recommended_kl_weight


class Elbo(NamedTuple):
    """The parts of an objective, per example.

    Attributes:
        loss: ``nll + weight · kl``, to be minimized.
        nll: the negative log likelihood.
        kl: the KL divided by the size of the data.
        weight: factor of the KL.
    """

    loss: Tensor
    nll: Tensor
    kl: Tensor
    weight: float

    def __repr__(self) -> str:
        places = 2 if abs(float(self.loss.detach())) >= 1 else 4
        loss, nll, kl = (f"{float(part.detach()):.{places}f}" for part in self[:3])
        return f"loss {loss} = NLL {nll} + {self.weight:g} × KL {kl} per example"


def elbo(
    nll: Tensor, kl: Tensor | nn.Module, *, data_size: float, weight: float | None = None
) -> Elbo:
    """Return the loss per example, ``nll + weight · kl / data_size``: the negative ELBO.

    Args:
        nll: Mean negative log likelihood of a batch.
        kl: Converted model, or its KL, a sum over all weights.
        data_size: Number of training examples, not of batches; the sum of their weights where
            they have some.
        weight: Weight of the KL. If not given, 1 for a KL, and for a model the one that needs no
            tuning, :func:`~leanbayes.training.recommended_kl_weight`.

    Returns:
        The loss and its parts.

    Raises:
        ValueError: ``nll`` is not a scalar, or ``data_size`` is not positive.

    Example:
        >>> import torch
        >>> elbo(torch.tensor(1.0), torch.tensor(500.0), data_size=1000)
        loss 1.50 = NLL 1.00 + 1 × KL 0.50 per example
    """
    if isinstance(kl, nn.Module):
        weight = recommended_kl_weight(kl, data_size) if weight is None else weight
        kl = model_kl(kl)
    weight = 1.0 if weight is None else weight
    if not data_size > 0:
        raise ValueError(f"data_size is {data_size}; give the number of training examples")
    if nll.ndim:
        raise ValueError(
            f"nll has shape {tuple(nll.shape)}; give its mean over the batch, a scalar"
        )
    per_example = kl / data_size
    weighted = per_example if weight == 1 else weight * per_example
    return Elbo(nll + weighted, nll, per_example, weight)


def average_nll(outputs: Tensor, y: Tensor, likelihood: Likelihood | None = None) -> Tensor:
    """Return the average of the samples' NLLs [rank-1, eq. 13]: what training minimizes.

    Args:
        outputs: Outputs ``[samples, batch, …]``.
        y: Targets.
        likelihood: Meaning of the outputs; classes if not given.

    Returns:
        The NLL per example, a scalar.
    """
    return (likelihood or Categorical()).nll(outputs, y)


def mixture_nll(
    outputs: Tensor,
    y: Tensor,
    likelihood: Likelihood | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """Return the NLL of the mixture of the samples [rank-1, eq. 14]: what evaluation reports.

    Args:
        outputs: outputs ``[samples, batch, …]``.
        y: targets.
        likelihood: likelihood of the outputs; classes if not given.
        weight: weight of every example, one on average.

    Returns:
        The NLL per example, a scalar.
    """
    log_probs = log_mean((likelihood or Categorical()).log_prob(outputs, y))
    return -(log_probs if weight is None else weight * log_probs).mean()


class BatchObjective:
    """The ELBO of a batch, for a model with any likelihood, any batches and any members.

    Args:
        model: a converted model, or a plain network, whose KL is zero.
        likelihood: likelihood of the outputs.
        data_size: number of training examples.
        samples: draws per step.
        loss: the ``"average"`` NLL of draws and members, or the NLL of their ``"mixture"``.
        batch_dim: dimension of the inputs that counts examples.
        target: key of the targets in batches that are dictionaries.
        output: chooses the tensor that the likelihood describes; by default the output itself, or
            its ``logits``.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        data_size: float,
        *,
        samples: int = 1,
        loss: Literal["average", "mixture"] = "average",
        batch_dim: int = 0,
        target: str = "labels",
        output: Callable[[Any], Tensor] | None = None,
    ) -> None:
        require(loss in ("average", "mixture"), f"loss is {loss!r}; it is 'average' or 'mixture'")
        require(data_size > 0, f"data_size is {data_size}; give the number of training examples")
        self.model, self.likelihood, self.data_size = model, likelihood, data_size
        self.samples, self.loss = samples, loss
        self.batch_dim, self.target, self.output = batch_dim, target, output
        self._shared: frozenset[nn.Module] | None = None

    def __call__(self, batch: Any, kl_weight: float = 1.0) -> Elbo:
        """Return the ELBO of one batch, of which every member sees all or its share."""
        parts, count = parts_of(batch, self.target), members(self.model)
        rows = None
        if count > 1:
            rows = parts.inputs[0].shape[self.batch_dim]
            if rows >= count and splits_batch(self.model):
                rows -= rows % count
                parts, count = self._first(parts, rows), 1
        x = parts.inputs
        if count > 1:
            x = tuple(tile(value, count, self.batch_dim) for value in x)
            rows = x[0].shape[self.batch_dim]
        model = self._called(parts)
        if self._shared is None:
            compiled = is_compiled(model)
            self._shared = frozenset() if compiled else shared_layers(model, *x, rows=rows)
        outputs = []
        for _ in range(self.samples):
            with forward_pass(rows, self._shared):
                outputs.append(model(*x))
        nll = self._nll(outputs, parts, count)
        return elbo(nll, self.model_kl(), data_size=self.data_size, weight=kl_weight)

    def model_kl(self) -> Tensor:
        """Return the KL of the model; zero for a plain network."""
        if any(True for _ in random_maps(self.model)):
            return kl(self.model)
        return next(self.model.parameters()).new_zeros(())

    def targets(self, batch: Any) -> Tensor:
        """Return the targets of a batch."""
        return parts_of(batch, self.target).with_target(self.target)

    def weights(self, batch: Any) -> Tensor | None:
        """Return how much every example of a batch counts; ``None`` if all count the same."""
        return parts_of(batch, self.target).weight

    def size_of(self, batch: Any) -> int:
        """Return the number of examples in a batch."""
        return len(self.targets(batch))

    def predict(self, batch: Any, samples: int, **options: Any) -> Prediction:
        """Return the prediction of a batch; its targets are not looked at."""
        parts = parts_of(batch, self.target)
        options |= {"samples": samples, "likelihood": self.likelihood}
        return predict(self._called(parts), parts.inputs, batch_dim=self.batch_dim, **options)

    def _called(self, parts: Parts) -> Called:
        return Called(self.model, parts.names, self.output)

    def _first(self, parts: Parts, rows: int) -> Parts:
        """Return some first examples of a batch."""
        weight = None if parts.weight is None else parts.weight[:rows]
        x = tuple(value.narrow(self.batch_dim, 0, rows) for value in parts.inputs)
        return parts._replace(inputs=x, target=parts.with_target(self.target)[:rows], weight=weight)

    def _nll(self, outputs: list[Tensor], parts: Parts, count: int) -> Tensor:
        """The NLL of draws ``[count · batch, …]``, where ``count`` members saw every example."""
        y, weight = parts.with_target(self.target), parts.weight
        if self.loss == "average" and weight is None:
            tiled = tile(y, count) if count > 1 else y
            return torch.stack([self.likelihood.nll(drawn, tiled) for drawn in outputs]).mean()
        drawn = torch.cat([each.unflatten(0, (count, len(y))) for each in outputs])
        if self.loss == "mixture":
            return mixture_nll(drawn, y, self.likelihood, weight)
        assert weight is not None
        return -(weight * self.likelihood.log_prob(drawn, y)).mean()
