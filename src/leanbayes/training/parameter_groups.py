"""Roles of parameters: their number, learning rates and weight decays."""

from collections import Counter
from typing import Any, NamedTuple, get_args

import torch
from torch import nn

from leanbayes.distributions import Masked
from leanbayes.errors import require, require_choice
from leanbayes.models.random_maps import random_maps
from leanbayes.parameters.learned import Role


def parameter_roles(model: nn.Module) -> dict[nn.Parameter, Role]:
    """Return the role of every parameter.

    ``means`` are posterior means and the shared weights of rank-one layers; ``factors`` are the
    locations of rank-one factors (the fast weights of BatchEnsemble). ``scales`` is everything
    else in a posterior, and ``other`` the rest: biases, normalization, learned priors.
    """
    roles: dict[nn.Parameter, Role] = {}
    for _, layer in random_maps(model):
        posterior = layer.posterior
        roles |= {posterior.get_parameter(name): role for name, role in posterior.roles.items()}
    for parameter in model.parameters():
        roles.setdefault(parameter, "other")
    return roles


def parameter_groups(
    model: nn.Module,
    lr: float,
    *,
    multipliers: dict[Role, float] | None = None,
    weight_decay: float = 0.0,
    decayed: tuple[Role, ...] = ("means", "other"),
) -> list[dict[str, Any]]:
    """Return groups for a torch optimizer.

    Args:
        model: a converted model.
        lr: the learning rate.
        multipliers: factors on it by role; ``{"factors": 0.5}`` is BatchEnsemble's fast-weight
            learning rate.
        weight_decay: torch's weight decay, which is twice the coefficient of an L2 penalty written
            without a ½ [rank-1, appendix B].
        decayed: the roles that decay; by default all weights and biases, not the rank-one factors
            and not the scales, which have a separate prior.

    Returns:
        Groups with a learning rate, a weight decay and a role each.

    Raises:
        ValueError: If a rate is not positive or a role is unknown.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(nn.Linear(3, 2), lb.Rank1(2), lb.priors.Normal(0.1, loc=1.0))
        >>> groups = parameter_groups(model, 0.1, multipliers={"factors": 0.5})
        >>> [(group["role"], group["lr"]) for group in groups]
        [('means', 0.1), ('factors', 0.05), ('scales', 0.1), ('other', 0.1)]
    """
    require(lr > 0, f"lr is {lr}; it must be positive")
    for role in (*(multipliers or {}), *decayed):
        require_choice("role", role, get_args(Role))
    roles = parameter_roles(model)
    factors = multipliers or {}
    return [
        {
            "role": role,
            "params": [p for p, r in roles.items() if r == role],
            "lr": lr * factors.get(role, 1.0),
            "weight_decay": weight_decay if role in decayed else 0.0,
        }
        for role in dict.fromkeys(roles.values())
    ]


class ParameterCounts(NamedTuple):
    """Counts of trained parameters, by role.

    Args:
        means: Number of means.
        scales: Number of scales.
        other: Number of deterministic parameters.
    """

    means: int
    scales: int
    other: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {count:,}" for name, count in self._asdict().items())
        without = self.total - self.scales
        if not (self.means and self.scales):
            return f"{self.total:,}: {parts}"
        return f"{without:,} → {self.total:,} ({self.scales / without:+.1%}): {parts}"


def count_parameters(model: nn.Module) -> ParameterCounts:
    """Count trained parameters: means (of weights and rank-one factors), scales, others.

    Of a pruned weight neither the mean nor a separate scale counts.

    Args:
        model: Converted or plain model.

    Returns:
        The counts of a plain copy and of the model.

    Example:
        >>> import leanbayes as lb
        >>> count_parameters(lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.priors.Normal(1.0)))
        8 → 14 (+75.0%): means 6, scales 6, other 2
    """
    sizes, pruned = Counter[Role](), _pruned(model)
    for parameter, role in parameter_roles(model).items():
        trained = parameter.numel() - pruned.get(parameter, 0)
        sizes[role] += trained if parameter.requires_grad else 0
    return ParameterCounts(sizes["means"] + sizes["factors"], sizes["scales"], sizes["other"])


@torch.no_grad()
def _pruned(model: nn.Module) -> dict[nn.Parameter, int]:
    """How many numbers of a parameter belong to pruned weights, where it has one for each."""
    counts: dict[nn.Parameter, int] = {}
    for _, layer in random_maps(model):
        q, posterior = layer.posterior(), layer.posterior
        if isinstance(q, Masked):
            for name in posterior.roles:
                if posterior.value(name).shape == q.event_shape:
                    counts[posterior.get_parameter(name)] = int((q.mask == 0).sum())
    return counts
