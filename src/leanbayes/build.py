"""Builders: a torch layer -> its Bayesian counterpart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.utils import parametrize

from leanbayes.attention import Attention
from leanbayes.errors import require
from leanbayes.estimators import Estimator, auto
from leanbayes.kl import check_pair
from leanbayes.layers import Affine, RandomMap
from leanbayes.learned import Learned
from leanbayes.ops import Conv, ConvTranspose, Linear, LinearOp, Lookup
from leanbayes.posteriors import Posterior, Rank1
from leanbayes.priors import Prior
from leanbayes.recurrent import Recurrent

__all__ = ["BAYESIAN", "CONVERTIBLE", "Builder", "Choice", "check_layer"]

CONVERTIBLE: tuple[type[nn.Module], ...] = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Embedding,
    nn.LSTM,
    nn.GRU,
    nn.RNN,
    nn.MultiheadAttention,
)
"""The torch layers that have a Bayesian counterpart."""

BAYESIAN: tuple[type[nn.Module], ...] = (Affine, Recurrent, Attention)
"""The layers they become."""


@dataclass(frozen=True)
class Choice:
    """What a layer is to be made of.

    Args:
        posterior: recipe of the weights' posterior.
        prior: recipe of their prior.
        estimator: how far noise is shared.
        bias: posterior of the biases; ``None`` keeps them deterministic.
        bias_prior: their prior; ``None`` takes that of the weights.
    """

    posterior: Posterior
    prior: Prior
    estimator: Estimator = auto
    bias: Posterior | None = None
    bias_prior: Prior | None = None

    def __post_init__(self) -> None:
        self._require_recipe("posterior", Posterior, "lb.KTied(2)", optional=False)
        self._require_recipe("prior", Prior, "lb.Normal(1.0)", optional=False)
        self._require_recipe("bias", Posterior, "lb.MeanField()", optional=True)
        self._require_recipe("bias_prior", Prior, "lb.Normal(1.0)", optional=True)
        require(
            callable(self.estimator),
            f"estimator is {self.estimator!r}; give a function such as lb.auto",
        )
        if isinstance(self.posterior, Rank1):
            require(
                not self.prior.weights_only,
                f"{type(self.prior).__name__} is a prior of weights, and a rank-one posterior "
                "compares its factors with the prior; use for example lb.Normal(0.1, loc=1.0)",
            )
            require(
                self.bias is None or self.bias_prior is not None,
                "the prior of rank-one factors does not suit biases; give bias_prior as well",
            )

    def _require_recipe(self, name: str, kind: type, example: str, *, optional: bool) -> None:
        value = getattr(self, name)
        require(
            isinstance(value, kind) or (optional and value is None),
            f"{name} is {value!r}; give a recipe such as {example}",
        )


@dataclass
class Builder:
    """Builds Bayesian layers, and keeps the priors that layers share."""

    shared: dict[Prior, Learned[Distribution]] = field(default_factory=dict)

    def build(self, module: nn.Module, choice: Choice) -> nn.Module:
        """The Bayesian counterpart of a layer; raises a sentence if it cannot have one."""
        if isinstance(module, nn.RNNBase):
            built: nn.Module = self._recurrent(module, choice)
        elif isinstance(module, nn.MultiheadAttention):
            built = self._attention(module, choice)
        else:
            bias = getattr(module, "bias", None)
            built = self._affine(module.get_parameter("weight"), bias, op_of(module), choice)
        return built.train(module.training)

    def map(
        self, weight: Tensor, op: LinearOp, posterior: Posterior, prior: Prior, estimator: Estimator
    ) -> RandomMap:
        """A random map whose means start at ``weight``."""
        parts = self._parts(weight, op, posterior, prior)
        return RandomMap(op, *parts, estimator)

    def _parts(
        self, weight: Tensor, op: LinearOp, posterior: Posterior, prior: Prior
    ) -> tuple[Learned, Learned]:  # type: ignore[type-arg]
        require(
            bool(torch.isfinite(weight).all()),
            "its weights are not finite; look for a NaN or an infinity before converting",
        )
        q = posterior(weight, op)
        for name in ("loc", "weight"):
            if name in q.names:
                q.get_parameter(name).requires_grad_(weight.requires_grad)
        p = self.shared.get(prior)
        if p is None:
            p = prior(op.matrix(weight.detach()))
            if prior.shared_by_model:
                self.shared[prior] = p
        check_pair(q(), p())
        return q, p

    def _affine(self, weight: Tensor, bias: Tensor | None, op: LinearOp, choice: Choice) -> Affine:
        q, p = self._parts(weight, op, choice.posterior, choice.prior)
        random_bias = None if bias is None else self._bias(bias, choice)
        return Affine(op, q, p, bias if random_bias is None else random_bias, choice.estimator)

    def _bias(self, bias: Tensor, choice: Choice) -> RandomMap | None:
        if choice.bias is None:
            return None
        prior = choice.bias_prior or choice.prior
        column = bias.unsqueeze(-1)
        return self.map(column, Linear(), choice.bias, prior, choice.estimator)

    def _recurrent(self, module: nn.RNNBase, choice: Choice) -> Recurrent:
        maps: dict[str, RandomMap] = {}
        for name, tensor in module.named_parameters():
            if name.startswith("weight"):
                maps[name] = self.map(
                    tensor, Linear(), choice.posterior, choice.prior, choice.estimator
                )
            else:
                random_bias = self._bias(tensor, choice)
                if random_bias is not None:
                    maps[name] = random_bias
        return Recurrent(module, maps)

    def _attention(self, module: nn.MultiheadAttention, choice: Choice) -> Attention:
        require(
            module.bias_k is None and not module.add_zero_attn,
            "attention with bias_k, bias_v or add_zero_attn has no Bayesian counterpart; "
            "exclude it",
        )
        if module._qkv_same_embed_dim:
            assert module.in_proj_weight is not None
            inputs = module.in_proj_weight.chunk(3)
        else:
            inputs = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        packed = module.in_proj_bias
        biases = (None,) * 3 if packed is None else packed.chunk(3)
        projections = [
            self._affine(weight, bias, Linear(), choice)
            for weight, bias in zip(inputs, biases, strict=True)
        ]
        out = self._affine(module.out_proj.weight, module.out_proj.bias, Linear(), choice)
        query, key, value = projections
        return Attention(module, query, key, value, out)


def op_of(module: nn.Module) -> LinearOp:
    """The op of a linear, convolutional or embedding layer."""
    if isinstance(module, nn.Linear):
        return Linear()
    if isinstance(module, nn.Embedding):
        return Lookup(module.padding_idx)
    assert isinstance(module, nn.modules.conv._ConvNd)
    padding = module.padding if isinstance(module.padding, str) else tuple(module.padding)
    shared = (tuple(module.kernel_size), tuple(module.stride), padding, tuple(module.dilation))
    if module.transposed:
        return ConvTranspose(*shared, module.groups, tuple(module.output_padding))
    return Conv(*shared, module.groups, module.padding_mode)


def check_layer(module: nn.Module) -> None:
    """Raise a sentence if converting this layer would lose something."""
    base = next(kind for kind in CONVERTIBLE if isinstance(module, kind))
    require(
        not isinstance(module, nn.modules.lazy.LazyModuleMixin),
        "its shape is not known yet; run one batch through the model first",
    )
    require(
        not parametrize.is_parametrized(module),
        "it has parametrizations; remove them with "
        "torch.nn.utils.parametrize.remove_parametrizations first, or exclude it",
    )
    require(
        not (module._forward_hooks or module._forward_pre_hooks),
        "it has forward hooks (as pruning and spectral_norm set them), which would be lost; remove "
        "them first, or exclude it",
    )
    forward: Callable[..., object] = type(module).forward
    require(
        forward is base.forward or base.__module__ == type(module).__module__,
        f"{type(module).__name__} overrides the forward of {base.__name__}, which would be lost; "
        "exclude it",
    )
    if isinstance(module, nn.Embedding):
        require(
            module.max_norm is None and not module.sparse and not module.scale_grad_by_freq,
            "an embedding with max_norm, sparse or scale_grad_by_freq has no Bayesian "
            "counterpart; exclude it",
        )
        padding = module.padding_idx
        require(
            padding is None or not bool(module.weight[padding].any()),
            "the vector of its padding index is not zero; set it to zero or exclude the layer",
        )
