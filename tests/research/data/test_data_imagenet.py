"""Images that stay on the disk: arrays in the form of ImageNet."""

import numpy as np
import pytest
import torch

from leanbayes.lab import data


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LEANBAYES_DATA", str(tmp_path))
    (tmp_path / "imagenet").mkdir()
    return tmp_path / "imagenet"


def write(folder, part, pixels, labels):
    np.save(folder / f"{part}_images.npy", pixels)
    np.save(folder / f"{part}_labels.npy", labels)


def random_images(rng, count, size=9):
    return rng.integers(0, 256, (count, 3, size, size), dtype=np.uint8), np.arange(count) % 4


def test_pixels_stay_on_the_disk_and_are_scaled_by_known_numbers(folder, rng):
    pixels, labels = random_images(rng, 12)
    write(folder, "train", pixels, labels)
    write(folder, "test", pixels[:4], labels[:4])
    dataset = data.load_dataset("imagenet")
    assert dataset.classes == ("0", "1", "2", "3")
    x, y = dataset.train.take(torch.tensor([5, 2]))
    mean = np.array([0.485, 0.456, 0.406])[:, None, None]
    std = np.array([0.229, 0.224, 0.225])[:, None, None]
    expected = (pixels[[5, 2]] / 255 - mean) / std
    np.testing.assert_allclose(x.numpy(), expected, rtol=1e-5, atol=1e-5)
    assert y.tolist() == [1, 2]
    held = data.load_dataset("imagenet", validation=3)
    assert (len(held.train), len(held.validation), len(held.test)) == (9, 3, 4)
    before = (folder / "train_images.npy").read_bytes()
    dataset.train.stored[0].zero_()  # a copy on write: the file is left alone
    assert (folder / "train_images.npy").read_bytes() == before


@pytest.mark.parametrize(
    ("pixels", "labels"),
    [
        (np.zeros((3, 3, 8, 8)), np.arange(3)),
        (np.zeros((3, 3, 8, 8), np.uint8), np.arange(2)),
        (np.zeros((3, 3, 8), np.uint8), np.arange(3)),
        (np.zeros((3, 3, 8, 8), np.uint8), np.zeros(3)),
    ],
    ids=["floats", "too few labels", "no rows", "no whole numbers"],
)
def test_other_arrays_are_refused(folder, rng, pixels, labels):
    write(folder, "train", *random_images(rng, 3))
    write(folder, "test", pixels, labels)
    with pytest.raises(ValueError, match=r"test_images\.npy has shape .*; write bytes \[images, 3"):
        data.load_dataset("imagenet")


def test_absent_files_are_named(folder, rng):
    write(folder, "train", *random_images(rng, 3))
    with pytest.raises(FileNotFoundError, match=r"test_images\.npy is missing"):
        data.load_dataset("imagenet", download=False)
