"""Networks of recipes: plain torch modules with named layers and published first weights.

Example:
    >>> import leanbayes as lb
    >>> model = lb.convert(build("mlp", outputs=10))
"""

from leanbayes.lab.architectures.base import (
    ARCHITECTURES,
    Chain,
    Network,
    build,
    register_architecture,
)

from leanbayes.lab.architectures import dense  # noqa: F401  # isort: skip

__all__ = [
    "ARCHITECTURES",
    "Chain",
    "Network",
    "build",
    "register_architecture",
]
