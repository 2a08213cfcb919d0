"""The native library: its signatures, how it is loaded, and why there may be none."""

import ctypes
import os
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LIBRARY = Path(__file__).with_name("libkernels.so")

LARGEST_RANK = 4
"""Up to this rank of a k-tied scale there are kernels."""

_INTERFACE = 13
"""The version of the signatures below, as kernels.cpp has it."""

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


STATE = _State()


def native_state() -> tuple[bool, str]:
    """Return whether native kernels are used, and their instructions or the reason."""
    return STATE.library is not None, STATE.reason


@contextmanager
def without_native() -> Iterator[None]:
    """Let torch's own operations compute everything for the length of a block."""
    before = STATE.library, STATE.reason, STATE.is_native
    STATE.library, STATE.reason, STATE.is_native = None, "switched off", False
    try:
        yield
    finally:
        STATE.library, STATE.reason, STATE.is_native = before


def is_native() -> bool:
    """Return whether kernels are native, in words that a compiler can trace and guard."""
    return STATE.is_native
