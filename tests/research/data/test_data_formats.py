"""Every file format of the data sets, on small files that the tests write."""

import data_files as files
import numpy as np
import pytest
import torch

from leanbayes.lab import data
from leanbayes.lab.data.images import read_idx
from research.data.binarized_mnist import read_amat
from research.data.imdb import encode


@pytest.fixture
def rng(request):
    return np.random.default_rng(request.config.getoption("--seed"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    root = tmp_path / "data"
    root.mkdir()
    monkeypatch.setenv("LEANBAYES_DATA", str(root))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return root


def load(folder, name, **options):
    """Load generated files: their own SHA256SUMS says that they are right."""
    files.write_sums(folder)
    return data.load_dataset(name, download=False, **options)


def bytes_of(rng, *shape):
    return rng.integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("shape", [(7,), (3, 4, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files_are_read(tmp_path, rng, shape, suffix):
    array = bytes_of(rng, *shape)
    path = files.write(tmp_path / f"file{suffix}", files.idx(array))
    np.testing.assert_array_equal(read_idx(path), array)


def test_a_foreign_idx_file_is_refused(tmp_path, rng):
    content = files.idx(bytes_of(rng, 5))
    path = files.write(tmp_path / "floats", content[:2] + b"\x0d" + content[3:])
    with pytest.raises(ValueError, match=r"floats is truncated or damaged .*not an idx file"):
        read_idx(path)


@pytest.mark.parametrize("suffix", ["", ".xz"])
def test_amat_files_are_read(tmp_path, rng, suffix):
    images = rng.integers(0, 2, (6, 28, 28))
    path = files.write(tmp_path / f"b.amat{suffix}", files.amat(images))
    np.testing.assert_array_equal(read_amat(path), images)


def test_an_amat_file_with_other_characters_is_refused(tmp_path, rng):
    content = files.amat(rng.integers(0, 2, (2, 28, 28)))
    for place, character in ((4, "2"), (5, ","), (1567, " ")):
        broken = bytearray(content)
        broken[place] = ord(character)
        with pytest.raises(ValueError, match="784 characters 0 or 1"):
            read_amat(files.write(tmp_path / "b.amat", bytes(broken)))


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
@pytest.mark.parametrize("kept", [0, 3, 0.5, 0.99])
def test_truncated_files_say_so_in_one_sentence(tmp_path, rng, suffix, kept):
    whole = files.write(
        tmp_path / f"whole{suffix}", files.idx(bytes_of(rng, 50, 9, 9))
    ).read_bytes()
    path = tmp_path / f"cut{suffix}"
    path.write_bytes(whole[: kept if isinstance(kept, int) else int(kept * len(whole))])
    with pytest.raises(ValueError, match=f"cut{suffix} is truncated or damaged") as error:
        read_idx(path)
    assert "fetch it again" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("place", ["mnist", "MNIST/raw"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_is_found_where_its_packers_put_it(folder, rng, place, suffix):
    train, test = bytes_of(rng, 30, 28, 28), bytes_of(rng, 8, 28, 28)
    labels, test_labels = rng.integers(0, 10, 30), rng.integers(0, 10, 8)
    files.write_mnist(folder / place, suffix, train, labels, test, test_labels)
    mnist = load(folder, "mnist", validation=10, scaling="raw")
    assert (len(mnist.train), len(mnist.validation), len(mnist.test)) == (20, 10, 8)
    assert torch.equal(mnist.train.x, torch.tensor(train[:20, None]).float())
    assert torch.equal(mnist.validation.x, torch.tensor(train[20:, None]).float())
    assert torch.equal(mnist.validation.y, torch.tensor(labels[20:]))
    assert torch.equal(mnist.test.y, torch.tensor(test_labels))
    assert mnist.train.y.dtype == torch.int64


def test_images_and_labels_must_fit(folder, rng):
    images = bytes_of(rng, 6, 28, 28)
    files.write_mnist(folder / "mnist", ".gz", images, np.zeros(5), images, np.zeros(6))
    with pytest.raises(ValueError, match="these are not images with their labels"):
        load(folder, "mnist", validation=0)


def test_binarized_mnist_keeps_its_three_parts(folder, rng):
    parts = {name: rng.integers(0, 2, (n, 28, 28)) for name, n in
             (("train", 9), ("valid", 4), ("test", 5))}  # fmt: skip
    for name, images in parts.items():
        path = folder / "binarized-mnist" / f"binarized_mnist_{name}.amat.xz"
        files.write(path, files.amat(images))
    dataset = load(folder, "mnist-static-binarized")
    assert dataset.task == "density"
    for examples, name in ((dataset.train, "train"), (dataset.validation, "valid"),
                           (dataset.test, "test")):  # fmt: skip
        assert torch.equal(examples.x, torch.tensor(parts[name])[:, None].float())
        assert torch.equal(examples.y, examples.x)


@pytest.mark.parametrize("form", ["webp", "binary folder", "binary archive"])
def test_cifar_10_is_the_same_in_every_form(folder, rng, form):
    train, test = bytes_of(rng, 100, 32, 32, 3), bytes_of(rng, 20, 32, 32, 3)
    labels, test_labels = rng.integers(0, 10, 100), rng.integers(0, 10, 20)
    files.write_cifar_10(folder, form, train, labels, test, test_labels)
    cifar = load(folder, "cifar10", scaling="raw", validation=40)
    assert torch.equal(cifar.train.x, torch.tensor(train[:60]).permute(0, 3, 1, 2).float())
    assert torch.equal(cifar.validation.y, torch.tensor(labels[60:]))
    assert torch.equal(cifar.test.x, torch.tensor(test).permute(0, 3, 1, 2).float())
    assert torch.equal(cifar.test.y, torch.tensor(test_labels))
    assert cifar.classes == tuple(files.CIFAR_10_CLASSES)


@pytest.mark.parametrize("labels", ["fine", "coarse"])
@pytest.mark.parametrize("form", ["webp", "binary folder", "binary archive"])
def test_cifar_100_is_the_same_in_every_form_but_for_its_order(folder, rng, form, labels):
    train, test = bytes_of(rng, 100, 32, 32, 3), bytes_of(rng, 20, 32, 32, 3)
    fine = np.repeat(np.arange(5), 20), np.repeat(np.arange(5), 4)
    coarse = np.array([2, 0, 1, 1, 2])[fine[0]], np.array([2, 0, 1, 1, 2])[fine[1]]
    names = {"fine": list("abcde"), "coarse": ["x", "y", "z"]}
    files.write_cifar_100(folder, form, train, test, fine, coarse, names["fine"], names["coarse"])
    cifar = load(folder, "cifar100", scaling="raw", validation=0, labels=labels)
    expected = torch.tensor({"fine": fine, "coarse": coarse}[labels][0])
    pixels = torch.tensor(train).permute(0, 3, 1, 2).float()
    order = (cifar.train.x[:, None, 0, 0] == pixels[None, :, 0, 0]).all(-1).float().argmax(1)
    assert order.sort().values.tolist() == list(range(100))
    assert torch.equal(cifar.train.x, pixels[order])
    assert torch.equal(cifar.train.y, expected[order])
    tested = torch.tensor({"fine": fine, "coarse": coarse}[labels][1])
    test_pixels = torch.tensor(test).permute(0, 3, 1, 2).float()
    place = (cifar.test.x[:, None, 0, 0] == test_pixels[None, :, 0, 0]).all(-1).float().argmax(1)
    assert place.sort().values.tolist() == list(range(len(test)))
    assert torch.equal(cifar.test.x, test_pixels[place])
    assert torch.equal(cifar.test.y, tested[place])
    assert torch.equal(place, torch.arange(len(test))) == (form != "webp")
    assert cifar.classes == tuple(names[labels])
    assert torch.equal(order, torch.arange(100)) == (form != "webp")
    assert ("permuted" in cifar.preprocessing) == (form == "webp")


def test_every_slice_of_sorted_files_has_all_classes(folder, rng):
    train, test = bytes_of(rng, 200, 32, 32, 3), bytes_of(rng, 40, 32, 32, 3)
    fine = np.repeat(np.arange(4), 50), np.repeat(np.arange(4), 10)
    files.write_cifar_100(folder, "webp", train, test, fine, fine, list("abcd"), list("ABCD"))
    cifar = load(folder, "cifar100", validation=50)
    assert set(cifar.validation.y.tolist()) == set(cifar.train.y.tolist()) == {0, 1, 2, 3}
    assert set(cifar.test.y[:20].tolist()) == {0, 1, 2, 3}


def test_a_damaged_image_says_which_file(folder, rng):
    labels = rng.integers(0, 10, 100), rng.integers(0, 10, 20)
    images = bytes_of(rng, 100, 32, 32, 3), bytes_of(rng, 20, 32, 32, 3)
    files.write_cifar_10(folder, "webp", images[0], labels[0], images[1], labels[1])
    path = folder / "cifar-10" / "train" / "042.webp"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"042\.webp is truncated or damaged"):
        load(folder, "cifar10", validation=0)


# IMDB

REVIEWS = {
    "train": [
        ("A great, GREAT film!<br /><br />It's great.", 1),
        ("the the the film \u0085 was not the one", 1),
        ("bad", 0),
        ("the worst film of the year; the end", 0),
    ],
    "test": [("an unseen great film", 1), ("the unseen", 0), ("", 0)],
}


def keras(reviews, words, length):
    """Keras' Tokenizer, load_data and pad_sequences, one review after the other."""
    drop = '!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n'
    tokens = {
        split: [
            [w for w in "".join(" " if c in drop else c for c in t.lower()).split(" ") if w]
            for t, _ in rows
        ]
        for split, rows in reviews.items()
    }
    counts = {}
    for row in tokens["train"]:
        for word in row:
            counts[word] = counts.get(word, 0) + 1
    ranks = {w: i + 1 for i, (w, _) in enumerate(sorted(counts.items(), key=lambda p: -p[1]))}
    generator, result = np.random.RandomState(113), {}
    for split in ("train", "test"):
        rows = [[ranks[w] for w in row if w in ranks] for row in tokens[split]]
        order = np.arange(len(rows))
        generator.shuffle(order)
        rows = [[1] + [r + 3 for r in rows[i]] for i in order]
        rows = [[w if w < words else 2 for w in row] for row in rows]
        rows = [[0] * (length - len(row)) + row[-length:] for row in rows]
        result[split] = rows, [reviews[split][i][1] for i in order]
    return result


@pytest.mark.parametrize("form", ["json lines", "archive", "folder"])
@pytest.mark.parametrize(("words", "length"), [(20_000, 80), (7, 5), (5, 1)])
def test_imdb_follows_keras_from_the_texts(folder, form, words, length):
    files.write_imdb(folder, form, REVIEWS)
    imdb = load(folder, "imdb", words=words, length=length, validation=1)
    expected = keras(REVIEWS, words, length)
    x, y = expected["train"]
    assert imdb.train.x.tolist() == x[:-1]
    assert imdb.validation.x.tolist() == x[-1:]
    assert imdb.train.y.tolist() + imdb.validation.y.tolist() == y
    assert (imdb.test.x.tolist(), imdb.test.y.tolist()) == expected["test"]
    assert imdb.train.x.dtype == torch.int64
    assert imdb.classes == ("negative", "positive")


def test_the_end_of_a_review_is_kept_and_its_start_marked():
    rows = [[], [1], [1, 2, 3], [1, 2, 3, 4, 5]]
    indices = encode(rows, words=100, length=4)
    assert indices.tolist() == [[0, 0, 0, 1], [0, 0, 1, 4], [1, 4, 5, 6], [5, 6, 7, 8]]


def test_a_damaged_archive_of_reviews_says_so(folder):
    files.write_imdb(folder, "archive", REVIEWS)
    path = folder / "aclImdb_v1.tar.gz"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"aclImdb_v1\.tar\.gz is truncated or damaged"):
        load(folder, "imdb", validation=1)
