"""The KL of a model: one node of the graph for all that fused functions compute."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

import leanbayes as lb
from leanbayes.kernels import ScaledFromNormal, TiedFromNormal


def network(*posteriors):
    """A network whose layers have posteriors of their own."""
    net = nn.Sequential(*(nn.Linear(5, 5) for _ in posteriors))
    overrides = {str(i): {"posterior": posterior} for i, posterior in enumerate(posteriors)}
    return lb.convert(net, lb.MeanField(0.1), lb.priors.Normal(0.3, loc=0.1), overrides=overrides)


MIXED = (
    lb.KTied(2, 0.1),
    lb.MeanField(0.2),
    lb.posteriors.MatrixNormal(),
    lb.KTied(1, 0.3),
    lb.posteriors.ZeroMean(),
)


@pytest.mark.usefixtures("branch")
def test_it_is_the_sum_over_layers_with_the_same_gradients():
    model = network(*MIXED)
    together = lb.kl(model)
    apart = sum(lb.named_kl(model).values())
    torch.testing.assert_close(together, apart)
    leaves = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(3.0 * together, leaves, allow_unused=True)
    expected = torch.autograd.grad(3.0 * apart, leaves, allow_unused=True)
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine, theirs)


def nodes(root):
    """The names of all nodes behind a tensor."""
    waiting, seen = [root.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [parent for parent, _ in node.next_functions]
    return [node.name() for node in seen]


@pytest.mark.usefixtures("branch")
def test_it_is_one_node_whatever_the_number_of_layers():
    few, many = (
        nodes(lb.kl(network(*[lb.KTied(2), lb.MeanField()] * pairs))).count("_ComputedBackward")
        for pairs in (1, 4)
    )
    assert few == many == 1


@pytest.mark.usefixtures("branch")
def test_what_is_frozen_gets_no_gradient():
    model = network(lb.KTied(2), lb.KTied(2))
    model[0].posterior.loc.requires_grad_(False)
    lb.kl(model).backward()
    assert model[0].posterior.loc.grad is None
    assert model[0].posterior.u.grad is not None
    assert model[1].posterior.loc.grad is not None


class Doubled(lb.extend.Affine):
    """A layer that says itself what its KL is."""

    def kl(self):
        return 2 * super().kl()


def test_a_layer_that_has_its_own_kl_is_asked():
    model = network(lb.KTied(2), lb.KTied(2))
    first, second = lb.named_kl(model).values()
    model[0].__class__ = Doubled
    torch.testing.assert_close(lb.kl(model), 2 * first + second)


def test_a_kl_method_that_was_wrapped_is_called():
    """FSDP wraps it, to gather parameters that other processes have."""
    model, called = network(lb.KTied(2), lb.KTied(2)), []
    original = model[1].kl
    model[1].kl = lambda: called.append(1) or original()
    lb.kl(model)
    assert called


def test_under_autocast_it_stays_exact():
    model = network(*MIXED)
    expected = lb.kl(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(lb.kl(model), expected, rtol=0, atol=0)


def test_several_kls_pass_gradcheck_once_and_twice():
    shapes = ((3, 4), (2, 3), (2, 4), (5, 2), (5, 2), (1, 3))
    leaves = [(0.2 + torch.rand(shape).double()).requires_grad_() for shape in shapes]

    def total(loc, u, v, free, scale, centered):
        tied = TiedFromNormal((loc, u, v, None), 0.1, 0.5)
        others = ScaledFromNormal((free, scale, None), 0.2, 0.4)
        return tied.total([others, ScaledFromNormal((None, centered, None), 0.3, 0.7)])

    loc, u, v, free, scale, centered = (leaf.detach() for leaf in leaves)
    expected = (
        kl_divergence(Normal(loc, u.t() @ v), Normal(0.1, 0.5)).sum()
        + kl_divergence(Normal(free, scale), Normal(0.2, 0.4)).sum()
        + kl_divergence(Normal(0.0, centered), Normal(0.3, 0.7)).sum()
    )
    torch.testing.assert_close(total(*leaves), expected)
    assert torch.autograd.gradcheck(total, leaves)
    assert torch.autograd.gradgradcheck(total, leaves)
