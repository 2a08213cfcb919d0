"""A deep ensemble: networks that were trained apart, as one model with members."""

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from leanbayes.errors import require, require_count
from leanbayes.layers.forward_pass import batch_rows, set_batch_rows, warn_untiled


class DeepEnsemble(nn.Module):
    """Several networks of one kind as the members of one model (Lakshminarayanan et al., 2017).

    It is used as any mixture is: ``predict`` gives samples of every member, and training takes
    ``tile(x, members)``, of which each network gets its own block. Members that are trained
    together learn as each would alone on these batches, although a loss is averaged over all:
    the gradient of an output is multiplied by the number of networks, and its value is not. So with
    ``lb.kl`` of converted networks the sum of all ELBOs is trained.

    Args:
        networks: the members, which share nothing; trained already or not, converted or not.
        batch_dim: dimension of inputs and outputs that counts examples.

    Raises:
        ValueError: If there are no networks, or they are not apart.

    Example:
        >>> import leanbayes as lb
        >>> model = DeepEnsemble.of(lambda: nn.Linear(3, 2), members=4)
        >>> lb.predict(model, torch.randn(5, 3), samples=1).samples.shape
        torch.Size([4, 5, 2])
    """

    def __init__(self, networks: Sequence[nn.Module], batch_dim: int = 0) -> None:
        super().__init__()
        require(len(networks) > 0, "an ensemble of no networks predicts nothing; give some")
        parameters = [id(p) for network in networks for p in network.parameters()]
        require(
            len({id(network) for network in networks}) == len(networks)
            and len(set(parameters)) == len(parameters),
            "two members of the ensemble share weights, so they are not two; make each one "
            "separately, as DeepEnsemble.of(make, members) does",
        )
        self.networks = nn.ModuleList(networks)
        self.batch_dim = batch_dim

    @classmethod
    def of(cls, make: Callable[[], nn.Module], members: int, batch_dim: int = 0) -> Self:
        """Make every network by a separate call.

        Args:
            make: function that returns a new network, with other first weights every time.
            members: number of networks.
            batch_dim: dimension of inputs and outputs that counts examples.
        """
        require_count("members", members, 1)
        return cls([make() for _ in range(members)], batch_dim)

    def forward(self, *inputs: Tensor) -> Tensor:
        count, dim = len(self.networks), self.batch_dim
        for x in inputs:
            require(
                x.shape[dim] % count == 0,
                f"batch {x.shape[dim]} is not a multiple of {count} members; call tile(x, members)",
            )
        if self.training and inputs:
            warn_untiled(inputs[0], dim, count)
        rows = batch_rows()
        blocks = zip(*(x.chunk(count, dim) for x in inputs), strict=True)
        with set_batch_rows(None if rows is None else rows // count):
            outputs = [net(*block) for net, block in zip(self.networks, blocks, strict=True)]
        y = torch.cat(outputs, dim)
        return y + (count - 1) * (y - y.detach()) if y.requires_grad else y
