"""Draw predictive samples.

Threads and tasks may predict with one model at the same time. A layer that the model calls more
than once in a forward pass keeps its draw for the whole pass. Arrays get the precision of the
weights; of a DataLoader one batch is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.errors import require, require_seed
from leanbayes.layers.forward_pass import one_pass
from leanbayes.likelihoods import Categorical, Likelihood
from leanbayes.prediction.eval_mode import evaluating
from leanbayes.prediction.inputs import Inputs, Reader, Targets, is_loader
from leanbayes.prediction.prediction import Prediction
from leanbayes.prediction.sampling import Passes
from leanbayes.prediction.seeded import noise_by

__all__ = ["Prediction", "predict", "predict_batches", "shared_layers"]

Given = Tensor | tuple[Any, ...] | Mapping[str, Any] | Iterable[Any]
"""What predictions are made for: tensors and arrays, several, named, or batches of these."""


def predict(
    model: nn.Module,
    x: Given,
    *,
    samples: int = 100,
    batch_size: int | None = None,
    batch_dim: int | Sequence[int] = 0,
    coherent: bool = False,
    seed: int | None = None,
    likelihood: Likelihood | None = None,
    output: Callable[[Any], Any] | None = None,
    targets: Targets = None,
) -> Prediction:
    """Draw predictive samples in eval mode, without gradients; the model is left as it was.

    Where a pass keeps examples apart and each has noise of its own, all samples run at once. Every
    example keeps its law, but a number of noise serves about ten of them: averages over a test set
    scatter up to a quarter more between seeds. ``coherent=True`` is for joint draws of examples.

    Args:
        model: any model; one without random layers gives equal samples.
        x: a tensor or array; a tuple of several, or a dictionary of named ones; or a DataLoader.
        samples: how many draws (of every member).
        batch_size: how many examples to run at once at most.
        batch_dim: which dimension counts examples, or one for each input; outputs have it first.
        coherent: let each draw be one function over the whole data set.
        seed: makes the draws repeatable; the global generator is left as it was.
        likelihood: what the outputs mean; :class:`~leanbayes.likelihoods.Categorical` if not given.
        output: chooses the tensor to predict, if the model gives something else.
        targets: what batches have beside inputs: names, or how many parts at the end of a tuple;
            by default ``labels`` and ``label``, and the last of several parts.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.priors.Normal(1.0))
        >>> predict(model, torch.randn(5, 3), samples=10).probs.shape
        torch.Size([5, 2])
    """
    _check_options(samples, batch_size, seed)
    draw = _Drawer(model, samples, coherent, _common(seed, coherent and is_loader(x)))
    batches = Reader(model, batch_dim, targets, output).batches(x)
    parts = [draw(inputs, batch_size) for inputs in batches]
    drawn = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    return Prediction(drawn, likelihood or Categorical())


class _Drawer:
    """Draws samples for one batch after the other.

    Args:
        model: what is predicted with.
        samples: how many draws.
        coherent: whether each is one function over all batches.
        seed: of the first batch; others have their own, unless draws are coherent.
    """

    def __init__(self, model: nn.Module, samples: int, coherent: bool, seed: int | None) -> None:
        self.model, self.samples, self.coherent, self.seed = model, samples, coherent, seed
        self._done = 0
        self._last: Passes | None = None

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
                    return drawn


def _common(seed: int | None, is_needed: bool) -> int | None:
    """A seed that batches have in common."""
    return int(torch.randint(2**62, ())) if is_needed and seed is None else seed


def _check_options(samples: int, batch_size: int | None, seed: int | None) -> None:
    require(samples >= 1, f"samples is {samples}; it must be at least 1")
    require(batch_size is None or batch_size >= 1, f"batch_size is {batch_size}; it must be ≥ 1")
    if seed is not None:
        require_seed(seed)


def predict_batches(
    model: nn.Module,
    x: Given,
    *,
    samples: int = 100,
    batch_size: int | None = None,
    batch_dim: int | Sequence[int] = 0,
    coherent: bool = False,
    seed: int | None = None,
    likelihood: Likelihood | None = None,
    output: Callable[[Any], Any] | None = None,
    targets: Targets = None,
) -> Iterator[Prediction]:
    """Predict one slice of the examples after the other: memory for one slice is enough.

    A loop takes what it wants of each, where :func:`predict` keeps all samples of all examples.

    Args:
        model: any model.
        x: inputs, or a DataLoader, as :func:`predict` takes them.
        samples: how many draws (of every member).
        batch_size: how many examples a slice has, all of one batch of a loader; if not given,
            fewer for more samples.
        batch_dim: which dimension of the inputs counts examples, or one for each of them.
        coherent: let each draw be one function over the whole data set.
        seed: makes the draws repeatable.
        likelihood: what the outputs mean; :class:`~leanbayes.likelihoods.Categorical` if not given.
        output: chooses the tensor to predict, if the model gives something else.
        targets: what batches have beside inputs.

    Example:
        >>> import leanbayes as lb
        >>> model = lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.priors.Normal(1.0))
        >>> parts = predict_batches(model, torch.randn(500, 3), samples=1000)
        >>> torch.cat([part.probs for part in parts]).shape
        torch.Size([500, 2])
    """
    _check_options(samples, batch_size, seed)
    step = batch_size or max(_SLICE // samples, 1)
    draw = _Drawer(model, samples, coherent, _common(seed, coherent))
    for inputs in Reader(model, batch_dim, targets, output).batches(x):
        for start in range(0, max(inputs.sizes[0], 1), step):
            yield Prediction(draw(inputs.cut(start, step), None), likelihood or Categorical())


def shared_layers(model: nn.Module, *inputs: Tensor) -> frozenset[nn.Module]:
    """The random maps that one forward pass calls more than once, with other noise each time."""
    with torch.no_grad(), evaluating(model), noise_by(0, model), one_pass() as current:
        model(*inputs)
    return frozenset(current.repeated)


_SLICE = 2**14
"""How many samples of single examples :func:`predict_batches` keeps at once."""
