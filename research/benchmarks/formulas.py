"""What a Bayesian transformer takes: parameters, optimizer state, communication and arithmetic.

Nothing here is measured; a test compares the counts with a small transformer that is converted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

BYTES = 4
"""Of a parameter, a gradient and each of Adam's two moments, all in float32."""
COPIES = 4
"""A parameter, its gradient and two moments."""
PASSES = {"DDP": 2, "FSDP": 3}
"""Times that every parameter, or its gradient, goes over the network in a step.

DDP reduces and gathers gradients. FSDP gathers parameters for the forward pass and again for the
backward pass, and reduces gradients.
"""


class Shape(NamedTuple):
    """A matrix of weights."""

    rows: int
    columns: int

    @property
    def weights(self) -> int:
        """How many there are."""
        return self.rows * self.columns

    @property
    def rim(self) -> int:
        """Rows and columns: what a factor of rank one has."""
        return self.rows + self.columns


@dataclass(frozen=True)
class Transformer:
    """A decoder with learned positions, pre-normalization, four-fold hidden layers and biases.

    Attributes:
        layers: how many blocks.
        width: of the residual stream.
        vocabulary: how many tokens there are.
        context: how many positions.
    """

    layers: int
    width: int
    vocabulary: int = 50_257
    context: int = 2048

    def dense(self) -> Iterator[Shape]:
        """The matrices that multiply every token: attention, hidden layers, the output layer."""
        w = self.width
        for _ in range(self.layers):
            yield from (Shape(w, w),) * 4
            yield from (Shape(4 * w, w), Shape(w, 4 * w))
        yield Shape(self.vocabulary, w)

    def tables(self) -> Iterator[Shape]:
        """The matrices that are looked up: tokens and positions."""
        yield Shape(self.width, self.vocabulary)
        yield Shape(self.width, self.context)

    @property
    def biases(self) -> int:
        """Of the dense layers; the output layer has none."""
        return 9 * self.width * self.layers

    @property
    def norms(self) -> int:
        """Two a block and one at the end, each with a weight and a bias."""
        return 2 * self.width * (2 * self.layers + 1)


@dataclass(frozen=True)
class Family:
    """A posterior of every matrix, tables included.

    Attributes:
        name: what tables call it.
        kind: ``plain``, ``k-tied``, ``rank-1`` or ``mean field``.
        size: the rank of k-tied scales, or the members of a rank-1 mixture.
    """

    name: str
    kind: str
    size: int = 1

    def of_matrix(self, shape: Shape) -> int:
        """Return parameters of one matrix.

        Example:
            >>> [family.of_matrix(Shape(400, 784)) for family in FAMILIES]
            [313600, 315968, 323072, 627200]
        """
        extra = {
            "plain": 0,
            "k-tied": self.size * shape.rim,
            "rank-1": 2 * self.size * shape.rim,  # a location and a scale of every factor
            "mean field": shape.weights,
        }
        return shape.weights + extra[self.kind]

    @property
    def biases(self) -> int:
        """How many of each; every member of a mixture has its own."""
        return self.size if self.kind == "rank-1" else 1

    def flops(self, shape: Shape, *, local: bool, tokens: int) -> float:
        """Of a training step with one matrix, for one token: products forward and backward.

        One draw of the weights costs the same whatever the number of tokens that share it, so it
        is divided by them; noise of every output (``local``) needs variances for every token.
        """
        terms = self.size * (self.size + 1) / 2
        extra = {
            "plain": 0.0,
            "k-tied": terms * shape.rim if local else self.size * shape.weights / tokens,
            "rank-1": 0.0,  # factors multiply vectors, not matrices
            "mean field": shape.weights if local else 0.0,
        }
        return 6 * (shape.weights + extra[self.kind])


MODELS = {
    "125 M": Transformer(12, 768, context=1024),
    "7 B": Transformer(32, 4096),
    "70 B": Transformer(80, 8192),
}
FAMILIES = (
    Family("plain", "plain"),
    Family("k-tied, rank 2", "k-tied", 2),
    Family("rank-1, 4 members", "rank-1", 4),
    Family("mean field", "mean field"),
)


def parameters(model: Transformer, family: Family) -> int:
    """Return all that is trained.

    Example:
        >>> parameters(Transformer(2, 16, vocabulary=50, context=12), FAMILIES[0])
        8384
    """
    matrices = (*model.dense(), *model.tables())
    shared = sum(family.of_matrix(shape) for shape in matrices)
    return shared + family.biases * model.biases + model.norms


def memory_per_device(count: int, devices: int, strategy: str) -> float:
    """Bytes of parameters, gradients and Adam's moments on one device; FSDP shards all of them."""
    return BYTES * COPIES * count / (devices if strategy == "FSDP" else 1)


def bytes_sent(count: int, devices: int, strategy: str) -> float:
    """Return what one device sends in a step, by ring algorithms.

    Example:
        >>> bytes_sent(1000, 2, "DDP"), bytes_sent(1000, 2, "FSDP")
        (4000.0, 6000.0)
    """
    return PASSES[strategy] * BYTES * count * (devices - 1) / devices


def flops_per_token(
    model: Transformer, family: Family, *, local: bool = False, tokens: int = 8192
) -> float:
    """Return products of a training step for one token, attention's own included.

    Args:
        model: the transformer.
        family: its posterior.
        local: noise of every output, instead of one draw of the weights for a batch.
        tokens: on a device, which share a draw.
    """
    attention = 12 * model.layers * model.width * model.context
    dense = sum(family.flops(shape, local=local, tokens=tokens) for shape in model.dense())
    return dense + attention
