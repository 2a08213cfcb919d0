"""Targeted attacks by the signs of gradients, on plain and on random classifiers."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from leanbayes.prediction.eval_mode import evaluating
from research.papers.variance.sign_attack import dropping_out, fast_sign_attack


def network(*, dropout=0.0, batch_norm=False):
    norm = [nn.BatchNorm1d(64)] if batch_norm else []
    return nn.Sequential(
        nn.Flatten(), nn.Linear(12, 64), *norm, nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 4)
    )


@pytest.fixture
def x():
    return torch.rand(8, 3, 4)


def others(model, x):
    """For every example the next class after the predicted one."""
    return (lb.predict(model, x, samples=50, seed=3).labels + 1) % 4


def iterated_fast_sign(model, x, target, *, step, iterations, bound):
    """The public formula of the targeted basic iterative method, on a plain network."""
    adversarial = x.clone()
    for _ in range(iterations):
        adversarial.requires_grad_()
        F.cross_entropy(model(adversarial), target).backward()
        moved = adversarial.detach() - step * adversarial.grad.sign()
        adversarial = torch.clamp(x + torch.clamp(moved - x, -bound, bound), 0, 1).detach()
    return adversarial


@pytest.mark.checklist("VN21")
@pytest.mark.parametrize("gradient", ["averaged", "of_average"])
def test_on_a_plain_network_it_is_the_public_iterative_method(x, gradient):
    model, x = network().double(), x.double()
    target = others(model, x)
    options = {"step": 0.03, "iterations": 6, "bound": 0.1}
    attack = fast_sign_attack(model, x, target, samples=2, gradient=gradient, **options)
    by_formula = iterated_fast_sign(model, x, target, **options)
    assert torch.allclose(attack.inputs, by_formula, rtol=0, atol=1e-15)
    assert attack.hits[-1].equal(model(by_formula).argmax(1) == target)


def test_without_a_bound_it_is_the_public_method_to_the_bit(x):
    model = network()
    target = others(model, x)
    attack = fast_sign_attack(model, x, target, step=0.03, iterations=6, samples=1)
    adversarial = x.clone()
    for _ in range(6):
        adversarial.requires_grad_()
        (g,) = torch.autograd.grad(F.cross_entropy(model(adversarial), target), adversarial)
        adversarial = (adversarial.detach() - 0.03 * g.sign()).clamp(0, 1)
    assert torch.equal(attack.inputs, adversarial)


@pytest.mark.checklist("VN21")
def test_it_is_what_foolbox_does(x):
    """A public implementation of the targeted iterative fast-sign attack, from the same start."""
    foolbox = pytest.importorskip("foolbox")
    model, images = network().eval(), x.unsqueeze(1)
    target = others(model, images)
    public = foolbox.attacks.LinfBasicIterativeAttack(
        rel_stepsize=None, abs_stepsize=0.03, steps=6, random_start=False
    )
    moved = public.run(
        foolbox.PyTorchModel(model, bounds=(0, 1)),
        images,
        foolbox.criteria.TargetedMisclassification(target),
        epsilon=0.1,
    )
    attack = fast_sign_attack(model, images, target, step=0.03, iterations=6, bound=0.1)
    assert torch.allclose(attack.inputs, moved, atol=1e-6)
    assert not torch.allclose(attack.inputs, images, atol=0.05)


def test_the_two_gradients_are_those_of_the_mean_log_and_of_the_log_mean(x):
    """One step tells: signs of the gradients that autograd takes of both losses."""
    models = [network().double() for _ in range(5)]
    x = x.double()
    probs = torch.stack([model(x).softmax(-1) for model in models])
    target = (probs.mean(0).argmax(-1) + 1) % 4
    moved = {}
    for gradient in ("averaged", "of_average"):
        leaf = x.clone().requires_grad_()
        probs = torch.stack([model(leaf).softmax(-1) for model in models])
        chosen = probs[:, torch.arange(8), target]
        loss = chosen.log().mean(0) if gradient == "averaged" else chosen.mean(0).log()
        (expected,) = torch.autograd.grad(loss.sum(), leaf)
        attack = fast_sign_attack(
            models, x, target, step=1.0, iterations=1, samples=1, gradient=gradient, clip=None
        )
        moved[gradient] = attack.inputs - x
        assert torch.allclose(moved[gradient], expected.sign())
    assert not torch.equal(*moved.values())


def trained(model, x, y):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        count = lb.extend.members(model)
        loss = F.cross_entropy(model(lb.tile(x, count)), lb.tile(y, count))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@pytest.mark.checklist("VN21")
@pytest.mark.parametrize("kind", ["plain", "converted", "variance", "dropout", "ensemble", "rank1"])
def test_success_rises_from_nothing_for_every_kind_of_network(kind):
    x = torch.rand(200, 3, 4)
    y = x.flatten(1)[:, :4].argmax(1)
    net = network(dropout=0.2 if kind == "dropout" else 0.0)
    makers = {
        "converted": lambda: lb.convert(net, lb.MeanField(), lb.priors.Normal(1.0)),
        "variance": lambda: lb.convert(
            net, lb.posteriors.ZeroMean(), lb.priors.Flat(), include=["1"]
        ),
        "rank1": lambda: lb.convert(net, lb.Rank1(members=3), lb.priors.Normal(0.1, loc=1.0)),
    }
    if kind == "ensemble":
        model = [trained(network(), x, y) for _ in range(3)]
    else:
        model = trained(makers.get(kind, lambda: net)(), x, y)
    inputs, target = x[:40], (y[:40] + 1) % 4
    attack = fast_sign_attack(
        model, inputs, target, step=0.1, iterations=6, labels=y[:40], dropout=kind == "dropout"
    )
    rates = [score.value for score in attack.success]
    assert len(rates) == 7
    assert rates[0] < 0.4
    assert rates[-1] > max(0.6, rates[0]), rates
    assert attack.success[1].error > 0
    assert attack.inputs.min() >= 0
    assert attack.inputs.max() <= 1
    assert attack.distance <= 0.6 + 1e-6


def test_success_is_counted_with_draws_of_their_own(x):
    """A coin decides the class: no input changes that, and a reused draw would always hit."""

    class Coin(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = []

        def forward(self, x):
            self.seen.append(torch.randn(len(x)))
            return torch.stack([self.seen[-1], -self.seen[-1]], 1) + 0 * x.sum()

    coin, x = Coin(), torch.rand(400, 2)
    labels = torch.zeros(400, dtype=torch.long)
    attack = fast_sign_attack(coin, x, 1, step=0.1, iterations=3, samples=1, labels=labels, seed=1)
    assert all(abs(score.value - 0.5) < 5 * score.error for score in attack.success)
    draws = torch.stack(coin.seen[1:])  # the first looks for layers that are called twice
    assert len(draws.unique(dim=0)) == len(draws) == 7


def test_a_seed_repeats_it_and_leaves_the_generator_and_the_model_alone(x):
    model = lb.convert(
        network(batch_norm=True, dropout=0.5), lb.MeanField(0.3), lb.priors.Normal(1.0)
    )
    model.train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    options = {"step": 0.02, "iterations": 3, "labels": torch.full((8,), 3), "dropout": True}
    before = torch.get_rng_state()
    first = fast_sign_attack(model, x, 1, seed=5, **options)
    assert torch.equal(torch.get_rng_state(), before)
    again = fast_sign_attack(model, x, 1, seed=5, **options)
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.hits, again.hits)
    other = fast_sign_attack(model, x, 1, seed=6, **options)
    assert not torch.equal(first.inputs, other.inputs)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not x.requires_grad


def test_batches_do_not_change_a_plain_network_s_attack(x):
    model = network(batch_norm=True)
    target = others(model, x)
    options = {"step": 0.02, "iterations": 3, "samples": 1}
    whole = fast_sign_attack(model, x, target, **options)
    parts = fast_sign_attack(model, x, target, batch_size=3, **options)
    assert torch.allclose(whole.inputs, parts.inputs, atol=1e-6)
    assert torch.equal(whole.hits, parts.hits)


def test_a_module_list_is_an_ensemble(x):
    models, labels = [network(), network()], torch.zeros(8).long()
    options = {"labels": labels, "step": 0.1, "iterations": 2, "samples": 1}
    as_list = fast_sign_attack(models, x, 1, **options)
    as_module = fast_sign_attack(nn.ModuleList(models), x, 1, **options)
    assert torch.equal(as_list.inputs, as_module.inputs)


def test_it_runs_within_no_grad(x):
    model, labels = (
        lb.convert(network(), lb.MeanField(0.2), lb.priors.Normal(1.0)),
        torch.zeros(8).long(),
    )
    with torch.no_grad():
        attack = fast_sign_attack(model, x, 1, labels=labels, step=0.1, iterations=2)
    assert attack.distance > 0


def test_dropout_draws_only_when_asked(x):
    model = network(dropout=0.5).eval()
    with evaluating(model):
        assert torch.equal(model(x), model(x))
        with dropping_out(model):
            assert not torch.equal(model(x), model(x))
        assert torch.equal(model(x), model(x))
    assert not model[3].training


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"step": 0.0}, "step is 0.0; it must be positive"),
        ({"iterations": 0}, "iterations is 0; it must be at least 1"),
        ({"samples": 0}, "samples is 0; it must be at least 1"),
        ({"gradient": "mean"}, "gradient 'mean' is unknown"),
        ({"x": torch.full((8, 3, 4), 7.0)}, "values from 7 to 7 and clip is .0.0, 1.0.; give"),
        ({"x": torch.full((8, 3, 4), float("nan")), "clip": None}, "gradient is not finite in"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(x, changes, sentence):
    given = {"model": network(), "x": x, "target": 1, "labels": torch.zeros(8).long()}
    given |= {"step": 0.1, "iterations": 1, "samples": 1} | changes
    model, x, target = (given.pop(name) for name in ("model", "x", "target"))
    with pytest.raises(ValueError, match=sentence):
        fast_sign_attack(model, x, target, **given)


@pytest.mark.parametrize("labelled", [True, False])
def test_a_target_that_is_the_class_already_is_refused(x, labelled):
    model = network()
    target = others(model, x)
    known = torch.zeros(8).long() if labelled else (target - 1) % 4
    target[5] = known[5]
    labels = known if labelled else None
    with pytest.raises(ValueError, match="a target is the class already; give another one"):
        fast_sign_attack(model, x, target, labels=labels, step=0.1, iterations=1)
