"""Training of auto-encoders: resumed is uninterrupted, the best weights stay, files are whole."""

import json

import pytest
import torch

from leanbayes.lab.data import Dataset, Examples
from leanbayes.lab.data.dataset import Scaling
from leanbayes.lab.tables import read_numbers
from research.papers.matrix_normal.vae.folder import VaeFolder
from research.papers.matrix_normal.vae.settings import VaeSettings, latent_shape
from research.papers.matrix_normal.vae.train import evidence_bound, train_vae

torch.set_num_threads(1)


def images(count, seed):
    """Binary images of 4 × 5 pixels: one of two patterns, with noise."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.rand(2, 1, 4, 5, generator=torch.Generator().manual_seed(0)).round()
    chosen = patterns[torch.randint(2, (count,), generator=generator)]
    flipped = torch.rand(chosen.shape, generator=generator) < 0.05
    return Examples((chosen.bool() ^ flipped).to(torch.uint8), None, Scaling())


def dataset():
    train, validation, test = images(120, 1), images(40, 2), images(50, 3)
    return Dataset("patterns", "density", train, test, validation=validation)


def settings(**options):
    given = {"encoder": "mn", "latent": (3, 2), "epochs": 5, "annealing": 2, "batch_size": 32}
    return VaeSettings(**{**given, "hidden": (7, 6), "rate": 3e-3, **options})


class Killed(Exception):
    pass


def killed_after(epochs):
    def tell(row):
        if row["epoch"] + 1 == epochs:
            raise Killed

    return tell


def numbers(folder):
    """Everything but times."""
    result = VaeFolder(folder).result()
    curve = read_numbers(folder / "metrics.csv")
    clocks = {"seconds", "processor_seconds"}
    told = [{k: v for k, v in part.items() if k not in clocks} for part in (result, curve)]
    return told, VaeFolder(folder).load().state_dict()


def assert_same(one, other):
    (ours, weights), (theirs, other_weights) = numbers(one), numbers(other)
    assert ours == theirs
    torch.testing.assert_close(weights, other_weights, rtol=0, atol=0)


@pytest.mark.parametrize("encoder", ["diag", "mn", "mv"])
def test_a_resumed_training_ends_with_the_numbers_of_an_uninterrupted_one(encoder, tmp_path):
    chosen = settings(encoder=encoder, latent=(3, 2) if encoder == "mn" else (6,))
    train_vae(chosen, tmp_path / "whole", dataset=dataset())
    for epochs in (1, 3):  # killed before the state of the epoch is written
        torch.manual_seed(epochs)
        with pytest.raises(Killed):
            train_vae(chosen, tmp_path / "cut", dataset=dataset(), tell=killed_after(epochs))
    train_vae(chosen, tmp_path / "cut", dataset=dataset())
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_a_half_written_checkpoint_costs_an_epoch(tmp_path):
    train_vae(settings(), tmp_path / "whole", dataset=dataset())
    with pytest.raises(Killed):
        train_vae(settings(), tmp_path / "cut", dataset=dataset(), tell=killed_after(4))
    last = VaeFolder(tmp_path / "cut").checkpoints.paths()[-1]
    last.write_bytes(last.read_bytes()[:-1000])
    with pytest.warns(UserWarning, match=r"epoch-00002.ckpt is damaged .*going on from epoch-0000"):
        train_vae(settings(), tmp_path / "cut", dataset=dataset())
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_the_best_weights_stay_and_patience_counts_from_the_whole_weight(tmp_path):
    chosen = settings(epochs=60, annealing=6, patience=3, rate=0.1)
    result = train_vae(chosen, tmp_path, dataset=dataset())
    bounds = read_numbers(tmp_path / "metrics.csv")["validation_bound"]
    best = max(range(len(bounds)), key=lambda epoch: bounds[epoch])
    assert (result["best_epoch"], result["validation_bound"]) == (best, bounds[best])
    assert result["epochs"] == max(best, 6) + 3 + 1 < 60
    model, data = VaeFolder(tmp_path).load(), dataset()
    judged = evidence_bound(model, data.validation, seed=1_000_003)
    assert judged.bound == pytest.approx(bounds[best], rel=1e-6)


def test_a_bound_improves_and_a_finished_training_is_only_read(tmp_path):
    first = train_vae(settings(epochs=40, rate=0.01), tmp_path, dataset=dataset())
    bounds = read_numbers(tmp_path / "metrics.csv")["validation_bound"]
    assert bounds[-1] > bounds[0] + 1
    again = train_vae(settings(epochs=40, rate=0.01), tmp_path, dataset=None, tell=killed_after(1))
    assert again == first


def test_other_settings_are_refused_in_one_sentence(tmp_path):
    with pytest.raises(Killed):
        train_vae(settings(), tmp_path, dataset=dataset(), tell=killed_after(2))
    with pytest.raises(ValueError, match=r"another latent: it was \[3, 2\] and is now \[3, 3\]"):
        train_vae(settings(latent=(3, 3)), tmp_path, dataset=dataset())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"latent": (40,)}, "family 'mn' needs 2 positive numbers"),
        ({"encoder": "mv", "latent": (20, 3)}, "family 'mv' needs 1 positive number"),
        ({"epochs": 2}, "annealing takes 2 epochs, and there are 2; choose fewer"),
    ],
)
def test_wrong_settings_say_what_to_do(options, message):
    with pytest.raises(ValueError, match=message):
        settings(**options)


def test_a_latent_shape_that_is_none():
    with pytest.raises(ValueError, match="write it like 40, or 20x2 for a matrix normal"):
        latent_shape("20,2")


def test_settings_return_from_json():
    assert VaeSettings.from_json(json.loads(json.dumps(settings().to_json()))) == settings()


def test_the_weight_of_the_kl_rises_geometrically_to_one():
    weights = [settings(epochs=20, annealing=10).kl_weight(epoch) for epoch in range(12)]
    assert weights[0] == pytest.approx(1e-3)
    assert weights[5] == pytest.approx(1e-3**0.5)
    assert weights[10:] == [1.0, 1.0]
    assert settings(annealing=0).kl_weight(0) == 1.0


def test_all_families_start_with_the_same_posteriors_and_the_same_decoder():
    x, z = torch.rand(3, 20).round(), torch.randn(2, 6)
    started = []
    for encoder, latent in (("diag", (6,)), ("mn", (3, 2)), ("mv", (6,))):
        model = settings(encoder=encoder, latent=latent).network(20)
        model.reset(torch.Generator().manual_seed(5))
        q = model.posterior(x)
        assert torch.equal(q.variance, torch.ones(3, 6))
        assert q.mean.abs().min() > 0
        started.append((q.mean, q.entropy(), model.decoder(z)))
    for other in started[1:]:
        torch.testing.assert_close(started[0], other)
