"""Random split into training, validation and test examples by groups, such as patients."""

import numpy as np
import numpy.typing as npt
import torch

from leanbayes.lab.data.dataset import Examples, random_split


def random_groups(
    groups: npt.NDArray[np.int64], test: float, validation: float, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return places of train, validation and test examples; those of a group are all in one part.

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
