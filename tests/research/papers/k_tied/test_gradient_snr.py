"""Signal-to-noise of gradients [k-tied, footnote 2; ICML, footnote 3]."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from digits import images, train
from torch import nn

import leanbayes as lb
from leanbayes.testing import assert_mean
from research.papers.k_tied.gradient_snr import GradientSNR


def converted(posterior=None, *sizes):
    sizes = sizes or (5, 4, 3)
    layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    return lb.convert(nn.Sequential(*layers), posterior or lb.KTied(2), lb.priors.Normal(1.0))


def scales(layer):
    return [p for name, p in layer.posterior.named_parameters() if name != "loc"]


def feed(snr, model, gradients):
    """Record made gradients: ``gradients(parameter)`` is called at every step."""
    for _ in range(snr.window):
        for parameter in model.parameters():
            parameter.grad = gradients(parameter)
        snr.update()
    return snr.values()


def recorded(model, window=10):
    """Gradients at random, and the same as a list for each parameter."""
    kept = {p: [torch.randn_like(p) + 0.5 for _ in range(window)] for p in model.parameters()}
    later = {p: iter(gradients) for p, gradients in kept.items()}
    return kept, lambda p: next(later[p])


@pytest.mark.parametrize("definition", ["gradient", "square"])
def test_ratios_are_averages_over_the_numbers_of_a_layer(definition):
    model = converted().double()
    kept, gradients = recorded(model)
    snr = GradientSNR(model)
    feed(snr, model, gradients)
    ratios = snr.values(definition)
    assert set(ratios) == {"0", "1"}
    for name, value in ratios.items():
        watched = scales(model.get_submodule(name))
        g = np.concatenate([torch.stack(kept[p]).flatten(1).numpy() for p in watched], 1)
        varying = g if definition == "gradient" else g**2
        expected = ((g**2).mean(0) / varying.var(0)).mean()
        assert math.isclose(value, expected, rel_tol=1e-10)


def test_quiet_numbers_outweigh_others_in_a_mean_but_not_when_pooled():
    """One number has a gradient that hardly varies, and a small one."""
    model = converted(lb.MeanField(), 5, 4)

    def gradients(parameter):
        gradient = torch.randn_like(parameter) + 1
        gradient.flatten()[0] = 1e-3 + 1e-9 * torch.randn(())
        return gradient

    snr = GradientSNR(model)
    assert feed(snr, model, gradients)["0"] > 1e8
    pooled, median = (snr.values(average=average)["0"] for average in ("pooled", "median"))
    assert 1.5 < median < 4
    assert 1.5 < pooled < 3


def test_pooled_is_all_signal_over_all_noise():
    model = converted().double()
    kept, gradients = recorded(model)
    snr = GradientSNR(model)
    feed(snr, model, gradients)
    for name, value in snr.values(average="pooled").items():
        watched = scales(model.get_submodule(name))
        g = np.concatenate([torch.stack(kept[p]).flatten(1).numpy() for p in watched], 1)
        assert math.isclose(value, (g**2).sum() / (len(g) * g.var(0).sum()), rel_tol=1e-10)


def test_pure_noise_gives_the_floor():
    """1 + 1/(n − 3) for n = 10 steps; 256 layers of 64 numbers would show an error of 1%."""
    model = converted(lb.MeanField(), *[8] * 257)
    ratios = feed(GradientSNR(model), model, torch.randn_like)
    assert_mean(torch.tensor(list(ratios.values())), 8 / 7, "ratio of pure noise")


@pytest.mark.parametrize("size", [1e-3, 1e3])
@pytest.mark.parametrize(("definition", "power"), [("gradient", 0), ("square", -2)])
def test_E25_only_the_first_definition_does_not_depend_on_the_unit(definition, power, size):
    model = converted().double()
    kept, gradients = recorded(model)
    once, scaled = GradientSNR(model), GradientSNR(model)
    feed(once, model, gradients)
    later = {p: iter(made) for p, made in kept.items()}
    feed(scaled, model, lambda p: size * next(later[p]))
    for name, value in once.values(definition).items():
        assert math.isclose(scaled.values(definition)[name], value * size**power, rel_tol=1e-9)


def test_small_float32_gradients_do_not_underflow():
    model = converted()
    snr = GradientSNR(model)
    feed(snr, model, lambda p: 1e-12 * torch.randn_like(p))
    assert all(math.isfinite(value) for value in snr.values("square").values())


def test_a_gradient_that_does_not_vary_has_an_infinite_ratio():
    model = converted()
    ratios = feed(GradientSNR(model), model, lambda p: torch.full_like(p, 0.1))
    assert set(ratios.values()) == {math.inf}


def test_numbers_without_a_gradient_are_left_out():
    model = converted(lb.MeanField())

    def half(parameter):
        gradient = torch.randn_like(parameter) + 1
        if parameter.ndim == 2:
            gradient[:, 1:] = 0
        return gradient

    ratios = feed(GradientSNR(model), model, half)
    assert all(1 < value < math.inf for value in ratios.values())
    silent = feed(GradientSNR(model), model, torch.zeros_like)
    assert all(math.isnan(value) for value in silent.values())


def test_values_are_of_the_last_window_and_nan_before():
    model = converted().double()
    snr = GradientSNR(model, window=4)
    kept, gradients = recorded(model, window=11)
    for step in range(11):
        for parameter in model.parameters():
            parameter.grad = gradients(parameter)
        snr.update()
        assert all(math.isnan(value) == (step < 3) for value in snr.values().values())
    later = {p: iter(made[-4:]) for p, made in kept.items()}
    last = feed(GradientSNR(model, window=4), model, lambda p: next(later[p]))
    for name, value in snr.values().items():
        assert math.isclose(value, last[name], rel_tol=1e-12)
    snr.reset()
    assert all(math.isnan(value) for value in snr.values().values())


def test_random_biases_and_recurrent_maps_are_watched():
    net = nn.LSTM(4, 3)
    model = lb.convert(net, lb.KTied(1), lb.priors.Normal(1.0), bias=lb.MeanField())
    assert set(GradientSNR(model).values()) == set(lb.named_kl(model))


def test_a_window_of_one_step_is_refused():
    with pytest.raises(ValueError, match="window"):
        GradientSNR(converted(), 1)


def test_a_model_without_scales_is_refused():
    with pytest.raises(ValueError, match="scales"):
        GradientSNR(converted(lb.posteriors.Point()))


@pytest.mark.checklist("KT9")
@pytest.mark.parametrize(
    ("activation", "average"),
    [(nn.Tanh, "mean"), (nn.ReLU, "pooled"), (nn.ReLU, "median")],
)
def test_tied_scales_have_a_higher_ratio_early_in_training(activation, average):
    """With one draw of the weights. With ReLU the means of ratios have the other order: they are
    those of the few units that are hardly ever on and have next to no noise."""
    x, y = images()
    net = nn.Sequential(
        nn.Linear(64, 64), activation(), nn.Linear(64, 64), activation(), nn.Linear(64, 10)
    )

    def ratios(posterior):
        model = lb.convert(net, posterior, lb.priors.Normal(0.3), lb.estimators.weights)
        snr, ratios = GradientSNR(model), []

        def after(step):
            snr.update()
            if step % 50 == 0:
                ratios.append(snr.values(average=average)["2"])

        train(model, x, y, steps=100, lr=1e-3, after=after)
        return ratios

    full = ratios(lb.MeanField())
    for rank in (1, 2):
        for tied, untied in zip(ratios(lb.KTied(rank)), full, strict=True):
            assert tied > 5 * untied
