"""Damaged files that ``python -m research trust fuzz`` found to end in a raw error."""

import pytest
import torch
from torch import nn

from leanbayes.lab.checkpoints import Checkpoints


@pytest.mark.parametrize(
    "state",
    [{"weight": torch.zeros(2, 3), "bias": 7}, {"weight": "x", "bias": None}, [1], None],
    ids=["number", "text", "list", "none"],
)
def test_a_checkpoint_without_tensors_is_of_another_network(state, tmp_path):
    path = tmp_path / "epoch-00000.ckpt"
    torch.save({"epoch": 0, "state_dict": state}, path)
    with pytest.warns(UserWarning, match="is of another network; starting again"):
        assert Checkpoints(tmp_path, {"epoch", "state_dict"}).last(nn.Linear(3, 2)) is None
