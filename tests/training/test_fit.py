"""The training loop: what it minimizes, resume, interruption, best epoch, any data."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes.errors import LoadError, NonFiniteLossError
from leanbayes.training import History


def clusters(size=300, seed=1):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (size,), generator=generator)
    centers = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 3.0]])
    return centers[y] + torch.randn(size, 2, generator=generator), y


def network(**options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))
    options = {"posterior": lb.KTied(), "prior": lb.priors.Normal(1.0)} | options
    return lb.convert(net, **options)


def numbers(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(a, b):
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_it_learns_and_the_history_is_read_by_diagnose():
    model, data = network(), clusters()
    history = lb.fit(model, data, clusters(seed=2), epochs=15, batch_size=30, lr=0.01)
    assert history[-1]["validation_accuracy"] > 0.9
    assert history[-1]["nll"] < 0.5 * history[0]["nll"]
    assert "History of 15 epochs" in repr(history)
    assert str(lb.diagnose(model, history))


def test_the_first_step_is_the_gradient_of_the_elbo():
    data = clusters(40)
    model = network(posterior=lb.posteriors.Point(), prior=lb.priors.Normal(0.5))
    by_hand = network(posterior=lb.posteriors.Point(), prior=lb.priors.Normal(0.5))
    sgd = {"optimizer": lambda groups: torch.optim.SGD(groups), "lr": 0.1}
    lb.fit(model, data, epochs=1, batch_size=40, kl_warmup=0, **sgd)
    nll = nn.functional.cross_entropy(by_hand(data[0]), data[1])
    lb.elbo(nll, by_hand, data_size=40).loss.backward()
    with torch.no_grad():
        for parameter in by_hand.parameters():
            parameter -= 0.1 * parameter.grad
    for ours, theirs in zip(model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_kl_rises_over_the_warm_up_and_the_learning_rate_falls():
    rates = []

    class Watched(torch.optim.SGD):
        def step(self, closure=None):
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    options = {"epochs": 10, "batch_size": 100, "kl_warmup": 0.5, "lr": 0.1, "optimizer": Watched}
    history = lb.fit(network(), clusters(300), **options)
    weights = [row["weight"] for row in history]
    assert weights == sorted(weights)
    assert weights[0] < 0.2
    assert weights[5:] == [0.5] * 5
    assert rates[0] == 0.1
    assert rates == sorted(rates, reverse=True)
    assert rates[15] == pytest.approx(0.05)
    assert rates[-1] < 0.002


def test_the_same_seed_gives_the_same_numbers_and_leaves_torchs_generator_alone():
    before = torch.get_rng_state()
    models = [network(), network(), network()]
    torch.set_rng_state(before)
    for model, seed in zip(models, (5, 5, 6), strict=True):
        lb.fit(model, clusters(), epochs=2, seed=seed)
    assert torch.equal(torch.get_rng_state(), before)
    assert_same(numbers(models[0]), numbers(models[1]))
    assert not torch.equal(models[0](torch.zeros(1, 2)), models[2](torch.zeros(1, 2)))


def stopping_after(epochs):
    """Validation batches that interrupt the training in an epoch."""

    class Batches(list):
        seen = 0

        def __iter__(self):
            self.seen += 1
            if self.seen > epochs:
                raise KeyboardInterrupt
            return super().__iter__()

    return Batches([clusters(60, seed=3)])


def test_a_resumed_training_ends_as_an_uninterrupted_one(tmp_path):
    options = {"epochs": 5, "batch_size": 64, "lr": 0.01, "checkpoint": tmp_path / "fit.pt"}
    whole, stopped = network(), network()
    expected = lb.fit(whole, clusters(), [clusters(60, seed=3)], **options)
    (tmp_path / "fit.pt").unlink()
    first = lb.fit(stopped, clusters(), stopping_after(2), **options)
    assert first.interrupted
    assert len(first) == 2
    again = network()
    resumed = lb.fit(again, clusters(), [clusters(60, seed=3)], **options)
    assert not resumed.interrupted
    timeless = [[{**row, "seconds": 0} for row in rows] for rows in (expected, resumed)]
    assert timeless[0] == timeless[1]
    assert_same(numbers(whole), numbers(again))


def test_another_training_does_not_continue_from_a_checkpoint(tmp_path):
    path = tmp_path / "fit.pt"
    lb.fit(network(), clusters(), epochs=1, checkpoint=path)
    state = torch.load(path, weights_only=True)
    del state["settings"]["patience"], state["settings"]["cosine"]
    torch.save(state, path)
    assert len(lb.fit(network(), clusters(), epochs=1, checkpoint=path)) == 1
    with pytest.raises(LoadError, match="other settings"):
        lb.fit(network(), clusters(), epochs=2, checkpoint=path)
    path.write_bytes(b"nonsense")
    with pytest.raises(LoadError, match=r"not a checkpoint of lb\.fit"):
        lb.fit(network(), clusters(), epochs=1, checkpoint=path)


def test_a_checkpoint_with_a_changed_byte_is_refused(tmp_path):
    path = tmp_path / "fit.pt"
    model = network()
    lb.fit(model, clusters(), epochs=1, checkpoint=path)
    content = bytearray(path.read_bytes())
    weights = next(model.parameters()).detach().contiguous().numpy().tobytes()
    content[content.index(weights) + len(weights) // 2] ^= 0x40
    path.write_bytes(content)
    with pytest.raises(LoadError, match="is damaged"):
        lb.fit(network(), clusters(), epochs=1, checkpoint=path)


def test_the_model_has_the_weights_of_its_best_epoch():
    """With a learning rate that ruins the network after a good start."""
    x, y = clusters(60)
    model = network()
    kept = []

    class Watched(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            kept.append(numbers(model))

    history = lb.fit(model, (x, y), (x, (y + 1) % 3), epochs=6, lr=0.3, optimizer=Watched)
    best = history.best_epoch
    assert best < 6
    assert_same(numbers(model), kept[best - 1])


def test_patience_counts_validations_without_a_better_one(tmp_path):
    x, y = clusters(60)
    options = {"epochs": 30, "lr": 0.3, "patience": 3, "checkpoint": tmp_path / "fit.pt"}
    history = lb.fit(network(), (x, y), (x, (y + 1) % 3), **options)
    assert len(history) == history.best_epoch + 3 < 30
    again = lb.fit(network(), (x, y), (x, (y + 1) % 3), **options)
    assert list(again) == list(history)
    with pytest.raises(ValueError, match="there is no validation data"):
        lb.fit(network(), (x, y), epochs=1, patience=3)


def test_long_trainings_are_validated_about_a_hundred_times_and_at_the_end():
    data = clusters(8)
    history = lb.fit(network(), data, data, epochs=205, patience=1000, validation_samples=1)
    seen = [row["epoch"] for row in history if "validation_nll" in row]
    assert seen == [*range(3, 205, 3), 205]
    assert history.best_epoch in seen


def test_weights_of_validation_examples_count_as_repetitions():
    (x, y), weight = clusters(30), torch.tensor([1.0, 2.0, 0.0] * 10)
    counts = weight.long()
    options = {"epochs": 1, "validation_samples": 1, "batch_size": 7}
    point = {"posterior": lb.posteriors.Point(), "prior": lb.priors.Normal(0.5)}
    repeated = (x.repeat_interleave(counts, 0), y.repeat_interleave(counts))
    found, expected, plain = (
        lb.fit(network(**point), (x, y), held_out, **options)[0]["validation_nll"]
        for held_out in ((x, y, weight), repeated, (x, y))
    )
    assert found == pytest.approx(expected, rel=1e-5)
    assert found != pytest.approx(plain, rel=1e-3)


def test_data_may_arrive_piece_by_piece():
    """A constant rate and one optimizer for all pieces are a training on all of them."""
    pieces, rates, made = [clusters(20, seed) for seed in (1, 2, 3)], [], []

    class Watched(torch.optim.Adam):
        def step(self, closure=None):
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    def kept(groups):
        made.append(made[0] if made else Watched(groups))
        return made[0]

    point = {"posterior": lb.posteriors.Point(), "prior": lb.priors.Normal(0.5)}
    model, whole = network(**point), network(**point)
    options = {"epochs": 1, "cosine": False, "kl_warmup": 0, "data_size": 60}
    for piece in pieces:
        lb.fit(model, piece, optimizer=kept, batch_size=20, **options)
    assert rates == [1e-3] * 3
    lb.fit(whole, pieces, optimizer=Watched, **options)
    for ours, theirs in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_threads_train_what_one_trains_alone():
    def trained(seed):
        model = models.pop()
        lb.fit(model, clusters(), epochs=2, seed=seed)
        return numbers(model)

    models = [network() for _ in range(4)]
    alone = [trained(seed) for seed in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(trained, (1, 2)))
    for ours, theirs in zip(together, alone, strict=True):
        assert_same(ours, theirs)


def test_decay_acts_on_means_only():
    model = network(prior=lb.priors.Flat())
    before = numbers(model)
    options = {"optimizer": lambda groups: torch.optim.SGD(groups), "lr": 1e-8}
    x = torch.zeros(8, 2)
    lb.fit(model, (x, torch.zeros(8).long()), epochs=1, weight_decay=1e6, **options)
    for name, value in model.state_dict().items():
        changed = not torch.allclose(value, before[name], rtol=1e-4, atol=0)
        assert changed == ("loc" in name or ("bias" in name and bool(before[name].any()))), name


@pytest.mark.parametrize("kind", ["arrays", "loader", "dataset", "dictionaries", "int32"])
def test_data_of_every_kind(kind):
    x, y = clusters(64)
    data = {
        "arrays": (x.double().numpy(), y.numpy()),
        "int32": (x.numpy(), y.numpy().astype(np.int32)),
        "loader": DataLoader(TensorDataset(x, y), 16, shuffle=True),
        "dataset": TensorDataset(x, y),
        "dictionaries": DataLoader(
            [{"input": a, "labels": b} for a, b in zip(x, y, strict=True)], 16
        ),
    }[kind]
    model = network()
    history = lb.fit(model, data, data, epochs=2, batch_size=16)
    assert len(history) == 2
    assert math.isfinite(history[-1]["validation_nll"])


def test_members_and_ensembles_and_plain_networks():
    data = clusters(64)
    mixture = network(posterior=lb.Rank1(members=2), prior=lb.priors.Normal(0.1, loc=1.0))
    ensemble = lb.DeepEnsemble.of(lambda: nn.Linear(2, 3), 2)
    plain = nn.Linear(2, 3)
    for model in (mixture, ensemble, plain):
        history = lb.fit(model, data, data, epochs=3, lr=0.05)
        assert history[-1]["nll"] < history[0]["nll"]
    assert lb.fit(plain, data, epochs=1)[0]["kl"] == 0


def test_regression_trains_the_noise_and_returns_the_likelihood():
    x = torch.linspace(-1, 1, 200)[:, None]
    y = 2 * x + 0.1 * torch.randn(200, 1)
    with pytest.raises(ValueError, match="targets are real numbers"):
        lb.fit(lb.convert(nn.Linear(1, 1), lb.KTied(), lb.priors.Normal(1.0)), (x, y), epochs=1)
    model = lb.convert(nn.Linear(1, 1), lb.KTied(), lb.priors.Normal(1.0))
    likelihood = lb.likelihoods.Gaussian(1.0, "learned")
    history = lb.fit(model, (x, y), epochs=60, batch_size=20, lr=0.05, likelihood=likelihood)
    assert history.likelihood is likelihood
    std = lb.predict(model, x, likelihood=likelihood).variance.sqrt().mean()
    assert 0.08 < float(std.detach()) < 0.2


def test_weights_of_examples_count_as_repetitions():
    x, y = clusters(30)
    weight = torch.ones(30)
    weight[:10] = 2.0
    options = {"epochs": 3, "batch_size": 100, "lr": 0.1, "kl_warmup": 0}
    options |= {"optimizer": lambda groups: torch.optim.SGD(groups)}
    point = {"posterior": lb.posteriors.Point(), "prior": lb.priors.Normal(0.5)}
    weighted, repeated = network(**point), network(**point)
    lb.fit(weighted, (x, y, weight), **options)
    lb.fit(repeated, (torch.cat([x, x[:10]]), torch.cat([y, y[:10]])), **options)
    for a, b in zip(weighted.parameters(), repeated.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_loss_that_is_not_finite_ends_in_a_sentence():
    x, y = clusters(32)
    x[3] = math.nan
    with pytest.raises(NonFiniteLossError, match="the loss is nan in epoch 1"):
        lb.fit(network(), (x, y), epochs=1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"checkpoint": "not/there/fit.pt"}, "in a folder that exists, got not/there/fit"),
        ({"kl_warmup": 2}, "kl_warmup must be from 0 to 1"),
        ({"validation": clusters(8), "patience": 0}, "patience is 0"),
        ({"kl_weight": -1}, "kl_weight must not be negative"),
        ({"train": iter([])}, "run through once only"),
        ({"train": [(torch.zeros(1, 2), torch.zeros(1).long())]}, "give data_size"),
        ({"train": torch.zeros(3, 2)}, "must be a pair"),
        ({"train": (torch.zeros(3, 2), torch.zeros(2).long())}, "examples; give as many"),
    ],
)
def test_wrong_arguments(options, sentence):
    options = {"train": clusters(8), "epochs": 1} | options
    with pytest.raises(ValueError, match=sentence):
        lb.fit(network(), **options)


def test_progress_shows_epochs_and_the_time_left(capsys):
    lb.fit(network(), clusters(32), epochs=2, progress=True)
    said = capsys.readouterr().err
    assert "epoch 2/2" in said
    assert "left" in said
    lb.fit(network(), clusters(32), epochs=2)
    assert not capsys.readouterr().err


def test_an_empty_history_has_a_repr():
    assert repr(History()) == "History of 0 epochs"
