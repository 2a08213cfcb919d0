"""Numbers at the edge of float32: KLs of large matrices, and variances below the normal range."""

import os
import subprocess
import sys

import pytest
import torch

import leanbayes as lb
from leanbayes.distributions import FRESH, KTiedNormal, LocationScale
from leanbayes.distributions.kl import divergence, total_divergence
from leanbayes.ops import Conv, Linear

SIZE, SIGMA = 4096, 0.05
PRIOR = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(SIGMA))


def posterior(family, jitter):
    """A large matrix near the prior; scales are all alike, or scattered."""
    generator = torch.Generator().manual_seed(0)

    def around(value, *shape):
        return value * (jitter * torch.randn(shape, generator=generator)).exp()

    loc = 1e-5 * torch.randn(SIZE, SIZE, generator=generator)
    if family == "independent":
        return LocationScale(loc, around(SIGMA, SIZE, SIZE))
    rank = int(family[-1])
    root = (SIGMA / rank) ** 0.5
    return KTiedNormal(loc, around(root, rank, SIZE), around(root, rank, SIZE))


def exact_kl(q):
    """The KL of the same numbers in float64, some rows at a time."""
    total = 0.0
    for rows in torch.arange(SIZE).split(256):
        if isinstance(q, KTiedNormal):
            scale = q.u[:, rows].double().t() @ q.v.double()
        else:
            scale = q.scale[rows].double()
        ratio = (scale / float(PRIOR.scale)).square()
        distance = (q.loc[rows].double() / float(PRIOR.scale)).square()
        total += float(0.5 * (ratio - 1 - ratio.log() + distance).sum())
    return total


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("family", ["independent", "k_tied_1", "k_tied_2"])
@pytest.mark.parametrize("jitter", [0.0, 1e-3])
def test_the_kl_of_a_large_matrix_keeps_its_digits(family, jitter):
    """The KL is a difference of sums of 8 million: an error of 1 is 6e-8 per weight."""
    q = posterior(family, jitter)
    found, expected = float(total_divergence([(q, PRIOR)])), exact_kl(q)
    assert found == pytest.approx(expected, abs=1.0)
    assert found >= 0


def test_the_formula_keeps_its_digits_too():
    class Own(LocationScale):
        """A subclass has no kernel."""

    q = posterior("independent", 0.0)
    found = float(divergence(Own(q.loc, q.scale), PRIOR))
    assert found == pytest.approx(exact_kl(q), abs=1.0)


@pytest.mark.usefixtures("branch")
def test_a_kl_is_never_negative():
    for scale in torch.linspace(0.01, 1.0, 50):
        p = torch.distributions.Normal(torch.tensor(0.0), scale)
        q = LocationScale(torch.zeros(64, 64), scale.expand(64, 64).clone())
        tied = KTiedNormal(torch.zeros(64, 64), scale.expand(1, 64).clone(), torch.ones(1, 64))
        for each in (q, tied):
            assert 0 <= float(total_divergence([(each, p)])) < 1e-3


# ---- variances below the normal range


def smallest_outputs():
    """Outputs and gradients of inputs whose variances are denormal, and what computed them."""
    torch.manual_seed(0)
    found = {}
    for rank in (1, 2, 4):
        root = (0.1 / rank) ** 0.5
        q = KTiedNormal(*(root * torch.ones(*s) for s in ((70, 40), (rank, 70), (rank, 40))))
        found[f"k_tied_{rank}"] = q, Linear(), (23, 40)
        found[f"convolved_{rank}"] = q, Conv((2, 2)), (5, 10, 6, 6)
    found["independent"] = (
        LocationScale(torch.ones(70, 40), torch.full((70, 40), 0.1)),
        Linear(),
        (23, 40),
    )
    found["noise"] = (
        LocationScale(torch.ones(70, 40), torch.full((70, 40), 0.1)),
        Conv((2, 2)),
        (5, 10, 6, 6),
    )
    outputs = {}
    for name, (q, op, shape) in found.items():
        for size in (3e-17, 1e-18, 1e-19, 3e-20, 0.0):
            x = (size * (0.5 + torch.rand(shape))).requires_grad_()
            y = FRESH.outputs(q, x, op)
            (slope,) = torch.autograd.grad(y.sum(), x)
            mean = op(x, q.mean).detach()
            std = op(op.square(x.detach().double()), q.variance.double()).sqrt()
            outputs[name, size] = y.detach(), mean, std, slope
    return lb.kernels().reason, outputs


def check(outputs):
    for name, (y, mean, std, slope) in outputs.items():
        assert y.isfinite().all(), name
        assert slope.isfinite().all(), name
        assert ((y - mean).abs() <= 7 * std + 1e-18).all(), name


@pytest.mark.usefixtures("branch")
def test_denormal_variances_give_finite_outputs():
    check(smallest_outputs()[1])


@pytest.mark.skipif(not lb.kernels().native, reason=lb.kernels().reason)
@pytest.mark.parametrize("wanted", ["avx2", "baseline"])
def test_denormal_variances_with_older_instructions(wanted, tmp_path):
    file = tmp_path / "outputs.pt"
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "LEANBAYES_NATIVE": wanted, "PYTHONPATH": path}
    subprocess.run([sys.executable, __file__, str(file)], env=environment, check=True)
    check(torch.load(file)[1])


@pytest.mark.parametrize("family", ["k_tied", "independent"])
def test_denormal_variances_of_predictions(family):
    spec = lb.KTied(2, 0.1) if family == "k_tied" else lb.MeanField(0.1)
    for width in (5, 40):
        model = lb.convert(torch.nn.Linear(40, width, bias=False), spec, lb.priors.Normal(1.0))
        for size in (1e-18, 1e-19, 3e-20):
            x = torch.full((20, 40), size)
            x[0] = 1.0  # all samples of zeros alone would be equal, which is refused
            samples = lb.predict(model, x, samples=8, seed=0).samples
            assert samples.isfinite().all()


if __name__ == "__main__":
    torch.save(smallest_outputs(), sys.argv[1])
