"""The network of the variance paper's four classes."""

from functools import partial

from leanbayes.lab.architectures.base import register_architecture
from leanbayes.lab.architectures.dense import mlp

register_architecture("toy")(
    partial(mlp, 2, (100, 100, 100, 100, 2, 100), 4, "leaky_relu", start="fan_in")
)
