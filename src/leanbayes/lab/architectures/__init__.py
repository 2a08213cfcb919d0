"""Networks of recipes: plain torch modules with named layers and published first weights.

Example:
    >>> import leanbayes as lb
    >>> net = build("small-cnn", outputs=10)
    >>> model = lb.convert(net, lb.KTied(2), lb.priors.Normal(0.3), include=("dense*",))
"""

from leanbayes.lab.architectures.base import (
    ARCHITECTURES,
    Chain,
    Network,
    build,
    register_architecture,
)

from leanbayes.lab.architectures import convolutional, dense  # noqa: F401  # isort: skip

__all__ = [
    "ARCHITECTURES",
    "Chain",
    "Network",
    "build",
    "register_architecture",
]
