"""Learned: the constructor of a distribution and its stored tensors, their roles and transforms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution

from leanbayes.errors import require, unknown
from leanbayes.ops import Linear, LinearOp
from leanbayes.precision import HALVES, wide, wide_dtype
from leanbayes.torch_private import Moved

_SOFTPLUS_FLOOR = 1e-7


class Transform(Protocol):
    """A function of a stored tensor, and its inverse."""

    def __call__(self, stored: Tensor, /) -> Tensor: ...

    def inverse(self, value: Tensor, /) -> Tensor:
        """Return a stored tensor that gives this value."""


@dataclass(frozen=True)
class Exp:
    """``unit · exp(rate · stored)``, at most ``ceiling``; a log variance has rate ½.

    The unit is where a scale starts: zero is stored then, and weight decay pulls back to it.
    """

    rate: float = 1.0
    ceiling: float | None = None
    unit: float = 1.0

    @property
    def origin(self) -> float:
        """What would be stored for the unit if the unit were 1."""
        return math.log(self.unit) / self.rate

    def __call__(self, stored: Tensor, /) -> Tensor:
        if self.ceiling is not None:
            stored = stored.clamp_max(math.log(self.ceiling) / self.rate - self.origin)
        if self.unit == 1:
            return (stored if self.rate == 1 else self.rate * stored).exp()
        absolute = stored + self.origin
        return (absolute if self.rate == 1 else absolute.mul_(self.rate)).exp_()

    def inverse(self, value: Tensor, /) -> Tensor:
        return value.log() / self.rate - self.origin


@dataclass(frozen=True)
class Softplus:
    """``log(1 + exp(stored))``, at most ``ceiling``, and never quite zero."""

    ceiling: float | None = None

    def __call__(self, stored: Tensor, /) -> Tensor:
        if self.ceiling is not None:
            stored = stored.clamp_max(math.log(math.expm1(self.ceiling)))
        return F.softplus(stored) + _SOFTPLUS_FLOOR

    def inverse(self, value: Tensor, /) -> Tensor:
        excess = (value - _SOFTPLUS_FLOOR).clamp_min(torch.finfo(value.dtype).tiny)
        return excess + torch.log(-torch.expm1(-excess))


@dataclass(frozen=True)
class Abs:
    """``|stored|``, at most ``ceiling``."""

    ceiling: float | None = None

    def __call__(self, stored: Tensor, /) -> Tensor:
        scale = stored.abs()
        return scale if self.ceiling is None else scale.clamp_max(self.ceiling)

    def inverse(self, value: Tensor, /) -> Tensor:
        return value


@dataclass(frozen=True)
class Clamp:
    """The stored number plus ``origin``, where it starts, kept between ``low`` and ``high``."""

    low: float
    high: float
    origin: float = 0.0

    def __call__(self, stored: Tensor, /) -> Tensor:
        return (stored + self.origin).clamp(self.low, self.high)

    def inverse(self, value: Tensor, /) -> Tensor:
        return value - self.origin


@dataclass(frozen=True)
class AsMatrix:
    """A weight that is stored in torch's own shape, seen as the matrix ``[out, in]`` of an op."""

    op: LinearOp

    def __call__(self, stored: Tensor, /) -> Tensor:
        return self.op.matrix(stored)

    def inverse(self, value: Tensor, /) -> Tensor:
        return self.op.unmatrix(value)


Role = Literal["means", "scales", "factors", "other"]
"""What a tensor is for: posterior means and shared weights; everything else in a posterior, save
the locations of rank-one factors (the fast weights of BatchEnsemble); and the rest of a model."""

D = TypeVar("D", bound=Distribution)
E = TypeVar("E", bound=Distribution)


@dataclass(frozen=True, eq=False)
class Stored:
    """One trained argument of a distribution, with its storage and role.

    Args:
        tensor: the stored, unconstrained tensor.
        transform: from the stored tensor to the argument; ``None`` stores the argument itself.
        role: its role.
        as_it_is: whether the distribution takes the stored tensor: it transforms it by itself, or
            the transform changes nothing.
    """

    tensor: Tensor
    transform: Transform | None = None
    role: Role = "scales"
    as_it_is: bool = False

    def __repr__(self) -> str:
        shape = " × ".join(map(str, self.tensor.shape)) or "a number"
        return f"Stored({shape}, transform={self.transform}, role={self.role!r})"

    @staticmethod
    def means(weight: Tensor, op: LinearOp) -> Stored:
        """Return means that start at a weight, stored in torch's own shape and seen as a matrix."""
        is_matrix = type(op) is Linear
        return Stored(weight.detach().clone(), AsMatrix(op), "means", as_it_is=is_matrix)


class Learned(Moved, Generic[D]):
    """The only owner of posterior and prior parameters.

    Calling it builds the distribution from the current values, in float32 where they are stored
    in half precision; nothing is kept.

    Args:
        constructor: makes the distribution from its arguments, given by name.
        spec: the spec it was made from, kept so that the model can be saved.
        like: source of the dtype and device.
        **arguments: arguments of the constructor. A :class:`Stored` is trained, and so is a tensor
            that is stored as it is. A :class:`torch.nn.Buffer` is saved and not trained. A number
            is fixed: it follows the model to its device and dtype, but never to a half, and is not
            saved, because the spec says it.

    Example:
        >>> from leanbayes.parameters.learned import Exp
        >>> q = Learned(torch.distributions.Normal, loc=0.0, scale=Stored(torch.zeros(2), Exp()))
        >>> q.assign(scale=torch.tensor([1.0, 2.0]))
        >>> q().scale
        tensor([1., 2.], grad_fn=<ExpBackward0>)
    """

    _version = 2  # in the metadata of state dicts; 1 stored scales as absolute logarithms

    def __init__(
        self,
        constructor: Callable[..., D],
        *,
        spec: Any = None,
        like: Tensor | None = None,
        **arguments: Stored | Tensor | float,
    ) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(_shift_version_1)  # type: ignore[no-untyped-call]
        self.constructor = constructor
        self.spec = spec
        self.names = tuple(arguments)
        self.roles: dict[str, Role] = {}
        self.transforms: dict[str, Transform] = {}
        self.as_they_are: frozenset[str] = frozenset()
        for name, argument in arguments.items():
            if isinstance(argument, int | float):
                number = torch.empty(()) if like is None else like
                exact = number.new_tensor(argument, dtype=wide_dtype(number.dtype))
                self.register_buffer(name, exact, persistent=False)
                continue
            if isinstance(argument, nn.Buffer):
                self.register_buffer(name, argument)
                continue
            stored = Stored(argument) if isinstance(argument, Tensor) else argument
            self.register_parameter(name, nn.Parameter(stored.tensor))
            self.roles[name] = stored.role
            if stored.transform is not None:
                self.transforms[name] = stored.transform
            if stored.as_it_is:
                self.as_they_are |= {name}

    def forward(self) -> D:
        arguments = {}
        for name in self.names:
            tensor: Tensor = getattr(self, name)
            exact = tensor.float() if tensor.dtype in HALVES else tensor
            transform = None if name in self.as_they_are else self.transforms.get(name)
            arguments[name] = exact if transform is None else transform(exact)
        return self.constructor(**arguments)

    def relative(self, stored: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """Absolute logarithms of scales, as version 1 stored them, relative to their start."""
        origins = {
            f"{prefix}{name}": getattr(t, "origin", 0.0) for name, t in self.transforms.items()
        }
        return {name: stored[name] - origins[name] for name in origins.keys() & stored.keys()}

    def after_move(self, move: Callable[[], object]) -> None:
        """Follow the model, but keep numbers in full precision: a half may not hold them."""
        numbers = {name: getattr(self, name) for name in self.names if name not in self.roles}
        move()
        for name, number in numbers.items():
            moved: Tensor = getattr(self, name)
            if moved.dtype != wide_dtype(moved.dtype):
                setattr(self, name, number.to(moved.device, wide_dtype(moved.dtype)))

    @property
    def like(self) -> Tensor:
        """A stored tensor, which has the dtype and device of all of them."""
        tensor: Tensor = getattr(self, next(iter(self.roles or self.names)))
        return tensor

    def value(self, name: str) -> Tensor:
        """Return one argument of the distribution, as it is now."""
        tensor: Tensor = wide(getattr(self, name))
        transform = self.transforms.get(name)
        return tensor if transform is None else transform(tensor)

    def tensors(self, *roles: Role) -> dict[str, nn.Parameter]:
        """Return the stored tensors that are for one of these things, by name."""
        return {name: self.get_parameter(name) for name, r in self.roles.items() if r in roles}

    @torch.no_grad()
    def assign(self, **values: Tensor) -> None:
        """Store what makes these the arguments of the distribution, in place; all or none.

        Args:
            **values: new values by name, each in the shape of :meth:`value`; of any dtype and
                device, while the stored tensors keep theirs.
        """
        changed: list[tuple[nn.Parameter, Tensor]] = []
        for name, value in values.items():
            if name not in self.roles:
                raise unknown("learned tensor", name, self.roles)
            shape = self.value(name).shape
            require(
                value.shape == shape,
                f"{name} was given shape {tuple(value.shape)}; it needs {tuple(shape)}",
            )
            transform = self.transforms.get(name)
            stored = value if transform is None else transform.inverse(wide(value))
            require(
                bool(stored.isfinite().all()),
                f"{name} was given a value that cannot be stored; look for a NaN, or for a scale "
                "that is not positive",
            )
            changed.append((self.get_parameter(name), stored))
        for parameter, stored in changed:
            parameter.copy_(stored)

    def extended(
        self, constructor: Callable[..., E], *, spec: Any, **buffers: Tensor
    ) -> Learned[E]:
        """Return another distribution that the same tensors and some buffers make.

        The tensors are shared, not copied: an optimizer that has them goes on training them.

        Args:
            constructor: makes the distribution from this one's arguments and the buffers.
            spec: the spec of the result.
            **buffers: tensors that are saved and not trained, by name.
        """
        other = Learned(constructor, spec=spec)
        other.names = (*self.names, *buffers)
        other.roles, other.transforms = dict(self.roles), dict(self.transforms)
        other.as_they_are = self.as_they_are
        for name, parameter in self.named_parameters():
            other.register_parameter(name, parameter)
        saved = self.state_dict(keep_vars=True)
        for name, kept in self.named_buffers():
            other.register_buffer(name, kept, persistent=name in saved)
        for name, added in buffers.items():
            other.register_buffer(name, added)
        return other.train(self.training)

    def extra_repr(self) -> str:
        return repr(self.spec)


def _shift_version_1(
    learned: nn.Module,
    state: MutableMapping[str, Any],
    prefix: str,
    metadata: Mapping[str, Any],
    *_: Any,
) -> None:
    """Let absolute logarithms of an earlier state dict become relative ones."""
    if metadata.get("version") == 1:
        assert isinstance(learned, Learned)
        state.update(learned.relative(state, prefix))


def from_version_1(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert a state dict with absolute logarithms to the stored form of today.

    Args:
        model: a model that the tensors are for.
        state: its state dict or a part of it, which lost torch's own note of the version.
    """
    found = dict(state)
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Learned):
            found |= module.relative(state, f"{name}." if name else "")
    return found
