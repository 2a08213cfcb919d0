"""Targeted adversarial attacks by signs of gradients, on networks that may be random."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.errors import require, require_choice, require_count, require_positive
from leanbayes.layers.dropout import DROPOUT
from leanbayes.layers.forward_pass import forward_pass
from leanbayes.likelihoods.mixtures import log_mean
from leanbayes.metrics import Score, average
from leanbayes.models.random_maps import members, tile
from leanbayes.prediction.eval_mode import evaluating, is_compiled, noise_by
from leanbayes.prediction.predict import shared_layers


@dataclass(frozen=True, eq=False)
class Attack:
    """What an attack came to.

    Attributes:
        inputs: the adversarial inputs after the last iteration.
        original: the inputs as they were.
        target: the class that every example was to be taken for.
        hits: ``[1 + iterations, examples]``, whether it was, before the attack and after every
            iteration, by draws of their own.
    """

    inputs: Tensor
    original: Tensor
    target: Tensor
    hits: Tensor

    @property
    def success(self) -> list[Score]:
        """The share of examples taken for their target: before, and after every iteration."""
        return [average(hits) for hits in self.hits]

    @property
    def distance(self) -> float:
        """The largest change of a single number."""
        return float((self.inputs - self.original).abs().max())


def fast_sign_attack(
    model: nn.Module | Sequence[nn.Module],
    x: Tensor,
    target: Tensor | int,
    *,
    step: float,
    iterations: int,
    bound: float | None = None,
    samples: int = 10,
    gradient: Literal["averaged", "of_average"] = "averaged",
    labels: Tensor | None = None,
    clip: tuple[float, float] | None = (0.0, 1.0),
    dropout: bool = False,
    batch_size: int | None = None,
    seed: int | None = None,
) -> Attack:
    """Move inputs by ``step · sign(g)`` until a classifier takes them for a target [variance, 6.3].

    ``g`` is the gradient of ``log p(target | x, w)`` averaged over draws of the weights, as in the
    paper, or that of the log of the averaged probability. The models are left as they were.

    Args:
        model: any classifier that gives logits ``[batch, classes]``, or several: an ensemble.
        x: floating-point inputs ``[batch, …]``.
        target: the wanted class, of each example or of all.
        step: how far one iteration moves every number.
        iterations: how many steps.
        bound: how far a number may end from where it was; anywhere, if not given.
        samples: draws of every model for a gradient, and as many fresh ones to count successes.
        gradient: ``"averaged"`` over draws, or that ``"of_average"``, the averaged probability.
        labels: true classes, which a target must not be; what the model predicts, if not given.
        clip: the range of valid inputs, or ``None``.
        dropout: let dropout layers draw as well (MC dropout).
        batch_size: how many examples run at once; all, if not given.
        seed: makes the attack repeatable; the global generator is left as it was.

    Example:
        >>> x, net = torch.rand(5, 3), nn.Linear(3, 2)
        >>> target = 1 - net(x).argmax(1)
        >>> len(fast_sign_attack(net, x, target, step=0.1, iterations=4, samples=1).success)
        5
    """
    require_choice("gradient", gradient, ("averaged", "of_average"))
    require_positive(step=step)
    require_count("iterations", iterations, 1)
    models = [model] if not isinstance(model, Sequence | nn.ModuleList) else list(model)
    victims = _Victims(nn.ModuleList(models), samples, dropout, batch_size)
    target, original = torch.as_tensor(target, device=x.device).expand(len(x)), x.detach()
    _check_range(x, clip)
    seeds = _seeds(seed, 2 * iterations + 1)
    before = victims.log_probs(original, next(seeds))
    known = before.argmax(-1) if labels is None else labels
    require(not bool((target == known).any()), "a target is the class already; give another one")
    x, hits = original, [before.argmax(-1) == target]
    for iteration in range(iterations):
        g = victims.gradient(x, target, gradient == "of_average", next(seeds))
        require(
            bool(g.isfinite().all()),
            f"the gradient is not finite in iteration {iteration + 1}; look at the inputs and at "
            "the model's outputs",
        )
        x = x + step * g.sign()
        if bound is not None:
            x = torch.clamp(x, original - bound, original + bound)
        x = x if clip is None else x.clamp(*clip)
        hits.append(victims.log_probs(x, next(seeds)).argmax(-1) == target)
    return Attack(x, original, target, torch.stack(hits))


def _check_range(x: Tensor, clip: tuple[float, float] | None) -> None:
    """Refuse inputs that the first step would change by clipping them."""
    if clip is not None:
        low, high = (float(end) for end in x.aminmax())
        require(
            clip[0] <= low and high <= clip[1],
            f"x has values from {low:.4g} to {high:.4g} and clip is {clip}; give the range of "
            "your inputs as clip, or None",
        )


class _Victims:
    """One model or several, of which every draw and member has the same say."""

    def __init__(
        self, models: nn.ModuleList, samples: int, dropout: bool, batch_size: int | None
    ) -> None:
        require_count("samples", samples, 1)
        self.models, self.samples, self.dropout = models, samples, dropout
        self.batch_size = batch_size
        self._shared: dict[nn.Module, frozenset[nn.Module]] = {}

    def log_probs(self, x: Tensor, seed: int | None) -> Tensor:
        """The log of the class probabilities, averaged over new draws: ``[batch, classes]``."""
        parts = []
        with torch.no_grad(), self._running(seed):
            for part in self._slices(x):
                draws = [self._forward(model, part)[1] for model in self._each_draw()]
                parts.append(log_mean(torch.cat(draws)))
        return torch.cat(parts)

    def gradient(self, x: Tensor, target: Tensor, of_average: bool, seed: int | None) -> Tensor:
        """Return the gradient of the target's log probability, averaged one way or the other.

        ``∇ log Σ_s p_s = Σ_s r_s ∇ log p_s`` with ``r_s = p_s / Σ p``: both are weighted averages
        of the same gradients.
        """
        parts = []
        with torch.enable_grad(), self._running(seed):
            for inputs, wanted in zip(self._slices(x), self._slices(target), strict=True):
                draws = [self._draw_gradient(m, inputs, wanted) for m in self._each_draw()]
                logs, gradients = (torch.cat(values) for values in zip(*draws, strict=True))
                weights = logs.softmax(0) if of_average else torch.ones_like(logs) / len(logs)
                parts.append(torch.einsum("sb,sb...->b...", weights, gradients))
        return torch.cat(parts)

    def _draw_gradient(self, model: nn.Module, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """``log p(target)`` and its gradient for one draw: ``[members, batch]``, ``[…, *x]``."""
        leaf, log_probs = self._forward(model, x)
        wanted = target.expand(len(log_probs), -1).unsqueeze(-1)
        logs = log_probs.gather(-1, wanted).squeeze(-1)
        (gradient,) = torch.autograd.grad(logs.sum(), leaf)
        return logs.detach(), gradient.unflatten(0, logs.shape)

    def _forward(self, model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        """The tiled batch and the log probabilities of one draw, ``[members, batch, classes]``."""
        count = members(model)
        batch = tile(x, count).requires_grad_(torch.is_grad_enabled())
        if model not in self._shared:
            self._shared[model] = (
                frozenset()
                if is_compiled(model)
                else shared_layers(model, batch.detach(), rows=len(batch))
            )
        with forward_pass(len(batch), self._shared[model]):
            logits = model(batch)
        return batch, F.log_softmax(logits, -1).unflatten(0, (count, len(x)))

    def _each_draw(self) -> Iterator[nn.Module]:
        for _ in range(self.samples):
            yield from self.models

    def _slices(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.split(self.batch_size or len(x))

    @contextmanager
    def _running(self, seed: int | None) -> Iterator[None]:
        dropping = dropping_out(self.models) if self.dropout else nullcontext()
        with evaluating(self.models), dropping, noise_by(seed, self.models):
            yield


@contextmanager
def dropping_out(model: nn.Module) -> Iterator[None]:
    """Let dropout layers draw, whatever their mode: MC dropout, within a block of eval mode.

    Other threads that run the model meanwhile notice that.
    """
    before = {m: m.training for m in model.modules() if isinstance(m, DROPOUT)}
    try:
        for layer in before:
            layer.training = True
        yield
    finally:
        for layer, mode in before.items():
            layer.training = mode


def _seeds(seed: int | None, count: int) -> Iterator[int | None]:
    """A seed for each block of draws; none if there is none."""
    if seed is None:
        return iter([None] * count)
    drawn = torch.randint(2**62, (count,), generator=torch.Generator().manual_seed(seed))
    return iter(drawn.tolist())
