"""Settings of a variational auto-encoder, and the commands that train it with them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from leanbayes.errors import require
from leanbayes.training.schedules import Exponential
from research.papers.matrix_normal.vae.network import LatentPosterior, Vae
from research.publishing.run_commands import folded

_ANNEALED = 0.3
"""The share of all epochs in which the weight of the KL rises: 300 of 1000 in the paper."""


@dataclass(frozen=True)
class VaeSettings:
    """The settings of one auto-encoder, by default those of the matrix-normal paper, section 5.4.

    Args:
        encoder: the family of the latent posterior: ``"diag"``, ``"mn"`` or ``"mv"``.
        latent: the shape of the latent vector: ``(40,)``, or ``(20, 2)`` for ``"mn"``.
        epochs: how many at most.
        annealing: in how many epochs the weight of the KL rises to one; 0.3 of all if ``None``.
        patience: how many epochs without a better bound of the validation images end training,
            counted from the first epoch in which the KL has its whole weight.
        rate: the learning rate of Adam.
        decay: the share of the epochs, at the end, over which that rate falls to zero. The paper
            has none; it helps where epochs are cut.
        batch_size: images in a batch.
        hidden: the widths of the encoder's hidden layers; the decoder has them in reverse.
        seed: of first weights, batches and noise.
        data: the name of a data set of binary images.
        images: how many training images, for trying out; all if ``None``.

    Example:
        >>> VaeSettings("mn", (20, 2)).annealing_epochs, VaeSettings(epochs=200).annealing_epochs
        (300, 60)
    """

    encoder: Literal["diag", "mn", "mv"] = "diag"
    latent: tuple[int, ...] = (40,)
    epochs: int = 1000
    annealing: int | None = None
    patience: int = 50
    rate: float = 5e-4
    decay: float = 0.0
    batch_size: int = 100
    hidden: tuple[int, ...] = (300, 300, 300)
    seed: int = 42
    data: str = "mnist-static-binarized"
    images: int | None = None

    def __post_init__(self) -> None:
        LatentPosterior(self.encoder, self.latent)
        require(
            self.annealing_epochs < self.epochs,
            f"annealing takes {self.annealing_epochs} epochs, and there are {self.epochs}; "
            "choose fewer for it, so that the KL has its whole weight in the end",
        )

    @property
    def annealing_epochs(self) -> int:
        """In how many epochs the weight of the KL rises to one."""
        return round(_ANNEALED * self.epochs) if self.annealing is None else self.annealing

    def kl_weight(self, epoch: int) -> float:
        """Return the weight of the KL in an epoch; epochs count from zero."""
        return Exponential(self.annealing_epochs)(epoch) if self.annealing_epochs else 1.0

    def learning_rate(self, epoch: int) -> float:
        """Return the rate of Adam in an epoch.

        Example:
            >>> [VaeSettings(epochs=10, rate=0.1, decay=0.4).learning_rate(e) for e in (5, 6, 9)]
            [0.1, 0.1, 0.025]
        """
        left = (self.epochs - epoch) / self.epochs
        return self.rate * min(1.0, round(left / self.decay, 12)) if self.decay else self.rate

    def network(self, inputs: int) -> Vae:
        """Return the auto-encoder for images of so many pixels."""
        return Vae(self.encoder, self.latent, inputs, self.hidden)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON has them, with lists in place of tuples."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> VaeSettings:
        """Return the settings that :meth:`to_json` gave."""
        shapes = {name: tuple(values[name]) for name in ("latent", "hidden")}
        return cls(**{**values, **shapes})


def latent_shape(text: str) -> tuple[int, ...]:
    """Return the shape of a latent vector from the way people write it.

    Example:
        >>> latent_shape("40"), latent_shape("20x2")
        ((40,), (20, 2))
    """
    parts = text.lower().replace("×", "x").split("x")
    if not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"latent is {text!r}; write it like 40, or 20x2 for a matrix normal")
    return tuple(int(part) for part in parts)


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
