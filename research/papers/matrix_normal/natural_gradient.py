"""NaturalGradient: posteriors by their natural gradient, everything else by another optimizer."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from leanbayes.conversion.convert import select
from leanbayes.distributions import Delta
from leanbayes.errors import require, require_count, require_positive
from leanbayes.lab.optimizers import OPTIMIZERS
from leanbayes.lab.recipe import Optimizer as OptimizerSection
from leanbayes.models.random_maps import random_maps
from research.papers.matrix_normal.natural_gradient_rules import Rule, Step, rule_of

_NATURAL = 2
"""How many parameter groups move by natural gradients: means, and scales."""


class NaturalGradient(Optimizer):
    """Trains normal posteriors by their natural gradient, and other parameters as you say.

    Serves :class:`~leanbayes.posteriors.MatrixNormal` with full (``rank=None``) or diagonal
    (``rank=0``) factors, :class:`~leanbayes.MeanField`, ``VariationalDropout("additive")``,
    ``ZeroMean("normal")``, :class:`~leanbayes.KTied` and pruned weights that are independent. A
    step is ``−lr · F⁻¹ g`` with the Fisher matrix ``F`` of the posterior and the gradient ``g`` of
    the whole negative ELBO, in closed form: products with the factors, no inverse and no solve;
    for k-tied scales a block of size ``k`` per row and column. It does not depend on how scales are
    stored, and keeps covariances positive definite whatever its length.

    The first two parameter groups are the means and the scales of these posteriors; the others
    are those of ``others``, so that one scheduler, one ``zero_grad``, one clipping and one
    ``state_dict`` serve all of them.

    Args:
        model: a converted model.
        groups: parameter groups for ``others``, as :class:`~leanbayes.lightning.BayesianModule`
            gives them; what moves by natural gradients is left out of them. All other parameters
            of the model by default.
        data_size: the number of examples by which the loss was divided: that of
            :func:`~leanbayes.elbo`. 1 if the loss is the whole negative ELBO.
        lr: length of a step; 1 is Newton's on the ELBO of a linear model. With small batches,
            start around 0.2 and let it fall.
        scale_lr: the same for scales, whose gradients have more noise; ``lr`` if not given.
        trust: no step goes further than this, in the KL of the new posterior from the old one:
            that of a matrix normal's factor is at most ``trust`` for each row of the other factor,
            that of an independent scale ``trust``.
        mean_trust: the same for means, for each weight; ``trust`` if not given. ``math.inf`` where
            the loss is quadratic, as in linear regression.
        others: makes the optimizer of all other parameters (biases, normalization, priors).
        exclude: patterns of layers whose posteriors go to ``others``, too.

    Raises:
        ValueError: If a rate, a bound or the data size is not positive.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(nn.Linear(3, 2), lb.posteriors.MatrixNormal(), lb.priors.Normal(1.0))
        >>> optimizer = NaturalGradient(model, data_size=100, lr=0.2)
        >>> loss = lb.elbo(model(torch.randn(8, 3)).square().mean(), lb.kl(model), data_size=100)
        >>> loss.loss.backward()
        >>> optimizer.step()
        >>> [group["role"] for group in optimizer.param_groups]
        ['means', 'scales', 'other']
    """

    def __init__(
        self,
        model: nn.Module,
        groups: Iterable[Mapping[str, Any]] | None = None,
        *,
        data_size: int,
        lr: float = 0.2,
        scale_lr: float | None = None,
        trust: float = 0.05,
        mean_trust: float | None = None,
        others: Callable[[list[dict[str, Any]]], Optimizer] = torch.optim.Adam,
        exclude: Sequence[str] = (),
    ) -> None:
        require_count("data_size", data_size, 1)
        scale_lr = lr if scale_lr is None else scale_lr
        require_positive(lr=lr, scale_lr=scale_lr)
        mean_trust = trust if mean_trust is None else mean_trust
        for name, bound in (("trust", trust), ("mean_trust", mean_trust)):
            require(bound > 0, f"{name} is {bound}; it must be positive, or math.inf for no bound")
        self._others: Optimizer | None = None
        self._rules = _rules(model, exclude)
        natural = [
            {"role": role, "params": list(self._parameters(role)), "lr": rate, "trust": bound}
            for role, rate, bound in (("means", lr, mean_trust), ("scales", scale_lr, trust))
        ]
        super().__init__(natural, {"lr": lr, "trust": trust, "data_size": data_size})
        known = {parameter for group in natural for parameter in group["params"]}  # type: ignore[attr-defined]
        everything = [{"role": "other", "params": model.parameters()}] if groups is None else groups
        rest = list(_without(everything, known))
        if rest:
            self._others = others(rest)
            _check_others(self._others)
            self.state.update(self._others.state)
            self._join(self.param_groups, self._others.param_groups)

    def _parameters(self, role: str) -> Iterator[nn.Parameter]:
        for rule in self._rules:
            yield from rule.parameters(role)

    def _join(self, natural: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
        """Share groups and state with the other optimizer, so that both always see the same."""
        assert self._others is not None
        self.param_groups = [*natural, *other]
        self._others.__setstate__({"state": self.state, "param_groups": other})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move all parameters once.

        Args:
            closure: computes the loss and its gradients; they are taken as they are without it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        means, scales = (
            Step(group["lr"] * group["data_size"], group["trust"])
            for group in self.param_groups[:_NATURAL]
        )
        for rule in self._rules:
            rule.step(means, scales)
        if self._others is not None:
            self._others.step()
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to the other optimizer."""
        if len(getattr(self, "param_groups", ())) < _NATURAL:
            super().add_param_group(param_group)
            return
        require(
            self._others is not None,
            "there is no other optimizer that could train more parameters; make a new "
            "NaturalGradient of the whole model",
        )
        assert self._others is not None
        given = param_group["params"]
        new = {given} if isinstance(given, Tensor) else set(given)
        old = {parameter for group in self.param_groups for parameter in group["params"]}
        require(new.isdisjoint(old), "some of these parameters are trained already; give others")
        self._others.add_param_group(param_group)
        self._join(self.param_groups[:_NATURAL], self._others.param_groups)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if self._others is not None:
            groups = self.param_groups
            self._join(groups[:_NATURAL], groups[_NATURAL:])

    def __getstate__(self) -> dict[str, Any]:
        own = {"_rules": self._rules, "_others": self._others}
        return {**super().__getstate__(), **own}


def _rules(model: nn.Module, exclude: Sequence[str]) -> list[Rule]:
    """The rule of every posterior that is not excluded; point estimates are plain parameters."""
    layers = dict(random_maps(model))
    excluded = select(exclude, layers)
    rules: list[Rule] = []
    for name, layer in layers.items():
        if name in excluded or isinstance(layer.posterior(), Delta):
            continue
        rule = rule_of(layer.posterior)
        where = repr(name) if name else "(the model)"
        require(
            rule is not None,
            f"layer {where} has the posterior {layer.posterior.spec}, whose natural gradient has "
            "no closed form here; use lb.KTied(), lb.MeanField() or "
            "lb.posteriors.MatrixNormal() with rank=None or 0, or "
            f"leave it to the other optimizer with exclude=({name!r},)",
        )
        assert rule is not None
        rules.append(rule)
    require(
        bool(rules),
        "the model has no posterior with a natural gradient; call lb.convert(model, "
        "lb.posteriors.MatrixNormal(), …) first",
    )
    return rules


def _without(
    groups: Iterable[Mapping[str, Any]], known: set[nn.Parameter]
) -> Iterator[dict[str, Any]]:
    """Groups without some parameters, and none that is empty then."""
    for group in groups:
        left = [parameter for parameter in group["params"] if parameter not in known]
        if left:
            yield {**group, "params": left}


def _check_others(others: object) -> None:
    require(
        isinstance(others, Optimizer),
        f"others made {others!r}; give what makes a torch optimizer from parameter groups, such "
        "as torch.optim.Adam",
    )
    require(
        not isinstance(others, LBFGS),
        "L-BFGS takes several steps at once, which a step along a natural gradient is not; give "
        "for example torch.optim.Adam",
    )


@OPTIMIZERS.register(name="natural")
def natural(
    spec: OptimizerSection, model: nn.Module, data_size: int, groups: list[dict[str, Any]]
) -> NaturalGradient:
    """Return the optimizer of a recipe, with Adam for everything but means and scales."""
    means, scales = (spec.multipliers.get(role, 1.0) for role in ("means", "scales"))
    return NaturalGradient(
        model,
        groups,
        data_size=data_size,
        lr=spec.lr * means,
        scale_lr=spec.lr * scales,
        trust=spec.trust,
        others=partial(torch.optim.Adam, betas=spec.betas),
    )
