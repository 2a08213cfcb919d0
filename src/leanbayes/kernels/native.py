"""The native library, and products by whichever of torch's libraries is faster."""

import ctypes
import os
import struct
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.torch_private import is_observed, onednn_linear

LIBRARY = Path(__file__).with_name("libkernels.so")

LARGEST_RANK = 4
"""Up to this rank of a k-tied scale there are kernels."""

_INTERFACE = 13
"""The version of the signatures below, as kernels.cpp has it."""

_WORTH_THREADS = 2**13

_WANTED = ("0", "1", "baseline", "avx2")
"""What the environment may ask for: no library, its best instructions, or no more than these."""

_P, _I, _SEED, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_int
_F, _D = ctypes.c_float, ctypes.c_double
_SIGNATURES: dict[str, tuple[Any, ...]] = {  # as in kernels.cpp: pointers, sizes, the rest
    "normals": (_P, _I, _I, _SEED, _INT),
    "bits": (_P, _I, _I, _SEED, _INT),
    "noise_forward": (_P, _P, _I, _I, _SEED, _INT),
    "noise_backward": (_P, _P, _P, _I, _I, _SEED, _INT),
    "fold_noise": (*(_P,) * 4, *(_I,) * 5, _SEED, _INT),
    "fold_narrow": (*(_P,) * 5, *(_I,) * 6, _SEED, _INT),
    "draw_forward": (_P, _P, _P, _I, _I, _SEED, _INT),
    "draw_backward": (_P, _P, _I, _I, _SEED, _INT),
    "k_tied_forward": (*(_P,) * 5, *(_I,) * 5, _F, _SEED, _INT),
    "k_tied_fold": (*(_P,) * 6, *(_I,) * 7, _SEED, _INT),
    "k_tied_variance": (*(_P,) * 5, *(_I,) * 4, _INT),
    "k_tied_convolution": (*(_P,) * 6, *(_I,) * 3, _INT),
    "k_tied_backward": (*(_P,) * 9, *(_I,) * 5, _F, _SEED, _INT),
    "k_tied_mix_forward": (*(_P,) * 3, *(_I,) * 4, _SEED, _INT),
    "k_tied_mix_backward": (*(_P,) * 5, *(_I,) * 4, _SEED, _INT),
    "k_tied_draw_forward": (*(_P,) * 4, *(_I,) * 3, _SEED, _INT),
    "k_tied_draw_backward": (*(_P,) * 5, *(_I,) * 3, _SEED, _INT),
    "k_tied_kl": (*(_P,) * 6, *(_I,) * 4, _F, _D, _D, _INT),
    "scale_kl": (*(_P,) * 4, *(_I,) * 3, _F, _D, _D, _INT),
    "relevance_kl": (*(_P,) * 2, *(_I,) * 2, _INT),
    "relevance_backward": (*(_P,) * 4, *(_I,) * 2, _D, _INT),
    "relu_moments": (*(_P,) * 4, _I, _F, _INT),
    "max_pool_moments": (*(_P,) * 5, _I, _INT),
    "sigmoid_moments": (*(_P,) * 4, _I, *(_P,) * 2, _I, _INT),
    "unpack_lower": (*(_P,) * 3, _I),
    "pack_lower": (*(_P,) * 3, _I),
    "row_squares": (*(_P,) * 3, _I),
    "row_squares_backward": (*(_P,) * 5, _I),
    "factor_forward": (*(_P,) * 4, *(_I,) * 3, _F, _SEED, _INT),
    "factor_backward": (*(_P,) * 7, *(_I,) * 3, _F, _SEED, _INT),
    "scale_rows": (*(_P,) * 3, *(_I,) * 2, _INT),
    "scale_rows_backward": (*(_P,) * 5, *(_I,) * 2, _INT),
    "lstm_forward": (*(_P,) * 11, *(_I,) * 3, _INT),
    "lstm_backward": (*(_P,) * 18, *(_I,) * 2, _INT),
}


class _State:
    """The library, or why there is none."""

    def __init__(self) -> None:
        self.library: Any = None
        self.loaded: Any = None
        self.is_native = False
        self.reason = ""
        wanted = os.environ.get("LEANBAYES_NATIVE", "")
        if wanted and wanted not in _WANTED:
            may_be = f"it may be {', '.join(_WANTED)}, and is taken as 1"
            warnings.warn(f"LEANBAYES_NATIVE is {wanted!r}; {may_be}", stacklevel=2)
        if wanted == "0":
            self.reason = "LEANBAYES_NATIVE is 0"
        elif not LIBRARY.exists():
            self.reason = (
                "the native library was not built; install leanbayes where a C++ compiler is"
            )
        else:
            self._load()

    def _load(self) -> None:
        try:
            if _is_truncated(LIBRARY):
                raise OSError("it is truncated")
            found = ctypes.CDLL(str(LIBRARY))
            found.instructions.restype = ctypes.c_char_p
            if found.interface() != _INTERFACE:
                raise OSError("it was built from another version")
            for name, arguments in _SIGNATURES.items():
                function = getattr(found, name)
                function.argtypes = arguments
                function.restype = _D if name == "relevance_kl" else None
        except (OSError, AttributeError) as error:
            self.reason = f"the native library cannot be loaded ({error}); install leanbayes again"
        else:
            self.library = self.loaded = found
            self.is_native = True
            self.reason = found.instructions().decode()


def _is_truncated(library: Path) -> bool:
    """Return whether an ELF file ends before its last table; to load it ends the process."""
    with library.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or not header.startswith(b"\x7fELF"):
        return False  # not an ELF file, or one that is refused
    start, size, count = (
        *struct.unpack_from("<Q", header, 40),
        *struct.unpack_from("<HH", header, 58),
    )
    return library.stat().st_size < start + size * count


_STATE = _State()


def native_state() -> tuple[bool, str]:
    """Return whether native kernels are used, and their instructions or the reason."""
    return _STATE.library is not None, _STATE.reason


@contextmanager
def without_native() -> Iterator[None]:
    """Let torch's own operations compute everything for the length of a block."""
    before = _STATE.library, _STATE.reason, _STATE.is_native
    _STATE.library, _STATE.reason, _STATE.is_native = None, "switched off", False
    try:
        yield
    finally:
        _STATE.library, _STATE.reason, _STATE.is_native = before


def is_native() -> bool:
    """Return whether kernels are native, in words that a compiler can trace and guard."""
    return _STATE.is_native


def library(*tensors: Tensor | None) -> Any:
    """Return the library if it can compute with these tensors, else ``None``."""
    found = _STATE.library
    if found is None:
        return None
    for t in tensors:
        if t is not None and not (t.dtype is torch.float32 and t.is_cpu and t.is_contiguous()):
            return None
    return found


def loaded() -> Any:
    """Return the library, for noise that it has drawn, even if it is switched off since."""
    return _STATE.loaded


def pointer(tensor: Tensor | None) -> int | None:
    """Return the address of the first number of a tensor."""
    return None if tensor is None else tensor.data_ptr()


def native_logs(log_unit: float | None) -> tuple[bool, float]:
    """Return whether factors are logarithms, and the logarithm of their unit."""
    return log_unit is not None, log_unit or 0.0


def normals(shape: Sequence[int], by: int) -> Tensor:
    """Return the normals of a seed: a stream for each row of the first dimension."""
    e = torch.empty(tuple(shape))
    loaded().normals(e.data_ptr(), *as_rows(e), by, threads(e.numel()))
    return e


def as_rows(t: Tensor) -> tuple[int, int]:
    """Return how many rows of how many numbers a tensor is to a kernel; a vector is one row."""
    rows = t.shape[0] if t.ndim > 1 else 1
    return rows, t.numel() // max(rows, 1)


class _Room(threading.local):
    """A number for the seeds of each thread: to make one takes longer than to draw it."""

    def __init__(self) -> None:
        with torch.inference_mode(False):
            self.number = torch.empty((), dtype=torch.int64)


_ROOM = _Room()


def seed() -> int:
    """Return a seed for one block of noise, from torch's generator."""
    return int(_ROOM.number.random_())


def graph_seed() -> Tensor:
    """Draw a seed by torch's operator: a compiler would merge two equal calls of ours."""
    return torch.randint(2**62, ())


def threads(numbers: int) -> int:
    """Return how many threads so many numbers are worth, of those that torch may use."""
    return 1 if numbers < _WORTH_THREADS else torch.get_num_threads()


_NARROW = 16
"""With fewer rows, inputs or outputs oneDNN may be slower."""
_LARGE = 4 * 10**6
"""With fewer multiplications it gains nothing."""


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x weightᵀ + bias``, for use where no gradient is recorded.

    Where torch has MKL, oneDNN takes large products, for which it needs less time.

    Args:
        x: ``[batch, in]``.
        weight: ``[out, in]``; the transpose of a contiguous matrix is as good.
        bias: ``[out]``.
    """
    single = x.dtype == weight.dtype == torch.float32 and x.is_cpu and weight.is_cpu
    linear = _onednn() if single and _is_large(len(x), weight) and _may_differ() else None
    if linear is None:
        return F.linear(x, weight, bias)
    if not weight.t().is_contiguous():
        weight = weight.contiguous()
    return linear(x.contiguous(), weight, bias, "none", [], "")


def products(rows: int, weight: Tensor) -> Callable[[Tensor], Tensor]:
    """Return :func:`product` with one float32 matrix, for contiguous inputs of so many rows."""
    weight = weight.contiguous()
    linear = _onednn() if _is_large(rows, weight) and _may_differ() else None
    if linear is None:
        return lambda x: F.linear(x, weight)
    return lambda x: linear(x, weight, None, "none", [], "")


def _is_large(rows: int, weight: Tensor) -> bool:
    return rows * weight.numel() >= _LARGE and min(rows, *weight.shape) >= _NARROW


def _may_differ() -> bool:
    """Whether nobody asks what oneDNN does not answer (gradients, FLOPs), or forbids its use."""
    seen = torch.is_grad_enabled() or is_observed()
    return not seen and bool(torch.backends.mkldnn.enabled)


@cache
def _onednn() -> Callable[..., Tensor] | None:
    """Return ``linear`` of oneDNN, if torch was built with both libraries."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return None
    return onednn_linear()
