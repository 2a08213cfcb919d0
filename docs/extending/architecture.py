"""An architecture: a function that makes a network with its first weights."""

from leanbayes.lab.architectures import Network, build, register_architecture


@register_architecture("bottleneck")
def bottleneck(inputs: int = 2, outputs: int = 2, width: int = 4) -> Network:
    """A perceptron that is narrow in the middle."""
    return build("mlp", inputs=inputs, hidden=(8 * width, width, 8 * width), outputs=outputs)
