"""Draw predictive samples.

Threads and tasks may predict with one model at the same time. A layer that the model calls more
than once in a forward pass keeps its draw for the whole pass. Arrays get the precision of the
weights; of a DataLoader one batch is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from leanbayes.distributions import Masked
from leanbayes.errors import require, require_choice, require_seed
from leanbayes.estimators import mean
from leanbayes.layers import RandomMap
from leanbayes.layers.dropout import MCDropout
from leanbayes.layers.forward_pass import Held, estimator_for, forward_pass
from leanbayes.likelihoods import Categorical, Likelihood
from leanbayes.models.random_maps import random_maps
from leanbayes.prediction.eval_mode import evaluating, noise_by
from leanbayes.prediction.inputs import Inputs, Reader, Targets, is_loader
from leanbayes.prediction.linearized import draw_linearized
from leanbayes.prediction.one_pass import NoRuleError, propagate
from leanbayes.prediction.one_pass.propagate import draw_outputs, output_noise
from leanbayes.prediction.prediction import Prediction
from leanbayes.prediction.sampling import Passes, has_forward_hooks

__all__ = ["Prediction", "predict", "predict_batches", "shared_layers"]

Method = Literal["samples", "moments"]
"""How uncertainty is propagated through a network."""

_SAMPLES = 100
_OUTPUT_DRAWS = 32
"""Draws if their number is not given: of the weights, and of outputs whose moments are known."""

Given = Tensor | tuple[Any, ...] | Mapping[str, Any] | Iterable[Any]
"""What predictions are made for: tensors and arrays, several, named, or batches of these."""


def predict(
    model: nn.Module,
    x: Given,
    *,
    method: Method = "samples",
    samples: int | None = None,
    batch_size: int | None = None,
    batch_dim: int | Sequence[int] = 0,
    coherent: bool = False,
    linearized: bool = False,
    seed: int | None = None,
    likelihood: Likelihood | None = None,
    output: Callable[[Any], Any] | None = None,
    targets: Targets = None,
) -> Prediction:
    """Draw predictive samples in eval mode, without gradients; the model is left as it was.

    Where examples of a batch provably do not interact, all samples run at once: the prediction's
    ``method`` is ``"vectorized"``, and its ``reason`` is why not otherwise. Every example keeps its
    distribution, but about ten examples share a noise value: averages over a test set scatter up to
    a quarter more between seeds. Use ``coherent=True`` for joint draws of examples.

    Args:
        model: any model; one without random layers gives equal samples, and one with random layers
            whose samples are all equal is refused.
        x: a tensor, array or DataFrame; a tuple of several, or a dictionary of named ones; or a
            DataLoader.
        method: ``"samples"`` of the weights, or ``"moments"``: mean and variance of every
            activation in one pass, which draws nothing but outputs. A model that has a part
            without a rule is sampled, and the prediction's ``fallback`` names the part. Different
            activations count as independent: fast and close for k-tied and mean-field networks,
            too narrow where positions of a convolution share much noise. All inputs of a loader
            are kept until the end.
        samples: number of draws (of every member); 100, or 32 draws of the outputs from their
            moments.
        batch_size: maximum number of examples per pass.
        batch_dim: dimension that counts examples, or one for each input; outputs have it first.
        coherent: let each draw be one function over the whole data set.
        linearized: replace the network by its tangent at the posterior means, as suits
            :func:`leanbayes.laplace`; each draw is one function then.
        seed: makes the draws repeatable; the global generator is left as it was.
        likelihood: likelihood of the outputs; categorical if not given.
        output: chooses the tensor to predict, if the model gives something else.
        targets: parts of a batch beside the inputs: names, or how many parts at the end of a tuple;
            by default ``labels`` and ``label``, and the last of several parts.

    Returns:
        Predictive samples.

    Raises:
        ValueError: If an option is out of range or all samples are equal.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.priors.Normal(1.0))
        >>> predict(model, torch.randn(5, 3), samples=10).probs.shape
        torch.Size([5, 2])
    """
    _check_method(method, coherent or linearized)
    batches = Reader(model, batch_dim, targets, output).batches(x)
    fallback = None
    if method == "moments":
        draws = _OUTPUT_DRAWS if samples is None else samples
        _check_options(draws, batch_size, seed)
        given = list(batches)
        made = one_pass(model, given, draws, batch_size, seed, likelihood or Categorical())
        if isinstance(made, Prediction):
            return made
        batches, fallback = iter(given), made
    samples = _SAMPLES if samples is None else samples
    _check_options(samples, batch_size, seed)
    if linearized:
        drawn = draw_linearized(model, batches, samples, batch_size, seed)
        return Prediction(drawn, likelihood or Categorical(), "linearized")
    draw = _Drawer(model, samples, coherent, _common(seed, coherent and is_loader(x)))
    parts = [draw(inputs, batch_size) for inputs in batches]
    drawn = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    require(
        not _are_equal(drawn, samples) or draw.is_blank or not _is_random(model),
        f"all {samples} samples are exactly equal, although the model is random: its noise does "
        "not reach the output; call its random or dropout layers in forward instead of reading "
        "their weights, and return an output that depends on them",
    )
    return Prediction(
        drawn, likelihood or Categorical(), draw.method, draw.reason, fallback=fallback
    )


class _Drawer:
    """Draws samples for one batch after the other."""

    def __init__(self, model: nn.Module, samples: int, coherent: bool, seed: int | None) -> None:
        self.model, self.samples, self.coherent, self.seed = model, samples, coherent, seed
        self._done = 0
        self._last: Passes | None = None
        self.reason: str | None = None

    @property
    def is_blank(self) -> bool:
        """Whether the last inputs are zero everywhere, so that weights have no effect."""
        tensors = self._last.inputs.tensors if self._last else ()
        return all(t.is_floating_point() and not t.any() for t in tensors)

    @property
    def method(self) -> Literal["vectorized", "looped"]:
        """How samples were drawn."""
        return "vectorized" if self.reason is None else "looped"

    def __call__(self, inputs: Inputs, batch_size: int | None) -> Tensor:
        passes = Passes(self.model, inputs, batch_size, self._last)
        seed = self.seed
        if seed is not None and not self.coherent:
            seed = (seed + self._done) % 2**63
        self._done, self._last = self._done + passes.total, passes
        with torch.no_grad(), evaluating(self.model):
            while True:
                with noise_by(seed, self.model):
                    drawn = passes.draw(self.samples, self.coherent)
                if drawn is not None:
                    self.reason = self.reason or passes.reason
                    return drawn


def _common(seed: int | None, is_needed: bool) -> int | None:
    """Return a seed that batches have in common."""
    return int(torch.randint(2**62, ())) if is_needed and seed is None else seed


def _check_method(method: str, is_joint: bool) -> None:
    require_choice("method", method, get_args(Method))
    require(
        method == "samples" or not is_joint,
        "method must be 'samples' with coherent=True or linearized=True, got 'moments'. Leave "
        "one of them out",
    )


def _check_options(samples: int, batch_size: int | None, seed: int | None) -> None:
    require(samples >= 1, f"samples is {samples}; it must be at least 1")
    require(batch_size is None or batch_size >= 1, f"batch_size is {batch_size}; it must be ≥ 1")
    if seed is not None:
        require_seed(seed)


def _are_equal(drawn: Tensor, samples: int) -> bool:
    """Whether outputs ``[samples · members, …]`` are the same for every one of several samples."""
    rows = len(drawn) // samples
    if samples < 2 or not drawn.numel() or not torch.equal(drawn[:rows], drawn[rows : 2 * rows]):
        return False
    return all(torch.equal(drawn[:rows], other) for other in drawn.split(rows))


def _is_random(model: nn.Module) -> bool:
    """Whether MC dropout drops something, or layers draw weights and none of them has no noise."""
    if any(isinstance(module, MCDropout) and module.p > 0 for module in model.modules()):
        return True
    drawing = [layer for _, layer in random_maps(model) if _draws(layer)]
    return bool(drawing) and all(map(_has_noise, drawing))


def _draws(layer: RandomMap) -> bool:
    estimator = estimator_for(layer) or layer.estimator
    return estimator is not mean and not isinstance(estimator, Held)


def _has_noise(layer: RandomMap) -> bool:
    """Return whether noise certainly leaves a layer; that of a pruned one may meet zeros alone."""
    q = layer.posterior()
    return not isinstance(q, Masked) and not torch.equal(q.rsample(), q.rsample())


def predict_batches(
    model: nn.Module,
    x: Given,
    *,
    method: Method = "samples",
    samples: int | None = None,
    batch_size: int | None = None,
    batch_dim: int | Sequence[int] = 0,
    coherent: bool = False,
    seed: int | None = None,
    likelihood: Likelihood | None = None,
    output: Callable[[Any], Any] | None = None,
    targets: Targets = None,
) -> Iterator[Prediction]:
    """Predict the examples slice by slice, to save memory.

    A loop takes what it wants of each, where :func:`predict` keeps all samples of all examples.

    Args:
        model: any model.
        x: inputs, or a DataLoader, as :func:`predict` takes them.
        method: ``"samples"`` or ``"moments"``, as in :func:`predict`.
        samples: number of draws (of every member); 100, or 32 draws of outputs from moments.
        batch_size: number of examples in a slice, all of one batch of a loader; if not given,
            fewer for more samples.
        batch_dim: dimension of the inputs that counts examples, or one for each of them.
        coherent: let each draw be one function over the whole data set.
        seed: makes the draws repeatable.
        likelihood: likelihood of the outputs; categorical if not given.
        output: chooses the tensor to predict, if the model gives something else.
        targets: parts of a batch beside the inputs.

    Returns:
        An iterator of predictions, one per slice.

    Raises:
        ValueError: If an option is out of range.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.priors.Normal(1.0))
        >>> parts = predict_batches(model, torch.randn(500, 3), samples=1000)
        >>> torch.cat([part.probs for part in parts]).shape
        torch.Size([500, 2])
    """
    _check_method(method, coherent)
    draws = _OUTPUT_DRAWS if samples is None else samples
    samples = _SAMPLES if samples is None else samples
    _check_options(samples, batch_size, seed)
    step, fallback = batch_size or max(_SLICE // samples, 1), None
    draw = _Drawer(model, samples, coherent, _common(seed, coherent))
    for inputs in Reader(model, batch_dim, targets, output).batches(x):
        for start in range(0, max(inputs.sizes[0], 1), step):
            part, law = inputs.cut(start, step), likelihood or Categorical()
            if method == "moments" and fallback is None:
                made = one_pass(model, [part], draws, None, seed, law)
                if isinstance(made, Prediction):
                    yield made
                    continue
                fallback = made
            yield Prediction(draw(part, None), law, draw.method, draw.reason, fallback=fallback)


def one_pass(
    model: nn.Module,
    batches: Sequence[Inputs],
    draws: int,
    batch_size: int | None,
    seed: int | None,
    likelihood: Likelihood,
) -> Prediction | str:
    """Predict from means and variances, or return the reason why samples are needed."""
    if has_forward_hooks(model):
        return "the model has forward hooks"
    try:
        parts = [part for inputs in batches for part in propagate(model, inputs, batch_size)]
    except NoRuleError as error:
        return str(error)
    noise = output_noise(parts[0], draws, seed)
    drawn = torch.cat([draw_outputs(part, noise) for part in parts], 1)
    moments: Any = torch.cat(parts, 1)  # type: ignore[arg-type]
    if not moments.variance.any() and _is_random(model):
        return "no noise reaches the output in one pass"
    return Prediction(drawn, likelihood, "moments", moments=moments)


def shared_layers(
    model: nn.Module, *inputs: Tensor, rows: int | None = None
) -> frozenset[nn.Module]:
    """Find the random maps that a forward pass calls more than once, with other noise each time."""
    with torch.no_grad(), evaluating(model), noise_by(0, model), forward_pass(rows) as draws:
        model(*inputs)
    return frozenset(draws.repeated)


_SLICE = 2**14
"""How many samples of single examples :func:`predict_batches` keeps at once."""
