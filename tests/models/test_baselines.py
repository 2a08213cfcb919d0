"""Deep ensembles and MC dropout: models as any other, with the law that they should have."""

import copy
import itertools
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from leanbayes.layers.dropout import MCDropout
from leanbayes.testing import assert_mean


def mlp(dropout=0.0):
    drop = [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), *drop, nn.Linear(8, 2))


def test_an_ensemble_predicts_what_its_networks_do():
    networks, x = [mlp() for _ in range(3)], torch.randn(5, 3)
    model = lb.DeepEnsemble(networks)
    assert lb.extend.members(model) == 3
    p = lb.predict(model, x, samples=1, batch_size=2)
    expected = torch.stack([net(x).detach() for net in networks])
    torch.testing.assert_close(p.samples, expected)
    torch.testing.assert_close(p.probs, expected.softmax(-1).mean(0))


def test_networks_trained_together_learn_as_each_would_alone():
    """SGD with momentum and weight decay, whose steps change with the size of a gradient."""
    x, y = torch.randn(12, 3).double(), torch.randint(2, (12,))
    networks = [mlp().double() for _ in range(3)]
    alone = copy.deepcopy(networks)
    model = lb.DeepEnsemble(networks)

    def steps(module, loss):
        optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

    steps(model, lambda: F.cross_entropy(model(lb.tile(x, 3)), lb.tile(y, 3)))
    for net in alone:
        steps(net, lambda net=net: F.cross_entropy(net(x), y))
    for ours, theirs in zip(networks, alone, strict=True):
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_an_ensemble_of_bayesian_networks_has_the_elbo_of_each():
    x, y = torch.randn(6, 3).double(), torch.randint(2, (6,))
    model = lb.convert(
        lb.DeepEnsemble.of(mlp, 2).double(),
        lb.MeanField(),
        lb.priors.Normal(1.0),
        lb.estimators.mean,
    )
    loss = F.cross_entropy(model(lb.tile(x, 2)), lb.tile(y, 2))
    lb.elbo(loss, lb.kl(model), data_size=6).loss.backward()
    together = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    for net in model.networks:
        lb.elbo(F.cross_entropy(net(x), y), lb.kl(net), data_size=6).loss.backward()
    for ours, p in zip(together, model.parameters(), strict=True):
        torch.testing.assert_close(ours, p.grad)


@pytest.mark.parametrize("posterior", [lb.MeanField(0.3), lb.Rank1(2, rate=0.1)], ids=repr)
def test_samples_of_bayesian_members(posterior):
    prior = lb.priors.Normal(0.5, loc=1.0)
    nets = [lb.convert(mlp(), posterior, prior) for _ in range(3)]
    model, x = lb.DeepEnsemble(nets), torch.randn(4, 3)
    inside = lb.extend.members(nets[0])
    assert lb.extend.members(model) == 3 * inside
    p = lb.predict(model, x, samples=400)
    assert p.samples.shape == (400 * 3 * inside, 4, 2)
    drawn = p.samples.view(400, 3, inside, 4, 2).double()
    for number, net in enumerate(nets):
        own = lb.predict(net, x, samples=400).samples.view(400, inside, 4, 2).double()
        assert_mean(drawn[:, number] - own, 0.0, f"network {number}")


def test_an_ensemble_is_saved_with_its_members(tmp_path):
    make = lambda: lb.DeepEnsemble.of(mlp, 2)  # noqa: E731
    model, x = lb.convert(make(), lb.KTied(1), lb.priors.Normal(1.0)), torch.randn(4, 3)
    again = lb.load(make(), lb.save(model, tmp_path / "m"))
    ours, theirs = (lb.predict(m, x, samples=3, seed=1).samples for m in (model, again))
    assert torch.equal(ours, theirs)


def test_an_ensemble_inside_a_model_counts():
    model = nn.Sequential(lb.DeepEnsemble.of(mlp, 3), nn.Tanh())
    assert lb.extend.members(model) == 3
    assert lb.predict(model, torch.randn(5, 3), samples=1).samples.shape == (3, 5, 2)


def test_time_may_come_first():
    model = lb.DeepEnsemble.of(lambda: nn.Linear(3, 2), 2, batch_dim=1)
    x = torch.randn(4, 5, 3)
    p = lb.predict(model, x, samples=1, batch_dim=1)
    expected = torch.stack([net(x).transpose(0, 1).detach() for net in model.networks])
    torch.testing.assert_close(p.samples, expected)


def test_dropout_draws_its_own_law():
    """All 2⁸ masks of the hidden units, each with its probability."""
    net, x, rate = mlp(0.3).double(), torch.randn(2, 3).double(), 0.3
    model = lb.mc_dropout(net)
    p = lb.predict(model, x, samples=4000, seed=1)
    hidden = net[1](net[0](x)).detach()
    mean = second = 0.0
    for mask in itertools.product((0.0, 1.0), repeat=8):
        kept = torch.tensor(mask).double()
        chance = float((kept * (1 - rate) + (1 - kept) * rate).prod())
        y = net[3](hidden * kept / (1 - rate)).detach()
        mean, second = mean + chance * y, second + chance * y.square()
    assert_mean(p.samples, mean, "mean over masks")
    assert_mean(p.samples.square(), second, "second moment over masks")


@pytest.mark.parametrize(
    "kind", [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout]
)
def test_every_kind_of_dropout_draws_as_in_training(kind):
    shape = {nn.Dropout1d: (3, 4, 5), nn.Dropout3d: (3, 4, 2, 2, 2)}.get(kind, (3, 4, 5, 5))
    x, layer = torch.randn(shape), kind(0.4)
    torch.manual_seed(1)
    expected = layer.train()(x)
    active = lb.mc_dropout(nn.Sequential(layer)).eval()
    assert isinstance(active[0], MCDropout)
    torch.manual_seed(1)
    assert torch.equal(active(x), expected)
    assert isinstance(lb.mc_dropout(layer), MCDropout)


def test_weights_go_from_one_to_the_other():
    net = mlp(0.5)
    model = lb.mc_dropout(net)
    assert isinstance(net[2], nn.Dropout)
    model.load_state_dict(net.state_dict())
    assert lb.mc_dropout(net, inplace=True) is net
    assert isinstance(net[2], MCDropout)


def test_a_shared_dropout_layer_stays_one():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)
            self.also = self.drop

    model = lb.mc_dropout(Twice())
    assert isinstance(model.drop, MCDropout)
    assert model.drop is model.also


def test_dropout_is_repeatable_while_other_threads_run():
    model, x = lb.mc_dropout(mlp(0.5)), torch.randn(4, 3)
    once = lb.predict(model, x, samples=5, seed=3).samples
    stop = threading.Event()
    other = threading.Thread(target=lambda: stop.wait(30))
    other.start()
    try:
        again = [lb.predict(model, x, samples=5, seed=3).samples for _ in range(2)]
    finally:
        stop.set()
        other.join()
    assert torch.equal(again[0], again[1])
    assert torch.equal(once, again[0])


def test_flipout_and_batch_ensemble_are_a_word_away():
    x = torch.randn(6, 3)
    flipped = lb.convert(mlp(), lb.MeanField(0.3), lb.priors.Normal(1.0), lb.estimators.flipout)
    assert lb.predict(flipped, x, samples=7).samples.shape == (7, 6, 2)
    batch = lb.convert(mlp(), lb.Rank1(3, factors="fixed"), lb.priors.Flat())
    assert lb.predict(batch, x, samples=1).samples.shape == (3, 6, 2)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: lb.DeepEnsemble([]), "an ensemble of no networks"),
        (lambda: lb.DeepEnsemble([mlp()] * 2), "share weights"),
        (lambda: lb.DeepEnsemble.of(mlp, 0), "members is 0; it must be at least 1"),
        (lambda: lb.DeepEnsemble.of(mlp, 4)(torch.randn(6, 3)), r"batch 6 is not a multiple of 4"),
        (
            lambda: lb.extend.members(lb.DeepEnsemble([mlp(), lb.DeepEnsemble.of(mlp, 2)])),
            r"different numbers of members, \[1, 2\]",
        ),
        (lambda: lb.mc_dropout(mlp()), "the model has no dropout layer that drops anything"),
        (
            lambda: lb.mc_dropout(nn.Sequential(nn.LSTM(3, 4, 2, dropout=0.1), nn.Dropout(0.5))),
            r"layer '0' \(LSTM\) has dropout=0.1 inside itself",
        ),
        (
            lambda: lb.predict(lb.mc_dropout(mlp(0.5)), torch.randn(2, 3), coherent=True),
            "MC dropout draws for every example",
        ),
    ],
)
def test_mistakes_get_one_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def encoder(layers=0):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    layer.self_attn.dropout = 0.0
    return nn.TransformerEncoder(layer, layers) if layers else layer


@pytest.mark.parametrize("layers", [0, 2])
def test_mc_dropout_draws_in_a_transformer(layers):
    """Torch's fused kernels, which eval mode would take, have no dropout."""
    model, x = lb.mc_dropout(encoder(layers)), torch.randn(4, 5, 8)
    assert lb.predict(model, x, samples=8).samples.std(0).min() > 0
    mask = torch.zeros(4, 5, dtype=torch.bool)
    mask[:, 3:] = True
    named = {"src": x, "src_key_padding_mask": mask}
    assert lb.predict(model, named, samples=8).samples[:, :, :3].std(0).min() > 0


class Functional(nn.Module):
    def __init__(self, p=0.5):
        super().__init__()
        self.p, self.drop, self.layer = p, nn.Dropout(0.5), nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(F.dropout(self.drop(x), self.p, self.training))


def test_dropout_that_is_off_beside_mc_dropout_is_refused():
    x = torch.randn(5, 4)
    with pytest.raises(ValueError, match=r"calls F\.dropout with p=0\.5 and training=False"):
        lb.predict(lb.mc_dropout(Functional()), x, samples=2)
    lb.predict(lb.mc_dropout(Functional(p=0.0)), x, samples=2)
    lb.predict(Functional(), x, samples=2)  # plain networks may do so


class Skipped(nn.Module):
    """Its random layer has no part in the output."""

    def __init__(self, random):
        super().__init__()
        self.random, self.plain = random, nn.Linear(4, 2)

    def forward(self, x):
        self.random(x)
        return self.plain(x)


PRIOR = lb.priors.Normal(1.0)
UNUSED = {
    "random weights": lambda: lb.convert(nn.Linear(4, 2), lb.KTied(2), PRIOR),
    "whole weights": lambda: lb.convert(nn.Linear(4, 2), lb.KTied(2), PRIOR, lb.estimators.weights),
    "mixture": lambda: lb.convert(nn.Linear(4, 2), lb.Rank1(2)),
    "dropout": lambda: lb.mc_dropout(nn.Dropout(0.5)),
}


@pytest.mark.parametrize("name", UNUSED)
def test_equal_samples_of_a_random_model_are_refused(name):
    model, x = Skipped(UNUSED[name]()), torch.randn(5, 4)
    with pytest.raises(ValueError, match="all 3 samples are exactly equal"):
        lb.predict(model, x, samples=3)
    lb.predict(model, x, samples=1)
    lb.predict(model, x[:0], samples=3)
    lb.predict(model, torch.zeros(5, 4), samples=3)  # weights have no effect on zeros


def test_samples_may_be_equal_where_nothing_is_random():
    x = torch.randn(5, 4)
    lb.predict(nn.Linear(4, 2), x, samples=3)
    lb.predict(lb.convert(nn.Linear(4, 2), lb.posteriors.Point(), PRIOR), x, samples=3)
    model = lb.convert(nn.Linear(4, 2), lb.KTied(2), PRIOR)
    with lb.using(model, lb.estimators.mean):
        lb.predict(model, x, samples=3)
    with lb.held(model):
        lb.predict(model, x, samples=3)
    pruned = lb.compression.prune(Skipped(model), keep=0.5)  # whose noise may meet zeros alone
    lb.predict(pruned, x, samples=3)
