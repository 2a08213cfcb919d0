"""The LSTM with rank-one factors: the kernel against torch's operations, and when it is used."""

import sys

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

import leanbayes as lb
from leanbayes.kernels import native
from leanbayes.kernels.lstm import _Lstm
from leanbayes.layers import recurrent
from leanbayes.ops import Usage

PRIOR = lb.priors.Normal(0.1, loc=1.0)
TIME, BATCH = 6, 4

needs_native = pytest.mark.skipif(not native.is_native(), reason="native kernels were not built")


def converted(posterior, **options):
    model = lb.convert(nn.LSTM(5, 8, **options), posterior, PRIOR)
    drawn = {name: model.map(name).draw(Usage(BATCH, reused=True)) for name in model.maps}
    model._draw = lambda usage: drawn
    return model


def slopes(model, x):
    """Outputs, states and all gradients for the draw that the model holds."""
    model.zero_grad()
    x.grad = None
    y, (h, c) = model(x)
    torch.manual_seed(1)
    loss = sum((part * torch.randn_like(part)).sum() for part in (y, h, c))
    loss.backward(retain_graph=True)
    parameters = (p.grad.clone() for p in model.parameters() if p.grad is not None)
    return [part.detach() for part in (y, h, c)] + [x.grad.clone(), *parameters]


@needs_native
@pytest.mark.parametrize("posterior", [lb.Rank1(1), lb.Rank1(2, ("none", "normal"), batch="tile")])
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}], ids=str
)
def test_the_kernel_gives_the_results_of_the_loop(posterior, options, monkeypatch):
    model, x = converted(posterior, **options), torch.randn(TIME, BATCH, 5, requires_grad=True)
    fused, used = slopes(model, x), []
    monkeypatch.setattr(recurrent, "factored_lstm", lambda *_: used.append(None))
    looped = slopes(model, x)
    assert used
    assert len(fused) == len(looped)
    for one, other in zip(fused, looped, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


def test_the_formula_of_second_derivatives_is_that_of_torch():
    """With all factors one, and against torch's own LSTM with the same weights."""
    net = nn.LSTM(3, 2).double()
    x, h, c = (torch.randn(*size).double() for size in ((4, 2, 3), (2, 2), (2, 2)))
    ones = [torch.ones(2, n).double() for n in (8, 3, 8, 2)]
    bias = (net.bias_ih_l0 + net.bias_hh_l0)[None]
    tensors = (x, net.weight_ih_l0, *ones[:2], net.weight_hh_l0, *ones[2:], bias, h, c)
    y = _Lstm(keep=True).plain(None, *tensors)
    expected, (_, last) = net(x, (h[None], c[None]))
    torch.testing.assert_close(y, torch.cat((expected, last)))


@needs_native
def test_second_derivatives_exist():
    model, x = converted(lb.Rank1(1)), torch.randn(3, BATCH, 5, requires_grad=True)
    (slope,) = torch.autograd.grad(model(x)[0].square().sum(), x, create_graph=True)
    slope.sum().backward()
    assert bool(x.grad.isfinite().all())
    assert float(x.grad.abs().max()) > 0


def test_without_native_kernels_double_precision_passes_a_gradient_check():
    model = converted(lb.Rank1(1)).double()
    x = torch.randn(2, BATCH, 5, dtype=torch.float64, requires_grad=True)
    drawn = {name: model.map(name).draw(Usage(BATCH, reused=True)) for name in model.maps}
    model._draw = lambda usage: drawn
    assert gradcheck(lambda x: model(x)[0], x)


@pytest.mark.parametrize("posterior", [lb.KTied(2), lb.MeanField()])
def test_one_matrix_for_the_batch_runs_in_torchs_own_kernel(posterior, monkeypatch):
    calls = []

    def counted(*arguments):
        calls.append(1)
        return torch.lstm(*arguments)

    monkeypatch.setitem(recurrent._FUSED, "LSTM", counted)
    model = lb.convert(nn.LSTM(5, 8, batch_first=True), posterior, lb.priors.Normal(1.0))
    lb.predict(model, torch.randn(BATCH, TIME, 5), samples=7, output=lambda y: y[0][:, -1])
    assert len(calls) == 7 + 0


@needs_native
def test_a_step_of_the_loop_makes_no_gradient_of_the_whole_sequence(monkeypatch):
    """The input part is one product; its backward pass fills no tensor per step."""
    monkeypatch.setattr(recurrent, "factored_lstm", lambda *_: None)
    model, x = converted(lb.Rank1(1)), torch.randn(30, BATCH, 5, requires_grad=True)
    y = model(x)[0].sum()
    with torch.profiler.profile() as profile:
        y.backward()
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts.get("aten::select_backward", 0) <= 2


@needs_native
@pytest.mark.parametrize("posterior", [lb.Rank1(1), lb.Rank1(2, ("none", "normal"), batch="tile")])
@pytest.mark.parametrize("rows", [1, 2 * BATCH, 4 * BATCH, 100 * BATCH])
def test_without_gradients_a_few_steps_at_a_time_give_the_same(posterior, rows, monkeypatch):
    monkeypatch.setattr(sys.modules[_Lstm.__module__], "_ROWS", rows)
    model, x = converted(posterior), torch.randn(TIME, BATCH, 5)
    y, (h, c) = model(x)
    with torch.no_grad():
        found, (last, cell) = model(x)
    torch.testing.assert_close(found, y.detach())
    torch.testing.assert_close(last, h.detach())
    torch.testing.assert_close(cell, c.detach())
