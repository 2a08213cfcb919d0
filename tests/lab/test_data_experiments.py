"""The data of the papers' experiments: what facts each keeps."""

import data_files as files
import numpy as np
import pytest
import torch

from leanbayes.lab import data
from leanbayes.lab.data import PadCropFlip
from leanbayes.lab.data.catalogue import SOURCES, check_options

PUBLISHED = {
    "k-tied/mlp": ("mnist", {"scaling": "symmetric", "validation": 10_000}),
    "k-tied/cnn": ("cifar100", {"scaling": "unit", "validation": 10_000, "labels": "fine"}),
    "k-tied/lstm": ("imdb", {"words": 20_000, "length": 80, "validation": 5_000}),
    "k-tied/resnet": ("cifar10", {"scaling": "pixel-mean", "validation": 0}),
    "variance/lenet": ("mnist", {"scaling": "unit", "validation": 0}),
    "variance/vgg-cifar10": ("cifar10", {"scaling": "raw", "validation": 0}),
    "variance/vgg-cifar100": ("cifar100", {"scaling": "raw", "validation": 0, "labels": "coarse"}),
    "matrix-normal/vae": ("mnist-static-binarized", {}),
    "rank1/cifar10": ("cifar10", {"scaling": "cifar-2020", "validation": 0}),
    "rank1/cifar100": ("cifar100", {"scaling": "cifar-2020", "validation": 0}),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_experiments_are_prepared_as_published(name):
    experiment = data.EXPERIMENTS[name]
    assert (experiment.data, dict(experiment.options)) == PUBLISHED[name]
    assert not experiment.note


@pytest.mark.parametrize("name", data.EXPERIMENTS)
def test_experiments_use_options_that_exist(name):
    experiment = data.EXPERIMENTS[name]
    check_options(SOURCES[experiment.data].build, experiment.options, experiment.data)


@pytest.fixture
def cifar(tmp_path, monkeypatch, request):
    rng = np.random.default_rng(request.config.getoption("--seed"))
    images = rng.integers(0, 256, (120, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, 120)
    parts = images[:100], labels[:100], images[100:], labels[100:]
    files.write_cifar_10(tmp_path, "binary folder", *parts)
    files.write_sums(tmp_path)
    monkeypatch.setenv("LEANBAYES_DATA", str(tmp_path))


@pytest.mark.parametrize(
    ("name", "pad", "shared", "black"),
    [
        ("rank1/cifar10", 2, False, (-0.4914 / 0.2023, -0.4822 / 0.1994, -0.4465 / 0.2010)),
        ("variance/vgg-cifar10", 4, True, (0.0, 0.0, 0.0)),
    ],
)
def test_borders_are_black(cifar, name, pad, shared, black):
    dataset, augment = data.load_experiment(name)
    assert isinstance(augment, PadCropFlip)
    assert (augment.pad, augment.shared) == (pad, shared)
    assert augment.fill == pytest.approx(black)
    white = torch.full((500, 3, 32, 32), 255, dtype=torch.uint8)
    x = augment(dataset.scaling(white), torch.Generator().manual_seed(0))
    drawn = dataset.scaling.inverse(x).round()
    assert set(drawn.unique().abs().tolist()) <= {0.0, 255.0}


def test_a_mean_per_pixel_has_no_black(cifar):
    dataset, augment = data.load_experiment("k-tied/resnet")
    assert augment is None
    assert torch.allclose(dataset.train.x.mean(0), torch.zeros(3, 32, 32), atol=1e-6)
    with pytest.raises(ValueError, match=r"no one value for a border; pad by 0\.0"):
        data.augmentation("crop-flip", dataset)


def test_options_of_an_experiment_may_be_changed(cifar):
    dataset, augment = data.load_experiment("matrix-normal/vgg-sparse", validation=20)
    assert len(dataset.validation) == 20
    assert isinstance(augment, data.Flip)
    with pytest.raises(ValueError, match="experiment 'rank1/cifar' is unknown; did you mean"):
        data.load_experiment("rank1/cifar")
    with pytest.raises(ValueError, match="augmentation 'flop' is unknown; did you mean 'flip'"):
        data.augmentation("flop", dataset)
