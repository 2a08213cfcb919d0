"""Small files that would become large: refused in one sentence, and soon."""

import gzip
import io
import lzma
import os
import pickle
import tarfile
import time
import tracemalloc
import zipfile
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
import torch

from leanbayes.lab.checkpoints import read_checkpoint
from leanbayes.lab.data import files, load_dataset
from leanbayes.lab.data.images import read_idx
from leanbayes.lab.predictions import _read_npz
from leanbayes.lab.recipe_files import parse_yaml, read_recipe
from research.data import binarized_mnist, formats


@contextmanager
def refused(phrase, seconds=5.0, size=2**27):
    """One sentence with a phrase in it, soon, and in little memory."""
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(ValueError, match=phrase) as caught:
            yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert time.process_time() - start < seconds
    assert peak < size


def nested(depth=40, width=10):
    """A list of ten lists of ten lists of …, all of one depth the same list."""
    values = []
    for _ in range(depth):
        values = [values] * width
    return values


@pytest.fixture
def small_limit(monkeypatch):
    """A megabyte, so that a test need not unpack 256."""
    monkeypatch.setattr(files, "UNPACKED", 2**20)


@pytest.mark.tried(
    "Files",
    what="3 MB of gz or less of xz that unpack to gigabytes",
    holds="refused at 256 MB, or at 100 times the size of the file if that is more",
)
@pytest.mark.parametrize("packer", [gzip, lzma], ids=["gz", "xz"])
@pytest.mark.usefixtures("small_limit")
def test_a_packed_file_that_unpacks_to_too_much(packer, tmp_path):
    path = tmp_path / f"train-images.{'gz' if packer is gzip else 'xz'}"
    path.write_bytes(packer.compress(bytes(20 * 2**20)))
    with refused("unpacks to more than"):
        read_idx(path)
    with refused("unpacks to more than"):
        binarized_mnist.read_amat(path)
    assert files._digest(path, "content-sha256") == ""


def tar_of(size):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for number in range(4):
            member = tarfile.TarInfo(f"a/train/pos/{number}_1.txt")
            member.size = size // 4
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    return content.getvalue()


def long_name(size):
    """The name of the first member is that long; tarfile would read it at once."""
    head = tarfile.TarInfo("x")
    head.size, head.type = size, tarfile.GNUTYPE_LONGNAME
    return gzip.compress(head.tobuf(tarfile.GNU_FORMAT) + bytes(size))


def sparse(size):
    """A member of a few bytes that says it is full of holes."""
    header = bytearray(tarfile.TarInfo("a/train/pos/0_1.txt").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[386:410] = b"%011o\0%011o\0" % (size, 0)
    header[483:495] = b"%011o\0" % size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return gzip.compress(bytes(header) + bytes(1024))


@pytest.mark.tried(
    "Files",
    what="archives whose members, names or holes are larger than they look",
    holds="refused before they are unpacked",
)
@pytest.mark.parametrize("make", [tar_of, long_name, sparse])
@pytest.mark.usefixtures("small_limit")
def test_an_archive_that_unpacks_to_too_much(make, tmp_path):
    path = tmp_path / "aclImdb_v1.tar.gz"
    path.write_bytes(make(40 * 2**20))
    with refused("unpacks to more than"):
        list(formats.archive_members(path))


@pytest.mark.tried(
    "Files",
    what="an NPZ file of 40 kB that holds 40 MB of zeros, or says it holds exabytes",
    holds="refused by what its table of contents says",
)
@pytest.mark.usefixtures("small_limit")
def test_an_npz_file_that_unpacks_to_too_much(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.zeros(5 * 2**20), y=np.zeros(3))
    for read in (lambda: load_dataset(str(path)), lambda: _read_npz(path)):
        with refused("unpacks to more than"):
            read()
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        content, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**12)}
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", content.getvalue())
    with refused("Unable to allocate", size=10**20):  # numpy asks, and is given nothing
        load_dataset(str(path))


def test_honest_packed_data_are_read(tmp_path):
    noise = np.random.default_rng(0).integers(256, size=3 * 2**20, dtype=np.uint8).tobytes()
    path = tmp_path / "data.gz"
    path.write_bytes(gzip.compress(noise))
    assert formats.read_bytes(path) == noise
    assert files.opened(path).read(10) == noise[:10]


@pytest.mark.usefixtures("small_limit")
def test_a_large_file_may_unpack_to_a_hundred_times_its_size(tmp_path):
    half = np.random.default_rng(0).integers(256, size=2**18, dtype=np.uint8).tobytes()
    content = half + bytes(2**22)
    path = tmp_path / "data.gz"
    path.write_bytes(gzip.compress(content))
    assert formats.read_bytes(path) == content


def test_a_picture_of_gigapixels(tmp_path):
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "000.png"
    image.new("1", (32, 32 * 200_000)).save(path)
    with refused("truncated or damaged"):
        formats.read_column_of_images(path)


@pytest.mark.tried(
    "Files",
    what="a checkpoint of lists that hold one list ten times, forty levels deep",
    holds="refused: its values are counted before anybody walks through them",
)
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: {"state_dict": v}, lambda v: (v, [v])])
def test_a_pickle_of_nested_lists(wrap, tmp_path):
    path = tmp_path / "epoch-00001.ckpt"
    torch.save(wrap(nested()), path)
    with refused("more than 10000000 values"):
        read_checkpoint(path)
    path.write_bytes(pickle.dumps(wrap(nested()), 2))
    with refused("not a checkpoint that was saved here"):
        read_checkpoint(path)


def from_the_top():
    lists = [[] for _ in range(40)]
    for outer, inner in pairwise(lists):
        outer.extend([inner] * 10)
    return lists


def endless():
    values = {"state_dict": []}
    values["state_dict"].extend([values] * 2)
    return values


@pytest.mark.parametrize("values", [from_the_top(), endless()])
def test_a_pickle_that_has_no_end(values, tmp_path):
    path = tmp_path / "epoch-00001.ckpt"
    torch.save(values, path)
    with refused("more than"):
        read_checkpoint(path)


@pytest.mark.parametrize("name", ["builtins\nbytearray", "torch\nFloatTensor"])
def test_a_pickle_that_asks_for_memory(name, tmp_path):
    path = tmp_path / "epoch-00001.ckpt"
    with zipfile.ZipFile(path, "w") as archive:
        pickled = b"\x80\x02c" + name.encode() + b"\nJ\xff\xff\xff\x7f\x85R."
        archive.writestr("a/data.pkl", pickled)
    with refused("of any size"):
        read_checkpoint(path)


def test_a_packed_checkpoint(tmp_path):
    path = tmp_path / "epoch-00001.ckpt"
    torch.save({"a": torch.zeros(100_000)}, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with refused("unpacks to more than its size"):
        read_checkpoint(path)


def test_a_checkpoint_is_read(tmp_path):
    shared = (0.9, 0.999)
    state = {"a": torch.arange(3), "groups": [{"betas": shared} for _ in range(100)]}
    path = tmp_path / "epoch-00001.ckpt"
    torch.save(state, path)
    read = read_checkpoint(path)
    assert torch.equal(read["a"], state["a"])
    assert read["groups"] == state["groups"]


class _Command:
    def __reduce__(self):
        return os.system, ("touch ran",)


def test_a_checkpoint_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": _Command()}, tmp_path / "epoch-00001.ckpt")
    with pytest.raises(pickle.UnpicklingError):
        read_checkpoint(tmp_path / "epoch-00001.ckpt")
    assert not (tmp_path / "ran").exists()


LAUGHS = "a0: &a0 [x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 20)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 20)
)


@pytest.mark.tried(
    "Files",
    what="a recipe of aliases of aliases, or of brackets without end",
    holds="refused: an alias counts as what it stands for",
)
@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        (LAUGHS, "more than 10000 values"),
        (MERGES, "more than 10000 values"),
        ("a: &a [*a]", "an alias contains itself"),
        ("a: " + "[" * 5000 + "]" * 5000, "more than 50 levels"),
    ],
    ids=["laughs", "merges", "itself", "deep"],
)
def test_yaml_that_becomes_too_much(text, phrase, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with refused(phrase):
        read_recipe(path)


def test_aliases_of_people_work():
    assert parse_yaml("a: &x {lr: 1e-3}\nb: *x\nc: {<<: *x, d: [*x, *x]}") == {
        "a": {"lr": 0.001},
        "b": {"lr": 0.001},
        "c": {"lr": 0.001, "d": [{"lr": 0.001}] * 2},
    }
