"""Data sets by name: the facts about each, and who makes it; open to what others define."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from leanbayes.lab.data.dataset import Dataset, Task
from leanbayes.lab.data.files import Form
from leanbayes.lab.path_names import path_name
from leanbayes.registry import Registry

Build = TypeVar("Build", bound=Callable[..., Dataset])


@dataclass(frozen=True)
class Source:
    """The facts about a data set, see :func:`register_dataset`, and who makes it."""

    name: str
    task: Task
    license: str
    origin: str
    forms: tuple[Form, ...] = ()
    build: Callable[..., Dataset] = field(repr=False, compare=False, kw_only=True)


_OF_PAPERS = (
    *("boston-housing", "cifar10", "cifar100", "concrete", "ehr-cohort", "energy", "imagenet"),
    *("imdb", "mimic-iii", "mimic-iii-demo", "mnist-static-binarized", "naval-propulsion-plant"),
    *("power-plant", "protein-tertiary-structure", "wine-quality-red"),
)

SOURCES = Registry[Source]("data set", _OF_PAPERS)
"""Every data set, in the order it is listed."""


def register_dataset(
    name: str, *, task: Task, license: str, source: str, forms: tuple[Form, ...] = ()
) -> Callable[[Build], Build]:
    """Add a data set: ``load``, recipes and ``leanbayes data list`` know it from then on.

    It decorates a function whose options are keywords and which returns a :class:`Dataset`; the
    facts given here stand in the result. With ``forms``, the function is given what the reader of
    a form made of the files, which are searched for, downloaded and checked before.

    Args:
        name: name.
        task: kind of prediction.
        license: license of the data.
        source: source, as one would cite it.
        forms: the ways its files lie on a disk.

    ``docs/extending/dataset.py`` is one to copy.
    """

    def register(build: Build) -> Build:
        SOURCES.register(
            Source(path_name(name), task, license, source, forms, build=build), name=name
        )
        return build

    return register
