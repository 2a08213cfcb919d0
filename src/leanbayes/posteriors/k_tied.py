"""Independent weights whose standard deviations are tied by a low rank."""

import math
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from leanbayes.distributions import KTiedNormal, WeightDistribution
from leanbayes.errors import require, require_count
from leanbayes.ops import LinearOp
from leanbayes.parameters.learned import Learned, Stored
from leanbayes.parameters.scales import Scale
from leanbayes.posteriors.base import Posterior, register_posterior


@register_posterior
@dataclass(frozen=True)
class KTied(Posterior):
    """Independent normal weights with standard deviations ``U Vᵀ`` of low rank [k-tied, eq. 3].

    The factors start at ``√(scale / rank)``, so that the standard deviations start at ``scale``
    whatever the rank; by default with the published jitter of 0.1 on their logs [k-tied, E].

    Args:
        rank: the number of rank-one terms ``k``.
        scale: first standard deviation, or a :class:`Scale` for the factors' storage.

    Raises:
        ValueError: If the rank is below 1 or the scale does not suit factors.
    """

    rank: int = 2
    scale: float | Scale = Scale(0.01, raw_spread=0.1)  # noqa: RUF009 (a frozen value)

    def __post_init__(self) -> None:
        require_count("rank", self.rank, 1)
        scale = Scale.of(self.scale)
        require(scale.ceiling is None, "tied factors have no ceiling; use MeanField for one")
        require(scale.start != "fan_in", "tied factors start at a number, not at 'fan_in'")

    def __call__(self, weight: Tensor, op: LinearOp) -> Learned[WeightDistribution]:
        rows, columns = op.matrix(weight).shape
        scale = Scale.of(self.scale).for_fan_in(op.fan_in(columns))
        assert not isinstance(scale.start, str)
        start = math.sqrt(scale.start / self.rank)
        factor = replace(scale, start=start)
        logs = factor.stored == "log"
        u = factor.initial((self.rank, rows), weight)
        v = factor.initial((self.rank, columns), weight)
        return self.learned(
            partial(KTiedNormal, log_unit=math.log(start) if logs else None),
            loc=Stored.means(weight, op),
            u=replace(u, as_it_is=logs),
            v=replace(v, as_it_is=logs),
        )

    def stored_part(
        self, whole: Learned[WeightDistribution], rows: Tensor, columns: Tensor
    ) -> dict[str, Tensor]:
        u, v = (whole.get_parameter(name).detach() for name in ("u", "v"))
        return {"loc": whole.value("loc")[rows][:, columns], "u": u[:, rows], "v": v[:, columns]}
