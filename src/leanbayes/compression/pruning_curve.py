"""Pruning curve: scores on given data at every share of weights that is kept."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from leanbayes.analysis.log_alpha import scaled_layers
from leanbayes.compression.prune import Groups, Scope, density, prune
from leanbayes.display import DisplayTable, shown_as_table
from leanbayes.errors import require
from leanbayes.likelihoods import Categorical, Likelihood
from leanbayes.metrics import Score
from leanbayes.prediction.predict import predict


class PruningPoint(NamedTuple):
    """A model that keeps a share of its weights, and how good it is.

    Attributes:
        keep: the share that was asked for.
        kept: the share of the weights of the layers in question that it keeps.
        metrics: what the likelihood measures, with standard errors.
    """

    keep: float
    kept: float
    metrics: dict[str, Score]


@shown_as_table
@dataclass(frozen=True)
class PruningCurve:
    """Scores at every share of weights that is kept; ``print`` shows a table.

    Attributes:
        by: the criterion.
        points: in the order in which shares were given.
    """

    by: str
    points: tuple[PruningPoint, ...]

    def table(self) -> DisplayTable:
        """Return a row for every share."""
        shown = [
            name
            for name in ("accuracy", "squared_error", "nll")
            if all(name in point.metrics for point in self.points)
        ]
        rows = [
            [f"{100 * point.kept:.2f}%", *(str(point.metrics[name]) for name in shown)]
            for point in self.points
        ]
        return DisplayTable(["kept", *shown], rows, f"pruned by {self.by}", left=())


def pruning_curve(
    model: nn.Module,
    data: Iterable[tuple[Tensor, Tensor]],
    *,
    by: str = "scale",
    groups: Groups = "weight",
    keep: Sequence[float] = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01),
    scope: Scope = "layer",
    include: Sequence[str] = ("**",),
    likelihood: Likelihood | None = None,
    samples: int = 20,
    seed: int = 0,
) -> PruningCurve:
    """Prune copies of a model further and further, and score them [variance, figure 5].

    All draw the same noise; the global generator and the model are left as they were.

    Args:
        model: a converted model with standard deviations.
        data: batches ``(x, y)``, such as a data loader.
        by: the criterion, as in :func:`~leanbayes.prune`.
        groups: whether single weights go, or rows, or columns.
        keep: shares of them to keep.
        scope: rank within each ``"layer"``, or once over the ``"model"``.
        include: patterns of layer names, as in :func:`~leanbayes.convert`.
        likelihood: what outputs mean; categorical if not given.
        samples: predictive samples.
        seed: seed of the noise.

    Returns:
        Scores by share kept.

    Raises:
        ValueError: If ``keep`` or the data are empty.
    """
    require(len(keep) > 0, "keep is empty; give shares of the weights, such as (1.0, 0.1)")
    batches = list(data)
    require(any(len(y) for _, y in batches), "data has no examples; give batches (x, y)")
    chosen = scaled_layers(model, include)
    sizes = {name: layer.posterior().event_shape.numel() for name, layer in chosen.items()}
    points = []
    for share in keep:
        pruned = prune(model, by, groups=groups, keep=share, scope=scope, include=include)
        shares = density(pruned)
        kept = sum(shares[name] * size for name, size in sizes.items()) / sum(sizes.values())
        metrics = _metrics(pruned, batches, likelihood or Categorical(), samples, seed)
        points.append(PruningPoint(share, kept, metrics))
    return PruningCurve(by, tuple(points))


def _metrics(
    model: nn.Module,
    batches: Sequence[tuple[Tensor, Tensor]],
    likelihood: Likelihood,
    samples: int,
    seed: int,
) -> dict[str, Score]:
    drawn = [
        predict(model, x, samples=samples, seed=seed + index, likelihood=likelihood).samples
        for index, (x, _) in enumerate(batches)
    ]
    with torch.no_grad():
        return likelihood.metrics(torch.cat(drawn, 1), torch.cat([y for _, y in batches]))
