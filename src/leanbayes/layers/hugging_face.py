"""Hugging Face's transformers: layers known by name, and saving that can be read back."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any, TypeVar

from torch import Tensor, nn

from leanbayes.layers.affine import Affine
from leanbayes.layers.base import register_layer
from leanbayes.ops import Linear


@dataclass(frozen=True)
class TransposedLinear(Linear):
    """A linear layer whose weight is stored as ``[in, out]``."""

    def matrix(self, weight: Tensor) -> Tensor:
        return weight.t()

    def unmatrix(self, matrix: Tensor) -> Tensor:
        return matrix.mT


@register_layer("transformers.pytorch_utils.Conv1D")
class Conv1D(Affine):
    """The linear layer of GPT-2, whose weight is ``[in, out]``."""

    @classmethod
    def op_of(cls, module: Any) -> TransposedLinear:
        return TransposedLinear()


M = TypeVar("M", bound=nn.Module)
_FILE = "leanbayes"
WRITERS: list[Callable[[nn.Module, Path], Any]] = []
"""How a model is written; :func:`leanbayes.save` adds itself, and layers do not import it."""


def with_own_saving(model: M) -> M:
    """Let ``save_pretrained`` of a converted model write a file that :func:`leanbayes.load` reads.

    Its own would store tensors that ``from_pretrained`` does not know and replaces by random ones.
    """
    if hasattr(type(model), "save_pretrained"):
        vars(model)["save_pretrained"] = MethodType(_save_pretrained, model)
    return model


def _save_pretrained(model: Any, save_directory: str | os.PathLike[str], **_: Any) -> None:
    """Write the configuration and the file of the weights."""
    folder = Path(save_directory)
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    WRITERS[-1](model, folder / _FILE)
