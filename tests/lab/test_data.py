"""Data sets by name: search, checksums, downloads, scalings, splits, and your own files."""

import hashlib
import sys

import data_files as files
import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from leanbayes.lab import data
from leanbayes.lab.data import catalogue, mnist
from leanbayes.lab.data.files import File, Form
from leanbayes.lab.data.sources import SOURCES, Source
from research import extensions  # noqa: F401
from research.data.uci import FACTS


@pytest.fixture
def rng(request):
    return np.random.default_rng(request.config.getoption("--seed"))


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder of one's own, and an empty cache; nothing of the machine is seen."""
    root = tmp_path / "own"
    root.mkdir()
    monkeypatch.setenv("LEANBAYES_DATA", str(root))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return root


def write_mnist(folder, rng, count=30, shade=255):
    images = rng.integers(0, shade + 1, (count + 5, 28, 28), dtype=np.uint8)
    labels = rng.integers(0, 10, count + 5)
    files.write_mnist(folder, ".gz", images[:count], labels[:count], images[count:], labels[count:])
    return images[:count]


def offer(monkeypatch, name, *forms, build):
    """Let a data set have these forms."""
    source = Source(name, "classification", "none", "none", forms, build=build)
    monkeypatch.setitem(SOURCES._things, name, source)


# names and options


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("minst", "mnist"), ("fashion", "fashion-mnist"), ("cifar", "cifar10"), ("Boston", "boston")],
)
def test_an_unknown_name_gives_the_nearest(wrong, right):
    with pytest.raises(ValueError, match=f"data set '{wrong}' is unknown; did you mean '{right}"):
        data.load_dataset(wrong)


def test_a_name_may_be_spelt_in_other_ways():
    spellings = ("CIFAR-10", "cifar_10", "Fashion MNIST", "bostonHousing", "mnist_static_binarized")
    expected = ("cifar10", "cifar10", "fashion-mnist", "boston-housing", "mnist-static-binarized")
    assert tuple(catalogue._source(name).name for name in spellings) == expected


def test_an_unknown_option_gives_the_nearest_before_anything_is_read(own):
    with pytest.raises(ValueError, match="option of mnist 'scalling' is unknown; did you mean"):
        data.load_dataset("mnist", scalling="unit")
    with pytest.raises(ValueError, match="option of digits 'labels' is unknown; choose one of"):
        data.load_dataset("digits", labels="fine")
    with pytest.raises(ValueError, match="scaling of images 'symetric' is unknown; did you mean"):
        data.load_dataset("digits", scaling="symetric")


@pytest.mark.parametrize("count", [-1, 1437, 5000])
def test_an_impossible_validation_set_is_refused(count):
    with pytest.raises(ValueError, match="from 1437 training examples; give a number from 0 to"):
        data.load_dataset("digits", validation=count)


def test_no_validation_set():
    assert data.load_dataset("digits", validation=0).validation is None


# digits and scalings


def test_digits_are_those_of_scikit_learn():
    digits = data.load_dataset("digits", scaling="raw")
    parts = (digits.train, digits.validation, digits.test)
    ours = torch.cat([torch.cat([p.x.flatten(1), p.y[:, None]], 1) for p in parts])
    bunch = load_digits()
    theirs = torch.tensor(np.column_stack([bunch.data, bunch.target])).float()
    assert sorted(map(tuple, ours.tolist())) == sorted(map(tuple, theirs.tolist()))
    assert not torch.equal(ours, theirs)  # it was shuffled
    assert digits.license
    assert digits.data_size == 1257


@pytest.mark.parametrize(
    ("scaling", "formula"),
    [
        ("raw", lambda x, train: x),
        ("unit", lambda x, train: x / 255),
        ("symmetric", lambda x, train: 2 * x / 255 - 1),
        ("pixel-mean", lambda x, train: x / 255 - (train / 255).mean(0)),
        (
            "channel",
            lambda x, train: (
                (x - train.mean((0, 2, 3), keepdims=True)) / train.std((0, 2, 3), keepdims=True)
            ),
        ),
        (
            "cifar",
            lambda x, train: (
                (x / 255 - np.reshape([0.4914, 0.4822, 0.4465], (3, 1, 1)))
                / np.reshape([0.2470, 0.2435, 0.2616], (3, 1, 1))
            ),
        ),
        (
            "cifar-2020",
            lambda x, train: (
                (x / 255 - np.reshape([0.4914, 0.4822, 0.4465], (3, 1, 1)))
                / np.reshape([0.2023, 0.1994, 0.2010], (3, 1, 1))
            ),
        ),
    ],
)
def test_scalings_follow_their_formulas(own, rng, scaling, formula):
    images = rng.integers(0, 256, (120, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, 120)
    files.write_cifar_10(
        own, "binary folder", images[:100], labels[:100], images[100:], labels[100:]
    )
    files.write_sums(own)
    cifar = data.load_dataset("cifar10", scaling=scaling, validation=30)
    raw = images.transpose(0, 3, 1, 2).astype(np.float64)
    expected = formula(raw, raw[:70])  # statistics of the 70 training images alone
    for part, rows in ((cifar.train, slice(70)), (cifar.validation, slice(70, 100)),
                       (cifar.test, slice(100, 120))):  # fmt: skip
        np.testing.assert_allclose(part.x.numpy(), expected[rows], rtol=1e-5, atol=1e-5)
        assert part.x.dtype == torch.float32
        index = torch.randperm(len(part))[:7]
        assert torch.equal(part.take(index)[0], part.x[index])
    new = torch.tensor(raw[:3])
    np.testing.assert_allclose(cifar.scaling(new).numpy(), expected[:3], rtol=1e-5, atol=1e-5)
    assert torch.allclose(cifar.scaling.inverse(cifar.scaling(new)), new.float(), atol=1e-3)


def test_pixels_are_exactly_0_and_1_at_their_ends(own, rng):
    write_mnist(own / "mnist", rng)
    files.write_sums(own)
    for scaling, low in (("unit", 0.0), ("symmetric", -1.0)):
        x = data.load_dataset("mnist", scaling=scaling, validation=0).train.x
        assert (float(x.min()), float(x.max())) == (low, 1.0)


# search


def test_the_order_of_search_is_own_folder_system_cache(own, rng, tmp_path, monkeypatch):
    system, cache = tmp_path / "system", tmp_path / "cache" / "leanbayes"
    form = Form(mnist.MNIST[0].files, mnist.MNIST[0].read, ("mnist",), (str(system),))
    offer(monkeypatch, "mnist", form, build=mnist.build_images)
    for folder in (cache / "mnist", system, own / "mnist"):
        write_mnist(folder, rng)
        assert data.listing()[1].where == folder
    second = tmp_path / "second"
    write_mnist(second / "mnist", rng)
    monkeypatch.setenv("LEANBAYES_DATA", f"{second}:{own}")
    assert data.listing()[1].where == second / "mnist"


def test_debian_puts_fashion_mnist_where_it_is_looked_for():
    (form, _) = mnist.FASHION_MNIST
    assert form.system == ("/usr/share/datasets/fashion-mnist",)


def test_a_folder_that_does_not_exist_is_named(monkeypatch):
    monkeypatch.setenv("LEANBAYES_DATA", "/no/such/folder")
    with pytest.raises(FileNotFoundError, match="LEANBAYES_DATA names /no/such/folder, which is"):
        data.load_dataset("mnist")


def test_missing_files_say_where_they_were_looked_for(own, rng):
    with pytest.raises(FileNotFoundError) as error:
        data.load_dataset("kmnist", download=False)
    for part in (str(own), "cache/leanbayes", "kmnist/train-images-idx3-ubyte.gz", "LEANBAYES_DATA",
                 "leanbayes data fetch kmnist"):  # fmt: skip
        assert part in str(error.value)
    assert "\n" not in str(error.value)
    write_mnist(own / "mnist", rng)
    (own / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"mnist/t10k-labels-idx1-ubyte\.gz is missing"):
        data.load_dataset("mnist", download=False)


# checksums


def test_a_wrong_checksum_is_one_sentence(own, rng):
    write_mnist(own / "mnist", rng)  # not the digits of the world
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz has a wrong checksum; del"):
        data.load_dataset("mnist")
    files.write_sums(own)
    data.load_dataset("mnist", validation=0)
    path = own / "mnist" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte\.gz has a wrong checksum"):
        data.load_dataset("mnist", validation=0)


def test_content_may_be_packed_anew(own, rng, monkeypatch):
    content = files.idx(rng.integers(0, 10, 20))
    digest = f"content-sha256:{hashlib.sha256(content).hexdigest()}"
    for suffix in ("", ".gz", ".xz"):
        path = files.write(own / f"labels{suffix}", content)
        form = Form((File(path.name, ("md5:0", digest)),), lambda paths: None)
        offer(monkeypatch, "toy", form, build=lambda content: None)
        assert [entry.state for entry in data.check("toy")] == ["right"]
        files.write(path, content[:-1] + bytes([content[-1] ^ 1]))
        assert [entry.state for entry in data.check("toy")] == ["wrong"]


def test_the_list_has_every_data_set_and_its_state(own, rng):
    write_mnist(own / "mnist", rng)
    entries = {entry.name: entry for entry in data.listing()}
    assert tuple(entries) == data.names()
    assert len(entries) == 19
    assert all(entry.license and entry.source for entry in entries.values())
    assert entries["digits"].state == "embedded"
    assert entries["kmnist"].state == "absent"
    assert entries["kmnist"].size == 21_240_888
    assert entries["mnist"].state == "not checked"
    assert entries["mnist"].where == own / "mnist"
    assert entries["mnist"].size == sum(p.stat().st_size for p in (own / "mnist").iterdir())
    assert {e.name: e.state for e in data.listing(checksums=True)}["mnist"] == "wrong"
    files.write_sums(own)
    assert {e.name: e.state for e in data.listing(checksums=True)}["mnist"] == "right"
    assert {f.path.name for f in data.check()} == {p.name for p in (own / "mnist").iterdir()}
    with pytest.raises(FileNotFoundError, match="kmnist was not found"):
        data.check("kmnist")


# optional packages


@pytest.mark.parametrize(
    ("module", "action", "package"),
    [
        ("pooch", lambda own, rng: data.fetch("mnist"), "pooch"),
        ("PIL.Image", lambda own, rng: data.load_dataset("cifar10"), "pillow"),
        ("sklearn.datasets", lambda own, rng: data.load_dataset("digits"), "scikit-learn"),
    ],
)
def test_optional_packages_are_named_when_they_are_missing(
    own, rng, monkeypatch, module, action, package
):
    images, labels = np.zeros((100, 32, 32, 3), np.uint8), np.zeros(100, int)
    files.write_cifar_10(own, "webp", images, labels, images[:20], labels[:20])
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"needs {package}; run: pip install 'leanbayes\[lab\]'"):
        action(own, rng)


# UCI


@pytest.fixture
def energy(own, rng):
    table = rng.normal(size=(768, 9)) * 10 + np.arange(9)
    table[:, 3] = 0.1
    text = "\n".join("\t ".join(map(repr, map(float, row))) for row in table)
    files.write(own / "uci" / "energy" / "data.txt", text.encode())
    files.write_sums(own)
    return table


def test_regression_sets_are_scaled_by_their_training_rows(energy):
    dataset = data.load_dataset("energy", split=3, validation=50)
    assert (len(dataset.train), len(dataset.validation), len(dataset.test)) == (641, 50, 77)
    assert dataset.train.y.shape == (641, 1)
    varying = [0, 1, 2, 4, 5, 6, 7]
    assert torch.allclose(dataset.train.x.mean(0), torch.zeros(8), atol=1e-5)
    assert torch.allclose(dataset.train.x[:, varying].std(0, correction=0), torch.ones(7))
    assert torch.equal(dataset.train.x[:, 3], torch.zeros(641))  # constant, and not divided by 0
    raw = data.load_dataset("energy", split=3, validation=50, scaling="raw", target_scaling="raw")
    for part, raw_part in ((dataset.train, raw.train), (dataset.test, raw.test)):
        assert torch.allclose(dataset.scaling.inverse(part.x), raw_part.x, atol=1e-4)
        assert torch.allclose(dataset.target_scaling.inverse(part.y), raw_part.y, atol=1e-4)
    rows = torch.cat([torch.cat([p.x, p.y], 1) for p in (raw.train, raw.validation, raw.test)])
    assert torch.equal(rows.sort(0).values, torch.tensor(energy).float().sort(0).values)


def test_splits_differ_and_stay_the_same(energy):
    tests = [data.load_dataset("energy", split=i).test.x for i in (0, 1, 0)]
    assert torch.equal(tests[0], tests[2])
    assert not torch.equal(tests[0], tests[1])
    with pytest.raises(ValueError, match="energy has no split 20; its splits are 0 to 19"):
        data.load_dataset("energy", split=20)


def test_a_regression_file_of_another_shape_is_refused(own, energy):
    path = own / "uci" / "energy" / "data.txt"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]))
    files.write_sums(own)
    with pytest.raises(ValueError, match=r"energy has 768 rows of 9 numbers, and the file has"):
        data.load_dataset("energy")
    path.write_text("1 2 3\n4 five 6\n")
    files.write_sums(own)
    with pytest.raises(ValueError, match="truncated or damaged"):
        data.load_dataset("energy")


def test_every_regression_set_has_its_facts():
    assert set(FACTS) <= set(data.names())
    assert all(facts.columns - facts.features in (1, 2) for facts in FACTS.values())
