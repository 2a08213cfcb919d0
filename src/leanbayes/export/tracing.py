"""One forward pass as a graph, for batches of any size."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from leanbayes.distributions.gauss_hermite import POINTS, quadrature
from leanbayes.errors import explained_as
from leanbayes.estimators import mean
from leanbayes.export.graph import OutputGraph
from leanbayes.export.noise import Lifted, lift_noise
from leanbayes.layers.forward_pass import forward_pass
from leanbayes.models.random_maps import members, tile, using
from leanbayes.prediction.eval_mode import evaluating
from leanbayes.prediction.inputs import Inputs
from leanbayes.prediction.one_pass.propagate import draw_outputs, moments_of
from leanbayes.prediction.predict import Prediction, shared_layers
from leanbayes.prediction.sampling import examples_first

_SIZES = (11, 13, 17, 19, 23, 29, 31, 37)
"""Numbers of examples to trace with: one that no other dimension has is not confused with it."""

_UNTRACEABLE = (
    "the forward pass cannot be traced ({reason}); let it not decide by values of tensors, as "
    "torch.export asks of every model"
)


@contextmanager
def without_torch_warnings() -> Iterator[None]:
    """Suppress torch's warnings and logs about its own parts."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class _Pass(nn.Module):
    """One draw for all examples: ``[members, examples, …]``."""

    def __init__(self, model: nn.Module, dims: Sequence[int], shared: frozenset[nn.Module]) -> None:
        super().__init__()
        self.model, self.dims, self.shared = model, dims, shared
        self.members = members(model)

    def forward(self, *inputs: Tensor) -> Tensor:
        batch = [tile(t, self.members, d) for t, d in zip(inputs, self.dims, strict=True)]
        rows = batch[0].shape[self.dims[0]]
        with forward_pass(rows, self.shared):
            y = examples_first(self.model(*batch), rows, self.dims[0])
        return y.unflatten(0, (self.members, y.shape[0] // self.members))


def sized(inputs: Sequence[Tensor], dims: Sequence[int]) -> tuple[Tensor, ...]:
    """Return the inputs with a number of examples to trace with, the given ones over and over."""
    taken = {size for t in inputs for size in t.shape}
    rows = next(size for size in _SIZES if size not in taken)
    index = torch.arange(rows, device=inputs[0].device)
    return tuple(
        t.index_select(d, index.to(t.device) % t.shape[d])
        for t, d in zip(inputs, dims, strict=True)
    )


def traced_pass(
    model: nn.Module, inputs: tuple[Tensor, ...], dims: Sequence[int], *, noisy: bool
) -> Lifted:
    """Trace a pass in eval mode as a function of its inputs and its noise."""
    count = members(model)
    tiled = [tile(t, count, d) for t, d in zip(inputs, dims, strict=True)]
    shared = shared_layers(model, *tiled, rows=tiled[0].shape[dims[0]])
    sizes = (tuple({d: Dim.AUTO} for d in dims),)
    with (
        torch.no_grad(),
        evaluating(model),
        without_torch_warnings(),
        nullcontext() if noisy else using(model, mean),
    ):
        one = _Pass(model, dims, shared)
        one.training = False
        with explained_as(_UNTRACEABLE, RuntimeError):
            program = torch.export.export(one, inputs, dynamic_shapes=sizes, strict=False)
            program = program.run_decompositions({})
        return lift_noise(program, dims[0])


class _OnePass(nn.Module):
    """Outputs of a prediction by moments; draws of outputs are constants."""

    def __init__(
        self, model: nn.Module, dims: Sequence[int], answers: OutputGraph, noise: Tensor
    ) -> None:
        super().__init__()
        self.model, self.dims, self.answers = model, tuple(dims), answers
        self.noise: Tensor
        self.register_buffer("noise", noise)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        moments = moments_of(self.model, Inputs(inputs, self.dims))
        drawn = draw_outputs(moments, self.noise)
        return self.answers.of(Prediction(drawn, self.answers.likelihood, moments=moments))


def traced_moments(
    model: nn.Module,
    answers: OutputGraph,
    inputs: tuple[Tensor, ...],
    dims: Sequence[int],
    noise: Tensor,
) -> ExportedProgram:
    """Trace a prediction by moments, from inputs to answers."""
    for points in (5, POINTS):
        quadrature(points)  # kept: eigenvalues cannot be traced
    whole = _OnePass(model, dims, answers, noise)
    whole.training = False
    sizes = (tuple({d: Dim.AUTO} for d in dims),)
    with (
        torch.no_grad(),
        evaluating(model),
        without_torch_warnings(),
        explained_as(_UNTRACEABLE, RuntimeError),
    ):
        program = torch.export.export(whole, inputs, dynamic_shapes=sizes, strict=False)
        return program.run_decompositions({})


class _Prediction(nn.Module):
    """One pass, and the summary of all samples: drawn here, or given as the last inputs."""

    def __init__(self, lifted: Lifted, answers: OutputGraph) -> None:
        super().__init__()
        self.one_pass, self.answers = lifted.module, answers

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        if not self.answers.stacked:
            return self.answers(self.one_pass(*tensors)[0])
        *inputs, samples = tensors
        return self.one_pass(*inputs)[0], *self.answers(samples)


def traced_prediction(
    lifted: Lifted,
    answers: OutputGraph,
    inputs: tuple[Tensor, ...],
    dims: Sequence[int],
    samples: int,
) -> ExportedProgram:
    """Trace the graph from inputs to the outputs of one pass.

    With several passes, the graph also takes the noise of one pass and the samples of all. It then
    returns the outputs of the pass and the predictions.
    """
    rows = inputs[0].shape[dims[0]]
    like: dict[str, Any] = {"dtype": lifted.dtype, "device": inputs[0].device}
    given: list[tuple[Tensor, dict[int, Any]]] = [
        (t, {d: Dim.AUTO}) for t, d in zip(inputs, dims, strict=True)
    ]
    if lifted.numbers:
        given.append((torch.zeros(rows, lifted.numbers, **like), {0: Dim.AUTO}))
    if lifted.shared:
        given.append((torch.zeros(lifted.shared, **like), {}))
    with torch.no_grad(), without_torch_warnings():
        if answers.stacked:
            outputs = lifted.module(*(tensor for tensor, _ in given))[0]
            given.append((outputs.expand(samples, *outputs.shape).clone(), {2: Dim.AUTO}))
        whole = _Prediction(lifted, answers)
        tensors, sizes = tuple(t for t, _ in given), tuple(size for _, size in given)
        return torch.export.export(whole, tensors, dynamic_shapes=(sizes,), strict=False)
