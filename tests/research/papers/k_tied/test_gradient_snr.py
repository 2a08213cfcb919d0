"""Signal-to-noise of gradients [k-tied, footnote 2; ICML, footnote 3]."""

import math
from itertools import pairwise

import lightning as L
import numpy as np
import pytest
import torch
from digits import images, train
from lightning.pytorch.loggers import CSVLogger
from torch import nn

import leanbayes as lb
from leanbayes.lightning import BayesianModule
from leanbayes.testing import assert_mean
from research.papers.k_tied.gradient_snr import GradientSNR, noise_floor
from research.papers.k_tied.record_snr import RecordSNR

LIGHTNING = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")


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


@pytest.mark.parametrize("correction", [0, 1])
@pytest.mark.parametrize("definition", ["gradient", "square"])
@pytest.mark.parametrize("role", ["scales", "means"])
def test_ratios_are_averages_over_the_numbers_of_a_layer(definition, role, correction):
    model = converted().double()
    kept, gradients = recorded(model)
    options = {"definition": definition, "role": role, "correction": correction}
    ratios = feed(GradientSNR(model, **options), model, gradients)
    assert set(ratios) == {"0", "1"}
    for name, value in ratios.items():
        layer = model.get_submodule(name)
        watched = scales(layer) if role == "scales" else [layer.posterior.loc]
        g = np.concatenate([torch.stack(kept[p]).flatten(1).numpy() for p in watched], 1)
        varying = g if definition == "gradient" else g**2
        expected = ((g**2).mean(0) / varying.var(0, ddof=correction)).mean()
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


@pytest.mark.parametrize(("correction", "floor"), [(0, 8 / 7), (1, 0.9 * 8 / 7)])
def test_pure_noise_gives_the_floor(correction, floor):
    """1 + 1/(n − 3) for n = 10 steps; 256 layers of 64 numbers would show an error of 1%."""
    model = converted(lb.MeanField(), *[8] * 257)
    ratios = feed(GradientSNR(model, correction=correction), model, torch.randn_like)
    assert_mean(torch.tensor(list(ratios.values())), floor, "ratio of pure noise")
    assert math.isclose(noise_floor(10, correction), floor)
    assert round(floor, 2) == (1.03 if correction else 1.14)


@pytest.mark.parametrize("size", [1e-3, 1e3])
@pytest.mark.parametrize(("definition", "power"), [("gradient", 0), ("square", -2)])
def test_E25_only_the_first_definition_does_not_depend_on_the_unit(definition, power, size):
    model = converted().double()
    kept, gradients = recorded(model)
    once = feed(GradientSNR(model, definition=definition), model, gradients)
    later = {p: iter(made) for p, made in kept.items()}
    scaled = feed(
        GradientSNR(model, definition=definition),
        model,
        lambda p: size * next(later[p]),
    )
    for name, value in once.items():
        assert math.isclose(scaled[name], value * size**power, rel_tol=1e-9)


def test_small_float32_gradients_do_not_underflow():
    model = converted()
    ratios = feed(
        GradientSNR(model, definition="square"),
        model,
        lambda p: 1e-12 * torch.randn_like(p),
    )
    assert all(math.isfinite(value) for value in ratios.values())


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


def test_hooks_record_what_update_records_until_they_are_closed():
    model = converted()
    by_hand, by_hook = GradientSNR(model, 3), GradientSNR(model, 3)

    def backward():
        model.zero_grad()
        model(torch.randn(6, 5)).square().sum().backward()

    with by_hook:
        for _ in range(3):
            backward()
            by_hand.update()
        with pytest.raises(ValueError, match="hooks"):
            by_hook.update()
        with pytest.raises(ValueError, match="close"):
            by_hook.attach()
    before = by_hook.values()
    assert before == by_hand.values()
    backward()
    assert by_hook.values() == before


def test_random_biases_and_recurrent_maps_are_watched():
    net = nn.LSTM(4, 3)
    model = lb.convert(net, lb.KTied(1), lb.priors.Normal(1.0), bias=lb.MeanField())
    assert set(GradientSNR(model).values()) == set(lb.named_kl(model))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 1}, "window"),
        ({"definition": "ratio"}, "definition"),
        ({"role": "biases"}, "role"),
        ({"correction": 2}, "correction"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GradientSNR(converted(), **options)


def test_an_unknown_average_is_refused():
    with pytest.raises(ValueError, match="average"):
        GradientSNR(converted()).values(average="mode")


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
        ratios = []
        with GradientSNR(model) as snr:

            def after(step):
                if step % 50 == 0:
                    ratios.append(snr.values(average=average)["2"])

            train(model, x, y, steps=100, lr=1e-3, after=after)
        return ratios

    full = ratios(lb.MeanField())
    for rank in (1, 2):
        for tied, untied in zip(ratios(lb.KTied(rank)), full, strict=True):
            assert tied > 5 * untied


class Batches:
    """Eight batches an epoch, in one order."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(64, 5, generator=generator)
        self.parts = list(zip(x.split(8), (x[:, 0] > 0).long().split(8), strict=True))

    def __iter__(self):
        return iter(self.parts)

    def __len__(self):
        return len(self.parts)


def fit(folder, callback, epochs, *, resume=None, logger=False, **options):
    torch.manual_seed(0)
    module = BayesianModule(converted(), data_size=64)
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        default_root_dir=folder,
        logger=logger,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[callback],
        **options,
    )
    trainer.fit(module, Batches(), ckpt_path=resume)
    return trainer


class Reference(L.Callback):
    """Ratios at every step, by hooks."""

    def on_train_start(self, trainer, module):
        self.snr, self.ratios = GradientSNR(module.model, 4).attach(), {}

    def on_train_batch_end(self, trainer, *_):
        self.ratios[trainer.global_step] = self.snr.values()


@LIGHTNING
@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"every": 6}, [6, 12, 18, 24]),
        ({"every": 3}, [6, 9, 12, 15, 18, 21, 24]),
        ({"at": [2, 9, 20]}, [9, 20]),
    ],
)
def test_lightning_records_at_the_chosen_steps(tmp_path, options, steps):
    callback, reference = RecordSNR(window=4, **options), Reference()
    fit(tmp_path, callback, 3)
    fit(tmp_path, reference, 3)
    assert [step for step, _ in callback.history] == steps
    for step, values in callback.history:
        assert values == pytest.approx(reference.ratios[step])


@LIGHTNING
def test_lightning_logs_the_ratios(tmp_path):
    callback = RecordSNR(at=[9], window=4)
    fit(tmp_path, callback, 2, logger=CSVLogger(tmp_path, name="log", flush_logs_every_n_steps=1))
    (file,) = tmp_path.rglob("metrics.csv")
    header, *rows = (line.split(",") for line in file.read_text().splitlines())
    logged = [dict(zip(header, row, strict=True)) for row in rows]
    (row,) = [row for row in logged if row["snr/0"]]
    assert row["step"] == "9"
    assert float(row["snr/0"]) == pytest.approx(callback.history[0][1]["0"])


@LIGHTNING
def test_lightning_resumes_with_its_history(tmp_path):
    whole, first, second = (RecordSNR(every=6, window=4) for _ in range(3))
    fit(tmp_path, whole, 3)
    fit(tmp_path, first, 2).save_checkpoint(tmp_path / "half.ckpt")
    fit(tmp_path, second, 3, resume=tmp_path / "half.ckpt")
    assert [step for step, _ in first.history] == [6, 12]
    assert [step for step, _ in second.history] == [6, 12, 18, 24]  # it stopped in the window of 18
    for step, values in second.history:
        assert values == pytest.approx(dict(whole.history)[step])


@pytest.mark.parametrize("options", [{}, {"every": 5, "at": [5]}, {"every": 0}])
def test_lightning_needs_to_know_when(options):
    with pytest.raises(ValueError, match="every"):
        RecordSNR(**options)
