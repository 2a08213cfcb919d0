"""Errors that ``python -m research trust mutants`` planted, and no test noticed."""

from torch import nn

import leanbayes as lb


def test_a_threshold_of_zero_keeps_every_ratio_of_signal_and_noise():
    model = lb.convert(nn.Linear(4, 3), lb.MeanField(0.3), lb.priors.Normal(1.0))
    pruned = lb.prune(model, by="snr", threshold=0.0)  # some are below 0.5
    assert set(lb.compression.density(pruned).values()) == {1.0}
