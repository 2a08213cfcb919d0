"""Downloads: mirrors, checksums, and what is said when they fail; no network is needed."""

import hashlib
import shutil
from pathlib import Path

import data_files as files
import numpy as np
import pooch
import pytest

from leanbayes.lab import data
from leanbayes.lab.data import mnist
from leanbayes.lab.data.files import File, Form
from leanbayes.lab.data.sources import SOURCES, Source
from research import extensions  # noqa: F401

NAMES = [file.path for file in mnist.MNIST[0].files]


class Shop:
    """Files at the address of a folder, and a downloader that copies them from there."""

    def __init__(self, folder, cache, rng):
        images = rng.integers(0, 256, (35, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, 35)
        files.write_mnist(folder, ".gz", images[:30], labels[:30], images[30:], labels[30:])
        self.folder, self.cache, self.asked = folder, cache / "leanbayes", []
        self.address = f"file://{folder}"
        self.digests = {n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in NAMES}

    def copy(self, address, output, _=None):
        self.asked.append(address)
        place = Path(address.removeprefix("file://"))
        if not place.exists():
            raise OSError(f"{address} does not answer")
        shutil.copy(place, output)

    def form(self, *mirrors, folder="mnist"):
        tables = tuple(
            File(n, (f"sha256:{self.digests[n]}",), tuple(f"{m}/{n}" for m in mirrors))
            for n in NAMES
        )
        return Form(tables, mnist.MNIST[0].read, (folder,))


@pytest.fixture
def shop(tmp_path, monkeypatch, request):
    monkeypatch.delenv("LEANBAYES_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(request.config.getoption("--seed"))
    return Shop(tmp_path / "shop", tmp_path / "cache", rng)


@pytest.fixture
def offer(monkeypatch):
    def forms(*forms):
        source = Source("mnist", "classification", "none", "none", forms, build=mnist.build_images)
        monkeypatch.setitem(SOURCES._things, "mnist", source)

    return forms


def test_fetch_puts_checked_files_into_the_cache(shop, offer):
    offer(shop.form(shop.address))
    copy = data.fetch("mnist", downloader=shop.copy)
    assert copy.folder == shop.cache / "mnist"
    assert len(shop.asked) == 4
    assert {state.state for state in data.check("mnist")} == {"right"}
    assert len(data.load_dataset("mnist", download=False, validation=10).train) == 20
    data.fetch("mnist", downloader=shop.copy)
    assert len(shop.asked) == 4  # what is there is not asked for again


def test_load_downloads_what_is_nowhere(shop, offer, monkeypatch):
    offer(shop.form(shop.address))
    with pytest.raises(FileNotFoundError, match="mnist was not found"):
        data.load_dataset("mnist", download=False)
    monkeypatch.setattr(pooch.core, "choose_downloader", lambda *_, **__: shop.copy)
    assert len(data.load_dataset("mnist", validation=10).train) == 20


def test_the_next_mirror_is_asked_when_one_does_not_answer(shop, offer):
    offer(shop.form("file:///nowhere", shop.address))
    data.fetch("mnist", downloader=shop.copy)
    assert len(shop.asked) == 8


def test_another_form_is_asked_for_when_no_mirror_answers(shop, offer):
    offer(shop.form("file:///nowhere"), shop.form(shop.address, folder="MNIST/raw"))
    assert data.fetch("mnist", downloader=shop.copy).folder == shop.cache / "MNIST/raw"


def test_a_wrong_download_never_reaches_the_cache(shop, offer):
    offer(shop.form(shop.address))
    (shop.folder / "t10k-images-idx3-ubyte.gz").write_bytes(b"something else")
    with pytest.raises(ConnectionError, match="mnist could not be downloaded") as error:
        data.fetch("mnist", downloader=shop.copy)
    assert "t10k-images-idx3-ubyte.gz" in str(error.value)
    assert str(shop.cache / "mnist") in str(error.value)
    assert "\n" not in str(error.value)
    assert not (shop.cache / "mnist" / "t10k-images-idx3-ubyte.gz").exists()


def test_a_data_set_without_an_address_says_so(shop, offer):
    offer(Form((File("a.bin"),), lambda paths: None))
    with pytest.raises(FileNotFoundError, match="mnist has no address to download it from"):
        data.fetch("mnist", downloader=shop.copy)


WITHOUT_ADDRESS = {"digits", "imagenet", *SOURCES.checkout_only}
"""Embedded or generated; or folders of tables, which PhysioNet gives to those who sign for them."""


def test_every_address_has_a_digest_and_belongs_to_a_canonical_file():
    for source in SOURCES.values():
        downloadable = [form for form in source.forms if form.downloadable]
        assert downloadable or source.name in WITHOUT_ADDRESS
        for file in (file for form in downloadable for file in form.files):
            assert file.digests
            assert file.size > 0
            for digest in file.digests:
                kind, value = digest.split(":")
                assert len(bytes.fromhex(value)) == {"md5": 16}.get(kind, 32)
            assert all(m.startswith("http") and m.endswith(file.path) for m in file.mirrors)
