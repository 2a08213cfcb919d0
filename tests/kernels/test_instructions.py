"""Kernels with older instructions give the numbers that those with the best ones give."""

import os
import subprocess
import sys
from functools import partial

import pytest
import torch
from divergences import k_tied_kl, relevance_kl, scaled_kl
from k_tied_outputs import k_tied_local

import leanbayes as lb
from leanbayes.distributions import KTiedNormal
from leanbayes.kernels import (
    NormalFactor,
    Sharing,
    add_k_tied_variance,
    add_mixed_noise,
    add_noise,
    draw_k_tied,
    draw_scaled,
    k_tied_samples,
    max_pool_moments,
    relu_moments,
    row_squares,
    scaled_local,
    scaled_samples,
    shared_noise,
    sigmoid_moments,
)
from leanbayes.ops import Conv

BATCH, IN, OUT, FEW = 23, 45, 70, 7  # no multiples of a vector's width
SHARING = Sharing(samples=4, examples=BATCH, each=10)


def answers():
    """Values and gradients of every function that has a kernel, by one seed, and what computed."""
    torch.manual_seed(0)
    x, many = torch.randn(BATCH, IN), torch.randn(SHARING.samples * BATCH, IN)
    loc, scale, bias = torch.randn(OUT, IN), torch.rand(OUT, IN) + 0.1, torch.randn(OUT)
    u, v = torch.rand(2, OUT) + 0.1, torch.rand(2, IN) + 0.1
    y, variance = torch.randn(BATCH, OUT), torch.rand(BATCH, OUT)
    shared, pairs = torch.rand(BATCH, 3, 9), torch.rand(3, OUT)
    r, s, below = torch.randn(2, IN), torch.rand(2, IN), torch.randn(OUT * (OUT - 1) // 2)
    rows = torch.randn(2 * BATCH, IN)
    few = loc[:FEW], scale[:FEW].square(), bias[:FEW]

    def factors(rows, r, s):
        return NormalFactor.draw(r, s, None, len(rows)).times(rows)

    calls = {
        "add_noise": (add_noise, (y, variance)),
        "scaled_local": (scaled_local, (x, loc, scale, bias)),
        "k_tied_local": (k_tied_local, (x, loc, u, v, bias)),
        "k_tied_local_logs": (
            partial(k_tied_local, log_unit=0.0),
            (x, loc, u.log(), v.log(), bias),
        ),
        "mixed": (add_mixed_noise, (torch.randn(BATCH, OUT, 9), shared, pairs)),
        "draw_scaled": (draw_scaled, (loc, scale)),
        "draw_k_tied": (draw_k_tied, (loc, u, v)),
        "factors": (factors, (rows, r, s)),
        "k_tied_kl": (lambda *t: k_tied_kl(*t, 0.1, 0.5), (loc, u, v)),
        "k_tied_kl_logs": (
            lambda *t: k_tied_kl(*t, 0.1, 0.5, log_unit=0.0),
            (loc, u.log(), v.log()),
        ),
        "scaled_kl": (lambda *t: scaled_kl(*t, 0.1, 0.5), (loc, scale)),
        "relevance_kl": (relevance_kl, (loc, scale)),
        "row_squares": (row_squares, (bias.abs(), below)),
    }
    found = {name: _with_gradients(function, given) for name, (function, given) in calls.items()}
    with torch.no_grad():
        found |= {
            "fold_noise": [shared_noise(y, bias, variance.clone(), SHARING)],
            "fold_scaled": [scaled_samples(many, loc, scale.square(), bias, SHARING)],
            "fold_centered": [scaled_samples(x, None, scale.square(), None, SHARING)],
            "fold_few": [scaled_samples(many, few[0], few[1], few[2], SHARING)],
            "fold_k_tied": [k_tied_samples(many, loc, u, v, bias, SHARING)],
            "fold_k_tied once": [k_tied_samples(x, loc, u, v, bias, SHARING)],
            **moments(torch.randn(2, 5, 9, IN), torch.rand(2, 5, 9, IN)),
        }
    return lb.kernels().reason, found


def moments(m, v):
    """Moments of a rectifier, a sigmoid, a pool and a convolution of images."""
    q = KTiedNormal(torch.zeros(FEW, IN), torch.rand(2, FEW), torch.rand(2, IN))
    convolved = torch.zeros(2, FEW, 9, IN)
    op = Conv((3, 3), padding=(1, 1))
    assert add_k_tied_variance(convolved, q, op, m, v) == lb.kernels().native
    return {
        "relu": relu_moments(m, v),
        "sigmoid": sigmoid_moments(m, v, 5),
        "max_pool": max_pool_moments(m, v, (2, 2), (2, 2), (0, 0), (1, 1)),
        "convolution": [convolved],
    }


def _with_gradients(function, given):
    leaves = [t.clone().requires_grad_() for t in given]
    torch.manual_seed(1)
    value = function(*leaves)
    weights = torch.linspace(-1.0, 1.0, value.numel()).view(value.shape)
    return [value.detach(), *torch.autograd.grad((value * weights).sum(), leaves)]


@pytest.mark.skipif(not lb.kernels().native, reason=lb.kernels().reason)
@pytest.mark.skipif(
    os.environ.get("LEANBAYES_NATIVE", "1") != "1", reason="the environment chose instructions"
)
@pytest.mark.parametrize(
    ("wanted", "expected"), [("avx2", "AVX2"), ("baseline", "baseline instructions")]
)
def test_older_instructions_give_the_same_numbers(wanted, expected, tmp_path):
    best, found = answers()
    file = tmp_path / "answers.pt"
    environment = {
        **os.environ,
        "LEANBAYES_NATIVE": wanted,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    subprocess.run([sys.executable, __file__, str(file)], env=environment, check=True)
    used, others = torch.load(file)
    assert used == (best if best == "baseline instructions" else expected)
    assert others.keys() == found.keys()
    for name, values in found.items():
        for mine, theirs in zip(values, others[name], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("wanted", ["avx", "", "1"])
def test_an_unknown_wish_is_told(wanted):
    environment = {**os.environ, "LEANBAYES_NATIVE": wanted}
    command = [sys.executable, "-c", "import leanbayes"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    told = "LEANBAYES_NATIVE is 'avx'; it may be 0, 1, baseline, avx2, and is taken as 1"
    assert (told in run.stderr) == (wanted == "avx")


if __name__ == "__main__":
    torch.save(answers(), sys.argv[1])
