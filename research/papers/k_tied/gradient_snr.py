"""The signal-to-noise ratio of gradients over the last steps [k-tied, section 4]."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from leanbayes.display import DisplayTable, shown_as_table
from leanbayes.errors import require, require_choice, require_count
from leanbayes.models.random_maps import random_maps
from leanbayes.parameters.learned import Role

Definition = Literal["gradient", "square"]
Average = Literal["mean", "median", "pooled"]


def noise_floor(window: int = 10, correction: int = 0) -> float:
    """Return what ``E[g²] / Var[g]`` is on average for gradients that are nothing but normal noise.

    Over ``n`` steps ``E[g²] = ḡ² + Var[g]``, where ``ḡ²`` and ``Var[g]`` are independent and
    ``E[1 / χ²_{n−1}] = 1 / (n − 3)``; so the ratio is ``1 + 1 / (n − 3)`` for the population
    variance, and ``(n − c) / n`` times that for a correction ``c``.

    Example:
        >>> round(noise_floor(10), 2), round(noise_floor(10, correction=1), 2)
        (1.14, 1.03)
    """
    require(window > 3, f"window is {window}; the average is finite from 4 steps on")
    return (window - correction) / window * (1 + 1 / (window - 3))


@dataclass
class _Ring:
    """The last gradients of one parameter, ``[window, …]``, and how many it has had."""

    gradients: Tensor | None = None
    count: int = 0


@shown_as_table
class GradientSNR:
    """Signal-to-noise ratios of the gradients of the last steps, averaged over each layer.

    Of each number it is ``E[g²] / Var[g]`` (ICML version of the paper, footnote 3), or with
    ``definition="square"`` ``E[g²] / Var[g²]`` [k-tied, footnote 2]. The first does not change when
    gradients are multiplied by ``c``, the second changes by ``1 / c²``: compare it only between
    losses of one scale. Pure noise gives :func:`noise_floor`, not 0.

    A number whose gradient does not vary has the ratio ∞, and so has its layer's mean; one whose
    gradients are all zero has neither signal nor noise and is left out.

    Memory: ``window`` times the watched parameters; for the scales of a mean field that is
    ``window / 2`` models.

    Args:
        model: a converted model.
        window: how many steps.
        definition: the variance of the gradient, or of its square.
        role: watch ``"scales"`` (everything in a posterior that is not a mean) or ``"means"``.
        correction: of the variance; 0 is the population's, 1 the unbiased one.

    Raises:
        ValueError: If an option is unknown or out of range.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(nn.Linear(3, 2), lb.KTied(2), lb.priors.Normal(1.0))
        >>> with GradientSNR(model, window=5) as snr:
        ...     for _ in range(5):
        ...         model.zero_grad()
        ...         model(torch.randn(8, 3)).square().mean().backward()
        >>> snr.values()[""] > 1
        True
    """

    def __init__(
        self,
        model: nn.Module,
        window: int = 10,
        *,
        definition: Definition = "gradient",
        role: Literal["scales", "means"] = "scales",
        correction: int = 0,
    ) -> None:
        require_count("window", window, 2)
        require_choice("definition", definition, ("gradient", "square"))
        require_choice("role", role, ("scales", "means"))
        require(correction in (0, 1), f"correction is {correction}; it is 0 or 1")
        self.window = window
        self.definition = definition
        self.correction = correction
        self._layers = _watched(model, role)
        self._rings: dict[Tensor, _Ring] = {
            p: _Ring() for layer in self._layers.values() for p in layer
        }
        self._handles: list[RemovableHandle] = []

    def update(self) -> None:
        """Record the gradients that the parameters have now; call it after ``backward()``."""
        require(not self._handles, "gradients are recorded by hooks; do not call update()")
        for parameter in self._rings:
            self._record(parameter)

    @torch.no_grad()
    def _record(self, parameter: Tensor) -> None:
        ring, gradient = self._rings[parameter], parameter.grad
        if gradient is None:
            return
        if ring.gradients is None:
            ring.gradients = gradient.new_empty(self.window, *gradient.shape)
        ring.gradients[ring.count % self.window].copy_(gradient)
        ring.count += 1

    def attach(self) -> GradientSNR:
        """Record at every ``backward()`` automatically, until :meth:`close`.

        A hook sees ``.grad`` as it is accumulated: with several backward passes between two calls
        of ``zero_grad()``, call :meth:`update` before the optimizer's step instead.
        """
        require(not self._handles, "the hooks are there already; call close() first")
        self._handles = [p.register_post_accumulate_grad_hook(self._record) for p in self._rings]
        return self

    def close(self) -> None:
        """Remove the hooks; records stay."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __enter__(self) -> GradientSNR:
        return self.attach()

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def steps(self) -> int:
        """How many gradients were recorded, of the parameter that had most."""
        return max(ring.count for ring in self._rings.values())

    def reset(self) -> None:
        """Clear the records and free their memory."""
        self._rings = {parameter: _Ring() for parameter in self._rings}

    def state_dict(self) -> dict[str, Any]:
        """Return what was recorded, for a checkpoint."""
        return {
            name: [(self._rings[p].count, self._rings[p].gradients) for p in parameters]
            for name, parameters in self._layers.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the records of another object for the same model and window."""
        for name, parameters in self._layers.items():
            for parameter, (count, gradients) in zip(parameters, state[name], strict=True):
                kept = None if gradients is None else gradients.to(parameter).clone()
                self._rings[parameter] = _Ring(kept, count)

    @torch.no_grad()
    def values(
        self, definition: Definition | None = None, *, average: Average = "mean"
    ) -> dict[str, float]:
        """Return the ratio of every layer, by name as in ``named_kl``; NaN until a window is full.

        Args:
            definition: another one than the object's own.
            average: over the layer's numbers: the ``"mean"`` of their ratios, as in the papers,
                their ``"median"``, or ``"pooled"``, all signal over all noise. Scales whose unit
                is off get no gradient but that of the KL, which hardly varies: in a mean a few of
                them outweigh all others, when pooled they count for what little they move.
        """
        require_choice("average", average, ("mean", "median", "pooled"))
        chosen = definition or self.definition
        return {name: self._ratio(layer, chosen, average) for name, layer in self._layers.items()}

    def table(self) -> DisplayTable:
        """Return the ratio of every layer, once its window is full."""
        ratios = self.values().items()
        rows = [
            [name or "(the model)", "–" if math.isnan(ratio) else f"{ratio:.3g}"]
            for name, ratio in ratios
        ]
        return DisplayTable(["layer", "signal-to-noise"], rows, f"gradients of {self.window} steps")

    def _ratio(
        self, parameters: list[nn.Parameter], definition: Definition, average: Average
    ) -> float:
        rings = [self._rings[parameter] for parameter in parameters]
        if any(ring.count < self.window for ring in rings):
            return float("nan")
        recorded = [ring.gradients for ring in rings if ring.gradients is not None]
        numbers = torch.cat([gradients.cpu().double().flatten(1) for gradients in recorded], 1)
        signal, noise = self._signal_and_noise(numbers, definition)
        if average == "pooled":
            return float(signal.sum() / noise.sum())
        ratios = signal / noise  # 0 / 0 is NaN, and not averaged
        return float(ratios.nanmean() if average == "mean" else ratios.nanmedian())

    def _signal_and_noise(self, gradients: Tensor, definition: Definition) -> tuple[Tensor, Tensor]:
        """Return ``E[g²]`` and the variance over the window, of each number."""
        squares = gradients.square()
        varying = squares if definition == "square" else gradients
        constant = (varying == varying[:1]).all(0)
        variance = varying.var(0, correction=self.correction).masked_fill(constant, 0.0)
        return squares.mean(0), variance


def _watched(model: nn.Module, role: Role) -> dict[str, list[nn.Parameter]]:
    layers = {}
    for name, layer in random_maps(model):
        if trained := [p for p in layer.posterior.tensors(role).values() if p.requires_grad]:
            layers[name] = trained
    require(bool(layers), f"the model trains no {role}; call lb.convert(model, …) first")
    return layers
