"""Setting examples apart: the last ones, a random share, or all those of random groups."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from leanbayes.lab.data.dataset import Examples

__all__ = ["random_groups", "random_split", "reordered", "split_last"]


def split_last(examples: Examples, count: int) -> tuple[Examples, Examples | None]:
    """The last ``count`` examples apart from the others.

    Example:
        >>> train, validation = split_last(Examples(torch.arange(10)), 3)
        >>> validation.x
        tensor([7, 8, 9])
    """
    if not 0 <= count < len(examples):
        raise ValueError(
            f"validation={count} cannot be set apart from {len(examples)} training examples; "
            f"give a number from 0 to {len(examples) - 1}"
        )
    end = len(examples) - count
    return examples[:end], examples[end:] if count else None


def reordered(examples: Examples, seed: int) -> Examples:
    """The examples in one random order, which numpy's RandomState keeps the same for ever."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed is {seed}; a split takes a whole number from 0 to 2**32 - 1")
    return examples[torch.from_numpy(np.random.RandomState(seed).permutation(len(examples)))]


def random_split(
    examples: Examples, test: float, validation: float, seed: int
) -> tuple[Examples, Examples | None, Examples]:
    """Train, validation and test examples: random shares of all, the last two rounded."""
    count = len(examples)
    tested, held_out = round(test * count), round(validation * count)
    if not (tested > 0 <= held_out and tested + held_out < count):
        raise ValueError(
            f"test={test} and validation={validation} of {count} examples leave a part empty; "
            "give shares between 0 and 1 that leave some for training"
        )
    train, last = split_last(reordered(examples, seed), tested)
    assert last is not None
    return *split_last(train, held_out), last


def random_groups(
    groups: npt.NDArray[np.int64], test: float, validation: float, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Places of train, validation and test examples; those of a group are all in one part.

    Args:
        groups: the group of every example, such as the patient.
        test: the share of groups for test.
        validation: the share of groups for validation.
        seed: of the order in which groups are taken.

    Example:
        >>> train, validation, test = random_groups(np.array([7, 7, 8, 9]), 0.3, 0.3, seed=0)
        >>> sorted([*train.tolist(), *validation.tolist(), *test.tolist()])
        [0, 1, 2, 3]
    """
    names, number = np.unique(groups, return_inverse=True)
    parts = random_split(Examples(torch.arange(len(names))), test, validation, seed)
    part_of = np.zeros(len(names), np.int64)
    for place, part in enumerate(parts[1:], 1):
        part_of[[] if part is None else part.stored.numpy()] = place
    train, held_out, tested = ((part_of[number] == place).nonzero()[0] for place in range(3))
    return train, held_out, tested
