"""Tensors of any size, however they are made, are refused before memory is taken."""

import pytest
import torch

from leanbayes.saving.header import AllocationLimit

HUGE = 10**12
ONE = torch.zeros(1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(HUGE),
        lambda: torch.zeros((HUGE,)),
        lambda: torch.full(size=(HUGE, 2), fill_value=0.5),
        lambda: torch.arange(HUGE),
        lambda: torch.arange(0, HUGE),
        lambda: torch.linspace(0.0, 1.0, HUGE),
        lambda: torch.logspace(0.0, 1.0, steps=HUGE),
        lambda: torch.eye(10**6),
        lambda: torch.eye(10**6, 10**6),
        lambda: torch.tril_indices(10**6, 10**6, -1),
        lambda: torch.triu_indices(10**6, 10**6),
        lambda: torch.randperm(HUGE),
        lambda: torch.hann_window(HUGE),
        lambda: torch.empty_strided((HUGE,), (1,)),
        lambda: ONE.new_full((HUGE,), 0.1),
        lambda: ONE.repeat(HUGE),
        lambda: ONE.repeat(2, HUGE),
        lambda: ONE.tile((HUGE, 2)),
        lambda: ONE.repeat_interleave(HUGE),
        lambda: torch.randn_like(ONE.expand(HUGE)),
        lambda: ONE.expand(HUGE).clone(),
        lambda: ONE.expand(HUGE) + 1,
        lambda: torch.zeros(0).resize_(HUGE),
    ],
)
def test_no_constructor_slips_past(make):
    with pytest.raises(ValueError, match="elements are requested"), AllocationLimit(1000):
        make()


def test_what_is_within_the_limit_is_made():
    with AllocationLimit(1000):
        x = torch.full((3,), 10**9) + torch.arange(0, 3) + torch.ones(2, 3).repeat(2, 1).sum(0)
        square = torch.eye(3).expand(5, 3, 3).clone()
    assert x.shape == (3,)
    assert square.shape == (5, 3, 3)


def test_many_small_tensors_count_together():
    with pytest.raises(ValueError, match="1001 elements"), AllocationLimit(1000):
        _ = [torch.zeros(7, 13) for _ in range(200)]
