"""Commands that train auto-encoders again, from the settings in files of results."""

from collections.abc import Iterable, Mapping
from typing import Any

from research.papers.matrix_normal.vae.settings import VaeSettings
from research.publishing.run_commands import folded


def commands(trained: Iterable[Mapping[str, Any]], then: str) -> str:
    """Return what trains auto-encoders, and the command that measures them, folded."""
    lines = [command(settings) for settings in trained]
    return folded([*lines, f"python -m research {then}"] if lines else [])


def command(settings: Mapping[str, Any]) -> str:
    """Return the command that trains an auto-encoder; options are where it is not the paper's.

    Example:
        >>> command({"encoder": "mv", "latent": [9], "seed": 1})
        'python -m research papers vae --encoder mv --latent 9 --seed 1 --out runs/vae-mv-9-1'
    """
    published = VaeSettings().to_json()
    shape = "x".join(map(str, settings["latent"]))
    options = [f"--encoder {settings['encoder']} --latent {shape}"]
    options += [
        f"--{name} {settings[name]:g}"
        for name in ("epochs", "decay", "seed")
        if settings.get(name, published[name]) != published[name]
    ]
    name = f"{settings['encoder']}-{shape}-{settings.get('seed', published['seed'])}"
    return f"python -m research papers vae {' '.join(options)} --out runs/vae-{name}"
