"""Learned: a distribution's constructor and tensors, as a module that returns it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, Literal, TypeVar

from torch import Tensor, nn
from torch.distributions import Distribution

__all__ = ["Learned", "Role"]

Role = Literal["means", "scales", "factors", "other"]
"""What a tensor is for: posterior means and shared weights, locations of rank-one factors (the fast
weights of BatchEnsemble), everything else in a posterior, and the rest of a model."""

D = TypeVar("D", bound=Distribution)


class Learned(nn.Module, Generic[D]):
    """The only owner of posterior and prior parameters.

    Calling it builds the distribution from the current values; nothing is kept.

    Args:
        constructor: makes the distribution from tensors given by name.
        spec: the spec it was made from, kept so that the model can be saved.
        transforms: functions that map a stored tensor to the argument (``exp`` for a log scale).
        fixed: names of tensors that are not trained.
        roles: what a tensor is for, where it is not ``"scales"``.
        **tensors: the stored, unconstrained tensors.

    Example:
        >>> import torch
        >>> q = Learned(torch.distributions.Normal, loc=torch.zeros(2), scale=torch.zeros(2),
        ...             transforms={"scale": torch.exp})
        >>> q().scale
        tensor([1., 1.], grad_fn=<ExpBackward0>)
    """

    def __init__(
        self,
        constructor: Callable[..., D],
        *,
        spec: Any = None,
        transforms: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
        fixed: Collection[str] = (),
        roles: Mapping[str, Role] | None = None,
        **tensors: Tensor,
    ) -> None:
        super().__init__()
        self.constructor = constructor
        self.spec = spec
        self.transforms = dict(transforms or {})
        self.roles = dict(roles or {})
        self.names = tuple(tensors)
        for name, tensor in tensors.items():
            if name in fixed:
                self.register_buffer(name, tensor)
            else:
                self.register_parameter(name, nn.Parameter(tensor))

    def forward(self) -> D:
        return self.constructor(**{name: self.value(name) for name in self.names})

    def value(self, name: str) -> Tensor:
        """One argument of the distribution, as it is now."""
        tensor: Tensor = getattr(self, name)
        transform = self.transforms.get(name)
        return tensor if transform is None else transform(tensor)

    def tensors(self, role: Role) -> dict[str, Tensor]:
        """The stored tensors that are for one thing, by name."""
        return {n: getattr(self, n) for n in self.names if self.roles.get(n, "scales") == role}

    def extra_repr(self) -> str:
        return repr(self.spec)
