"""The real data sets, where ``LEANBAYES_DATA`` names them: what is published about each."""

import hashlib
import os

import numpy as np
import pytest
import torch

from leanbayes.lab import data
from leanbayes.lab.data.search import find
from leanbayes.lab.data.sources import SOURCES
from research.data.uci import FACTS, split_rows

pytestmark = pytest.mark.skipif(
    "LEANBAYES_DATA" not in os.environ, reason="LEANBAYES_DATA names no folder with real data"
)


def present(name):
    copy = find(SOURCES[name])
    if copy is None and SOURCES[name].forms:
        pytest.skip(f"{name} is not on this machine")
    return copy


def load(name, **options):
    present(name)
    return data.load_dataset(name, download=False, **options)


def pixels(*parts):
    return torch.cat([part.stored for part in parts if part is not None])


def statistics(stored):
    """Mean and standard deviation of each channel, of pixels in [0, 1]."""
    channels = stored.transpose(0, 1).flatten(1)
    mean = torch.stack([c.double().mean() for c in channels]) / 255
    std = torch.stack([c.double().std(correction=0) for c in channels]) / 255
    return [round(v, 4) for v in mean.tolist()], [round(v, 4) for v in std.tolist()]


def counts(*parts):
    return torch.cat([part.y for part in parts if part is not None]).bincount().tolist()


@pytest.mark.parametrize("name", data.names())
def test_no_file_has_a_wrong_checksum(name):
    present(name)
    assert {state.state for state in data.check(name)} <= {"right"}


IDX = {
    "mnist": (
        [0.1307],
        [0.3081],
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    ),
    "fashion-mnist": ([0.2860], [0.3530], [6000] * 10, [1000] * 10),
    "kmnist": (None, None, [6000] * 10, [1000] * 10),
}


@pytest.mark.parametrize("name", IDX)
def test_idx_sets_have_their_published_statistics(name):
    mean, std, train_counts, test_counts = IDX[name]
    dataset = load(name)
    assert (len(dataset.train), len(dataset.validation), len(dataset.test)) == (
        50_000,
        10_000,
        10_000,
    )
    assert dataset.input_shape == (1, 28, 28)
    if mean is not None:
        assert statistics(pixels(dataset.train, dataset.validation)) == (mean, std)
    assert counts(dataset.train, dataset.validation) == train_counts
    assert counts(dataset.test) == test_counts
    assert len(dataset.classes) == 10


def test_binarized_mnist_has_its_published_means():
    dataset = load("mnist-static-binarized")
    parts = (dataset.train, dataset.validation, dataset.test)
    assert [len(part) for part in parts] == [50_000, 10_000, 10_000]
    means = [round(float(part.stored.double().mean()), 5) for part in parts]
    assert means == [0.13056, 0.13113, 0.13251]
    assert set(dataset.train.stored.unique().tolist()) == {0, 1}


def array_digest(stored):
    """Of bytes in the order examples, rows, columns, channels."""
    return hashlib.sha256(stored.permute(0, 2, 3, 1).contiguous().numpy().tobytes()).hexdigest()


def test_cifar_10_is_bit_exact():
    cifar = load("cifar10", validation=10_000)
    train = pixels(cifar.train, cifar.validation)
    assert array_digest(train) == "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a"
    assert array_digest(cifar.test.stored) == (
        "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04"
    )
    assert statistics(train) == ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])
    assert counts(cifar.train, cifar.validation) == [5000] * 10
    assert counts(cifar.test) == [1000] * 10
    assert cifar.test.y[:8].tolist() == [3, 8, 8, 0, 6, 6, 1, 6]  # cat, ship, ship, airplane, …


@pytest.mark.parametrize(("labels", "classes"), [("fine", 100), ("coarse", 20)])
def test_cifar_100_has_its_published_statistics(labels, classes):
    cifar = load("cifar100", labels=labels)
    train = pixels(cifar.train, cifar.validation)
    assert statistics(train) == ([0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762])
    assert statistics(cifar.test.stored)[0] == [0.5088, 0.4874, 0.4419]
    assert counts(cifar.train, cifar.validation) == [50_000 // classes] * classes
    assert counts(cifar.test) == [10_000 // classes] * classes
    assert len(cifar.classes) == classes
    assert min(counts(cifar.validation)) > 0.5 * 10_000 / classes  # no class is missing


CLASSIFIED = sorted(
    name for name, source in SOURCES.items() if source.task in ("classification", "sequence")
)


NO_FILES = {"imagenet", "ehr-cohort", "mimic-iii", "mimic-iii-demo"}
"""Data sets whose files are too large for a test, or that are generated or not public."""


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("name", [name for name in CLASSIFIED if name not in NO_FILES])
def test_the_first_examples_have_all_classes_in_proportion(name, part):
    """As many as a study takes for a quick look; of files sorted by class they had a fifth."""
    examples = getattr(load(name), part)
    shares = torch.bincount(examples.y) / len(examples)
    taken = examples.y[: min(2000, len(examples) // 2)]
    expected = len(taken) * shares
    found = torch.bincount(taken, minlength=len(shares))
    assert ((found - expected).abs() <= 5 * expected.sqrt()).all()


def test_imdb_has_the_words_of_keras():
    imdb = load("imdb")
    assert (len(imdb.train), len(imdb.validation), len(imdb.test)) == (20_000, 5_000, 25_000)
    assert counts(imdb.train, imdb.validation) == counts(imdb.test) == [12_500, 12_500]
    assert imdb.input_shape == (80,)
    for part in (imdb.train, imdb.validation, imdb.test):
        assert int(part.x.min()) == 0
        assert int(part.x.max()) == 19_999
        assert not (part.x == 3).any()  # the index that Keras leaves unused
    frequent = imdb.train.x[imdb.train.x > 2].bincount().argsort(descending=True)
    assert int(frequent[0]) == 4  # the most frequent word of all has rank 1
    if "Keras" not in imdb.preprocessing:
        assert imdb.preprocessing.startswith("88582 words")  # as Keras' Tokenizer counts them


UCI = {
    "boston-housing": (22.5328, 9.1880),
    "concrete": (35.8180, 16.6976),
    "energy": (22.3072, 10.0836),
    "naval-propulsion-plant": (0.9750, 0.0147),
    "power-plant": (454.3650, 17.0661),
    "protein-tertiary-structure": (7.7485, 6.1182),
    "wine-quality-red": (5.6360, 0.8073),
}


@pytest.mark.parametrize("name", UCI)
def test_regression_sets_have_their_published_targets(name):
    dataset = load(name, target_scaling="raw")
    y = torch.cat([dataset.train.y, dataset.test.y]).double()
    mean, std = UCI[name]
    assert abs(float(y.mean()) - mean) < 1e-4
    assert abs(float(y.std(correction=0)) - std) < 1e-4
    assert dataset.input_shape == (FACTS[name].features,)
    assert dataset.train.x.isfinite().all()


@pytest.mark.parametrize("name", UCI)
def test_splits_are_those_of_the_published_index_files(name):
    folder, facts = present(name).folder, FACTS[name]
    if not (folder / "index_train_0.txt").is_file():
        pytest.skip("the index files are not here")
    assert int((folder / "n_splits.txt").read_text()) == facts.splits
    for split in range(facts.splits):
        for part, rows in zip(("train", "test"), split_rows(facts.rows, split), strict=True):
            published = np.loadtxt(folder / f"index_{part}_{split}.txt").astype(int)
            np.testing.assert_array_equal(rows, published)
