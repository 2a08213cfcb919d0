"""Layers with weights, Bayesian or not, seen alike; and how one is cut to what is needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.analysis.sparsity import plain_op
from leanbayes.compression.compaction.channels import Channels, ensure
from leanbayes.layers import Affine, RandomMap
from leanbayes.layers.base import Template
from leanbayes.layers.matrix_layers import Convolution, TransposedConvolution
from leanbayes.ops import Conv, ConvTranspose, Linear, LinearOp
from leanbayes.parameters.learned import Learned
from leanbayes.posteriors import Posterior
from leanbayes.priors import Prior

_KINDS = (Affine, Convolution, TransposedConvolution)
_OPS = (Linear, Conv, ConvTranspose)


@dataclass(frozen=True, eq=False)
class LayerWithWeights:
    """A layer ``y = op(x, W) + b``: what its weights can be, for every output and input.

    Args:
        module: the layer.
        op: action of the matrix.
        used: whether output ``i`` uses input ``j``, ``[out, in]``: a weight that is not zero.
        random: whether it does so by a weight that is random.
        total: the sum of its mean weights over the places of the kernel.
        bias: the bias ``[out]``; zeros if there is none.
        random_bias: whether the bias is random.
    """

    module: nn.Module
    op: LinearOp
    used: Tensor
    random: Tensor
    total: Tensor
    bias: Tensor
    random_bias: bool

    @classmethod
    @torch.no_grad()
    def of(cls, module: nn.Module, *, exact: bool = True) -> LayerWithWeights | None:
        """Return the view of a layer, ``None`` for other modules; raise if it cannot be cut."""
        ours = isinstance(module, Affine) and type(module) in _KINDS
        op = module.op if isinstance(module, Affine) and ours else plain_op(module)
        if op is None or type(op) not in _OPS:
            return None
        if isinstance(module, Affine):
            _check_parts(module)
            q = module.posterior()
            mean, variance = q.mean.double().cpu(), q.variance.cpu()
        else:
            assert isinstance(module.weight, Tensor)
            mean = op.matrix(module.weight).double().cpu()
            variance = torch.zeros_like(mean)
        own = module.bias
        bias = own.double().cpu() if isinstance(own, Tensor) else mean.new_zeros(len(mean))
        return cls(
            module,
            op,
            _by_input(op, (mean != 0) | (variance != 0)).any(-1),
            _by_input(op, (variance != 0) & exact).any(-1),
            _by_input(op, mean).sum(-1),
            bias,
            isinstance(own, RandomMap),
        )

    @property
    def outputs(self) -> int:
        """How many there are."""
        return self.used.shape[0]

    @property
    def inputs(self) -> int:
        """How many channels it reads."""
        return self.used.shape[1]

    @property
    def kernel(self) -> int:
        """How many places its kernel has."""
        return prod(self.op.kernel_size) if isinstance(self.op, Conv | ConvTranspose) else 1

    @property
    def rank(self) -> int | None:
        """How many dimensions its input has; any number if it is linear."""
        return self.op.dims + 2 if isinstance(self.op, Conv | ConvTranspose) else None

    @property
    def has_border(self) -> bool:
        """Whether a constant channel is not a constant of the output: positions see less of it."""
        if isinstance(self.op, Conv):
            return self.op.padding_mode == "zeros" and any(self.op.pad_widths())
        return isinstance(self.op, ConvTranspose)

    def folds(self, values: Tensor, constant: Tensor) -> Tensor:
        """Return where a bias can replace what a constant input adds, ``[out, in]``."""
        exact = ~self.random & (not self.has_border) & (not self.random_bias)
        return constant & ((values == 0) | exact | ~self.used)

    def off(self, read: Channels | None) -> Tensor:
        """Return the outputs that have no weight, or none that meets more than constants."""
        unused = ~self.used
        if read is not None:
            unused = unused | self.folds(read.values, read.constant)
        return unused.all(1)

    def constants(self, read: Channels | None) -> tuple[Tensor, Tensor]:
        """Return the values of outputs that are constants, and which ones are, for what is read."""
        values = self.bias
        if read is not None:
            folds = self.folds(read.values, read.constant)
            values = values + self.shift(read.values, folds)
        return values, self.off(read) & (not self.random_bias)

    def carried(self, read: Channels, rows: Tensor) -> Tensor:
        """Return the constants that only the weights of another constant can replace.

        That is at a border of zeros: with plain weights, ``Σ_d c_d W_d`` acts as one channel does
        whose constant is ``c_e`` and whose weights are ``Σ_d (c_d / c_e) W_d``.
        """
        plain = not isinstance(self.module, Affine) and self.op.groups == 1
        needed = (self.used & ~self.folds(read.values, read.constant))[rows].any(0)
        return needed & read.constant & plain

    def carrier(self, read: Channels, lost: Tensor) -> int | None:
        """Return a kept constant feature, not much smaller than the lost ones."""
        sizes = torch.where(read.constant & read.kept_features(), read.values.abs(), 0.0)
        best = int(sizes.argmax())
        return best if sizes[best] >= 0.1 * read.values[lost].abs().max() else None

    @torch.no_grad()
    def carry(self, values: Tensor, lost: Tensor, carrier: int) -> None:
        """Add the weights of lost constants to those of a carrier, in the layer itself."""
        weight = self.module.get_parameter("weight")
        matrix = self.op.matrix(weight.double())
        kernels = matrix.reshape(self.outputs, self.inputs, self.kernel).clone()
        ratios = (values[lost] / values[carrier]).to(kernels.device)
        kernels[:, carrier] += torch.einsum(
            "oik,i->ok", kernels[:, lost.to(kernels.device)], ratios
        )
        weight.copy_(self.op.unmatrix(kernels.reshape(matrix.shape)))

    def shift(self, values: Tensor, which: Tensor) -> Tensor:
        """Return what these constants add to every output; ``which`` is ``[out, in]``."""
        return (self.total * which * values).sum(1)

    @torch.no_grad()
    def cut(self, rows: Tensor, inputs: Tensor, groups: int, shift: Tensor) -> None:
        """Keep these outputs and inputs of the layer itself, and add a shift to the bias."""
        op = self.op if groups == self.op.groups else _with_groups(self.op, groups)
        whole = torch.arange(self.inputs // self.op.groups)
        within = inputs if self.op.groups == 1 else whole
        columns = (within.unsqueeze(1) * self.kernel + torch.arange(self.kernel)).flatten()
        module = self.module
        if isinstance(module, Affine):
            _cut_law(module, op, rows, columns)
            if isinstance(module.bias, RandomMap):
                _cut_law(module.bias, module.bias.op, rows, torch.tensor([0]))
            module.channels = op.input_channels(len(columns))
        else:
            _cut_weight(module, self.op, op, rows, columns)
        if not self.random_bias:
            _cut_bias(module, self.bias[rows] + shift)
        sizes = {"groups": groups, "in": len(inputs), "out": len(rows)}
        _rename(module, sizes)
        if isinstance(module, Affine) and module.template is not None:
            plain = module.template.filled(module.torch_tensors(None))
            _rename(plain, sizes)
            module.template = Template(plain)


def _with_groups(op: Any, groups: int) -> LinearOp:
    changed: LinearOp = replace(op, groups=groups)
    return changed


def _by_input(op: LinearOp, matrix: Tensor) -> Tensor:
    """A matrix ``[out, in/groups · kernel]`` as ``[out, in, kernel]``, zero between groups."""
    rows, columns = matrix.shape
    channels = op.input_channels(columns) // op.groups
    blocks = matrix.reshape(op.groups, rows // op.groups, channels, -1)
    dense = blocks.new_zeros(op.groups, rows // op.groups, op.groups, channels, blocks.shape[-1])
    for group in range(op.groups):
        dense[group, :, group] = blocks[group]
    return dense.reshape(rows, op.groups * channels, -1)


def _check_parts(layer: Affine) -> None:
    """Raise a reason if the laws of a layer cannot be cut; tried on its first output."""
    for part in (layer, layer.bias):
        if not isinstance(part, RandomMap):
            continue
        op: Any = part.op
        size = prod(op.kernel_size) if isinstance(op, Conv | ConvTranspose) else 1
        try:
            _parts(part, op if op.groups == 1 else _with_groups(op, 1), range(1), range(size))
        except (NotImplementedError, AttributeError) as error:
            ensure(False, str(error))


def _parts(
    layer: RandomMap, op: LinearOp, rows: Iterable[int], columns: Iterable[int]
) -> tuple[Learned[Any], Learned[Any]]:
    posterior, prior = layer.posterior, layer.prior
    if not (isinstance(posterior.spec, Posterior) and isinstance(prior.spec, Prior)):
        raise NotImplementedError("it was made without a spec")
    device = posterior.like.device
    index = [torch.as_tensor(list(which), device=device) for which in (rows, columns)]
    return posterior.spec.part(posterior, op, *index), prior.spec.part(prior, *index)


def _cut_law(layer: RandomMap, op: LinearOp, rows: Tensor, columns: Tensor) -> None:
    layer.posterior, layer.prior = _parts(layer, op, rows.tolist(), columns.tolist())
    layer.op = op


def _cut_weight(
    module: nn.Module, before: LinearOp, after: LinearOp, rows: Tensor, columns: Tensor
) -> None:
    weight = module.get_parameter("weight")
    matrix = before.matrix(weight.detach())
    small = matrix[rows.to(weight.device)][:, columns.to(weight.device)]
    made = after.unmatrix(small).contiguous().clone()
    module.register_parameter("weight", nn.Parameter(made, requires_grad=weight.requires_grad))


def _cut_bias(module: nn.Module, values: Tensor) -> None:
    """Store a bias; where there was none, only if it is not zero."""
    before: Any = module.bias
    weight = next(module.parameters())
    if before is None and not bool(values.any()):
        return
    like = weight if before is None else before
    made = values.to(like.device, like.dtype)
    module.bias = nn.Parameter(made, requires_grad=like.requires_grad)


def _rename(module: nn.Module, sizes: dict[str, int]) -> None:
    """The sizes that a layer says it has."""
    for attribute, size in (
        ("in_features", sizes["in"]),
        ("out_features", sizes["out"]),
        ("in_channels", sizes["in"]),
        ("out_channels", sizes["out"]),
        ("groups", sizes["groups"]),
    ):
        if attribute in vars(module):
            setattr(module, attribute, size)
