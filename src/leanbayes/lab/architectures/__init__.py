"""The papers' networks, as plain torch modules with named layers and published first weights.

Example:
    >>> import leanbayes as lb
    >>> net = build("lenet", outputs=10)
    >>> model = lb.convert(net, lb.KTied(2), lb.Normal(0.3), include=("dense*",))
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any, TypeVar

import torch

from leanbayes.errors import nearest
from leanbayes.lab.architectures.base import Chain, Network
from leanbayes.lab.architectures.convolutional import (
    fashion_cnn,
    lenet,
    lenet5_caffe,
    vgg,
    vgg_small,
)
from leanbayes.lab.architectures.dense import mlp
from leanbayes.lab.architectures.recurrent import EhrRecurrent, ImdbLstm
from leanbayes.lab.architectures.residual import resnet50, tfp_resnet, wide_resnet
from leanbayes.lab.architectures.vae import Vae, VaeOutput, standard_kl
from leanbayes.registry import Registry

__all__ = [
    "ARCHITECTURES",
    "Chain",
    "Network",
    "Vae",
    "VaeOutput",
    "build",
    "register_architecture",
    "standard_kl",
]

_BUILDERS: dict[str, Callable[..., Network]] = {
    "mlp": mlp,
    "mlp-elu": partial(mlp, hidden=(300, 300, 300), activation="elu", start="fan_in"),
    "toy": partial(
        mlp,
        inputs=2,
        hidden=(100, 100, 100, 100, 2, 100),
        outputs=4,
        activation="leaky_relu",
        start="fan_in",
    ),
    "lenet": lenet,
    "lenet5-caffe": lenet5_caffe,
    "lenet5-caffe-all-vdo": partial(lenet5_caffe, bias=True, norm="dense1"),
    "lenet5-caffe-tanh": partial(lenet5_caffe, activation="tanh", affine=False),
    "vgg": vgg,
    "vgg-small": vgg_small,
    "fashion-cnn": fashion_cnn,
    "resnet-tfp": tfp_resnet,
    "wrn-28": wide_resnet,
    "resnet-50": resnet50,
    "imdb-lstm": ImdbLstm,
    "ehr-rnn": EhrRecurrent,
    "vae": Vae,
}

Builder = TypeVar("Builder", bound=Callable[..., Network])

ARCHITECTURES = Registry[Callable[..., Network]]("architecture")
"""Every network by name; the options of each are the arguments of its builder."""


def register_architecture(name: str) -> Callable[[Builder], Builder]:
    """Add a network: ``build`` and recipes know it from then on.

    It decorates a function or class that makes a :class:`Network`.

    Args:
        name: what to call it.

    Example:
        >>> @register_architecture("line")
        ... def line(inputs: int = 3) -> Network:
        ...     return mlp(inputs=inputs, hidden=(), outputs=1)
        >>> build("line", inputs=5)(torch.ones(2, 5)).shape
        torch.Size([2, 1])
        >>> ARCHITECTURES.unregister("line")
    """
    return ARCHITECTURES.register(name=name)


for _name, _builder in _BUILDERS.items():
    register_architecture(_name)(_builder)


def build(name: str, /, *, generator: torch.Generator | None = None, **options: Any) -> Network:
    """Build a network by name, with the first weights of its paper.

    Args:
        name: one of :data:`ARCHITECTURES`.
        generator: where first weights are drawn from; the global seed if not given.
        **options: arguments of its builder.

    Example:
        >>> build("mlp", hidden=(50,))(torch.randn(3, 784)).shape
        torch.Size([3, 10])
    """
    builder = ARCHITECTURES[name]
    known = signature(builder).parameters
    for option in options:
        if option not in known:
            raise ValueError(
                f"architecture {name!r} has no option {option!r}{nearest(option, known)}"
            )
    network = builder(**options)
    if generator is not None:
        network.reset(generator)
    return network
