"""The variational auto-encoder of the matrix-normal paper, with three latent posteriors."""

import math
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal, constraints

from leanbayes.errors import require, require_choice
from leanbayes.lab.architectures import starts
from leanbayes.lab.architectures.base import Network, register_architecture
from leanbayes.lab.architectures.dense import mlp


class LatentMatrixNormal(Distribution):
    """Matrix normal ``M + A X Bᵀ`` for every image, as a distribution of flat vectors.

    Args:
        loc: the means ``M [batch, n, m]``.
        rows: lower-triangular factors ``A [batch, n, n]`` of the covariance of rows.
        columns: lower-triangular factors ``B [batch, m, m]`` of the covariance of columns.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, loc: Tensor, rows: Tensor, columns: Tensor) -> None:
        self.loc, self.rows, self.columns = loc, rows, columns
        self.matrix_shape = loc.shape[-2:]
        super().__init__(loc.shape[:-2], torch.Size([prod(self.matrix_shape)]), validate_args=False)

    @property
    def mean(self) -> Tensor:
        return self.loc.flatten(-2)

    @property
    def variance(self) -> Tensor:
        rows, columns = (factor.square().sum(-1) for factor in (self.rows, self.columns))
        return (rows.unsqueeze(-1) * columns.unsqueeze(-2)).flatten(-2)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = (*sample_shape, *self.loc.shape)
        noise = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        return (self.loc + self.rows @ noise @ self.columns.mT).flatten(-2)

    def _log_scale(self) -> Tensor:
        """Return half the log determinant of the covariance."""
        n, m = self.matrix_shape
        rows, columns = (
            factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) for factor in (self.rows, self.columns)
        )
        return m * rows + n * columns

    def entropy(self) -> Tensor:
        return self._log_scale() + 0.5 * prod(self.matrix_shape) * (1 + math.log(2 * math.pi))

    def log_prob(self, value: Tensor) -> Tensor:
        centered = value.unflatten(-1, self.matrix_shape) - self.loc
        half = torch.linalg.solve_triangular(self.rows, centered, upper=False)
        white = torch.linalg.solve_triangular(self.columns.mT, half, upper=True, left=False)
        normalizer = 0.5 * prod(self.matrix_shape) * math.log(2 * math.pi)
        squares: Tensor = white.square().sum((-2, -1))
        return -0.5 * squares - self._log_scale() - normalizer


def standard_kl(q: Distribution) -> Tensor:
    """KL of a distribution of vectors from N(0, I), from its mean, variance and entropy alone.

    Example:
        >>> float(standard_kl(Independent(Normal(torch.zeros(3), torch.ones(3)), 1)))
        0.0
    """
    moments = q.mean.square() + q.variance + math.log(2 * math.pi)
    return 0.5 * moments.sum(-1) - q.entropy()


def scored_draws(q: Distribution, samples: int) -> tuple[Tensor, Tensor]:
    """Return draws ``[samples, batch, |z|]`` of a latent posterior, and the log densities of them.

    Densities come from the noise ``ε`` of ``z = μ + L ε``, so that no equations are solved. One
    dense factor ``L`` for each image, ``A ⊗ B`` for a matrix normal, serves all its draws.
    """
    factor, loc = _dense_factor(q), q.mean
    noise = torch.randn(*loc.shape[:-1], samples, loc.shape[-1], dtype=loc.dtype, device=loc.device)
    z = loc.unsqueeze(-2) + noise @ factor.mT
    squares = (noise.square() + math.log(2 * math.pi)).sum(-1)
    log_scale = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True)
    return z.movedim(-2, 0), (-0.5 * squares - log_scale).movedim(-1, 0)


def _dense_factor(q: Distribution) -> Tensor:
    """Return a lower-triangular factor of the covariance."""
    if isinstance(q, LatentMatrixNormal):
        kron: Tensor = torch.einsum("...ij,...kl->...ikjl", q.rows, q.columns)
        return kron.flatten(-2).flatten(-3, -2)
    return q.scale_tril if isinstance(q, MultivariateNormal) else torch.diag_embed(q.stddev)


class LatentPosterior(nn.Module):
    """What an encoder's outputs say about the latent vector.

    ``"diag"`` has independent entries; ``"mn"`` is a matrix normal ``n × m``; ``"mv"`` a full
    multivariate normal, which is a matrix normal ``|z| × 1`` [matrix normal, section 5.4]. Factors
    are lower triangular with the log of their diagonals first.

    Args:
        family: ``"diag"``, ``"mn"`` or ``"mv"``.
        shape: ``(|z|,)``, or ``(n, m)`` for a matrix normal.

    Example:
        >>> [LatentPosterior(f, s).outputs for f, s in
        ...  (("diag", (40,)), ("mn", (20, 2)), ("mv", (40,)))]
        [80, 253, 860]
    """

    def __init__(self, family: Literal["diag", "mn", "mv"], shape: Sequence[int]) -> None:
        super().__init__()
        require_choice("family", family, ("diag", "mn", "mv"))
        dimensions = 2 if family == "mn" else 1
        require(
            len(shape) == dimensions and min(shape) >= 1,
            f"shape is {tuple(shape)}; family {family!r} needs {dimensions} positive "
            f"number{'s' if dimensions > 1 else ''}",
        )
        self.family, self.shape = family, tuple(shape)

    @property
    def size(self) -> int:
        """The dimension |z| of the latent vector."""
        return prod(self.shape)

    @property
    def _factor_sizes(self) -> list[int]:
        return [n if self.family == "diag" else n * (n + 1) // 2 for n in self.shape]

    @property
    def outputs(self) -> int:
        """How many numbers an encoder must give for each image."""
        return self.size + sum(self._factor_sizes)

    def forward(self, outputs: Tensor) -> Distribution:
        loc, *factors = outputs.split([self.size, *self._factor_sizes], -1)
        if self.family == "diag":
            return Independent(Normal(loc, factors[0].exp(), validate_args=False), 1)
        triangles = [_lower(packed, n) for packed, n in zip(factors, self.shape, strict=True)]
        if self.family == "mv":
            return MultivariateNormal(loc, scale_tril=triangles[0], validate_args=False)
        return LatentMatrixNormal(loc.unflatten(-1, self.shape), *triangles)

    def extra_repr(self) -> str:
        return f"{self.family}, {self.shape}"


def _lower(packed: Tensor, n: int) -> Tensor:
    """Return a lower-triangular factor from its log diagonal and its strictly lower part."""
    log_diagonal, below = packed.split([n, n * (n - 1) // 2], -1)
    values = torch.cat([log_diagonal.exp(), below], -1)
    row, column = torch.tril_indices(n, n, -1, device=packed.device)
    diagonal = torch.arange(n, device=packed.device) * (n + 1)
    places = torch.cat([diagonal, row * n + column]).expand_as(values)
    square = values.new_zeros(*values.shape[:-1], n * n)
    return square.scatter(-1, places, values).unflatten(-1, (n, n))


class VaeOutput(NamedTuple):
    """What a forward pass gives: logits of the pixels, and the posterior they were drawn from."""

    logits: Tensor
    posterior: Distribution


@register_architecture("vae")
class Vae(Network):
    """Encoder and decoder of three hidden layers with 300 units and ELU [matrix normal, section
    5.4].

    Takes binary images and gives the logits of the pixels, ``[batch, inputs]``, for one draw of
    the latent vector, with its posterior. Layers are ``encoder.dense1`` to ``encoder.dense4`` and
    the same of ``decoder``. Weights start He normal, as in the code of the set-up that the
    matrix-normal paper follows. Those of the factors start at zero, so that all families start
    with the same posteriors: means, and no correlations.

    Args:
        family: of the latent posterior: ``"diag"``, ``"mn"`` or ``"mv"``.
        shape: of the latent vector: ``(40,)`` or ``(9,)``; ``(20, 2)`` or ``(3, 3)`` for ``"mn"``.
        inputs: how many pixels an image has.
        hidden: the widths of the hidden layers.

    Example:
        >>> Vae("mn", (3, 3))(torch.ones(5, 1, 28, 28)).logits.shape
        torch.Size([5, 784])
    """

    def __init__(
        self,
        family: Literal["diag", "mn", "mv"] = "diag",
        shape: Sequence[int] = (40,),
        inputs: int = 784,
        hidden: Sequence[int] = (300, 300, 300),
    ) -> None:
        super().__init__()
        self.input_shape = (inputs,)
        self.latent = LatentPosterior(family, shape)
        self.encoder = mlp(inputs, hidden, self.latent.outputs, "elu")
        self.decoder = mlp(self.latent.size, hidden[::-1], inputs, "elu")
        means = partial(_first_rows, self.latent.size, starts.he_normal)
        last = f"encoder.dense{len(hidden) + 1}.weight"
        self.first_weights = {**starts.HE_NORMAL, last: means}
        self.reset()

    def posterior(self, x: Tensor) -> Distribution:
        """Return the posterior of the latent vector of every image."""
        q: Distribution = self.latent(self.encoder(x))
        return q

    def forward(self, x: Tensor) -> VaeOutput:
        q = self.posterior(x)
        return VaeOutput(self.decoder(q.rsample()), q)

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """``log p(x | z) + log p(z)``, ``[samples, batch]``, of latent vectors ``[samples, batch,
        |z|]``.

        The last layer's logits ``W h + b`` are needed for ``Σ log(1 + exp(logit))`` alone: the
        other part of the likelihood is ``x · (W h + b) = (Wᵀ x) · h + b · x``.
        """
        *layers, last = self.decoder.children()
        assert isinstance(last, nn.Linear)
        h = nn.Sequential(*layers)(z.flatten(0, 1))
        empty = F.softplus(last(h)).sum(-1).unflatten(0, z.shape[:2])
        pixels = x.flatten(1).to(h.dtype)
        on = torch.einsum("bh,sbh->sb", pixels @ last.weight, h.unflatten(0, z.shape[:2]))
        prior = -0.5 * (z.square() + math.log(2 * math.pi)).sum(-1)
        return on + pixels @ last.bias - empty + prior

    def log_weights(self, x: Tensor, samples: int = 1) -> Tensor:
        """Return importance weights ``log p(x|z) + log p(z) − log q(z|x)``, ``[samples, batch]``.

        Their mean is the evidence lower bound, and the log of the mean of their exponentials
        estimates ``log p(x)``; :func:`~research.papers.matrix_normal.vae.likelihood.log_likelihood`
        does that for many.
        """
        z, density = scored_draws(self.posterior(x), samples)
        return self.log_joint(x, z) - density


def _first_rows(
    count: int, fill: starts.Fill, tensor: Tensor, fan_in: int, generator: torch.Generator | None
) -> None:
    """Another rule for the first rows, and zeros in the others."""
    nn.init.zeros_(tensor)
    fill(tensor[:count], fan_in, generator)
