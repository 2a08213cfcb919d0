"""Setting examples apart: the last ones, or a random share."""

import numpy as np
import torch

from leanbayes.lab.data.dataset import Examples


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
