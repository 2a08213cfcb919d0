"""Names that become names of files and folders: one pattern for all of them."""

import re

from leanbayes.errors import require

_PATTERN = re.compile(r"\w[\w.-]*")
_LONGEST = 200
_DEVICES = {"con", "prn", "aux", "nul"} | {
    f"{port}{i}" for port in ("com", "lpt") for i in range(10)
}


def path_name(name: str) -> str:
    """Return the name if a file or folder can have it on every system and it leads nowhere else."""
    require(
        _PATTERN.fullmatch(name) is not None,
        f"{_short(name)} cannot name a file or folder; begin with a letter or digit and use "
        "letters, digits, '-', '_' and '.' only",
    )
    require(
        len(name.encode()) <= _LONGEST,
        f"{_short(name)} is too long for a file or folder; use at most {_LONGEST} letters",
    )
    require(
        not name.endswith(".") and name.partition(".")[0].lower() not in _DEVICES,
        f"{_short(name)} cannot name a file or folder on Windows; choose another name",
    )
    return name


def _short(name: str) -> str:
    return repr(name if len(name) <= 80 else f"{name[:60]}…")
