"""A run that is evaluated on another table: the same units and the same classes."""

import pytest
import torch

from leanbayes.lab.data import Dataset, Examples, Scaling
from leanbayes.lab.evaluation import as_learned


def dataset(classes=(), shift=0.0, scale=1.0, y=(0, 1)) -> Dataset:
    scaling = Scaling(torch.tensor(shift), torch.tensor(scale))
    examples = Examples(scaling(torch.tensor([[3.0], [5.0]])), torch.tensor(y))
    return Dataset("table", "classification", examples, examples, classes=classes, scaling=scaling)


@pytest.mark.tried(
    "Input",
    what="evaluate --data with a table that lacks a class, or that was scaled by itself",
    holds="classes are compared by name, inputs and targets come in the run's units",
)
def test_classes_are_compared_by_name_and_inputs_by_unit():
    own = dataset(("a", "b", "c"), shift=1.0, scale=2.0)
    examples = as_learned(dataset(("c", "b"), shift=4.0, scale=0.5), own)
    assert examples.y.tolist() == [2, 1]
    torch.testing.assert_close(examples.x, own.test.x)


def test_a_class_that_was_not_learned_is_refused():
    with pytest.raises(ValueError, match=r"the class \['d'\], which the run does not have"):
        as_learned(dataset(("a", "d")), dataset(("a", "b")))


def test_classes_of_which_none_is_known_keep_their_numbers():
    assert as_learned(dataset(("x", "y")), dataset(("a", "b"))).y.tolist() == [0, 1]
