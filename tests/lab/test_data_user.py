"""Your own CSV and NPZ files."""

import csv
import io
import zipfile

import numpy as np
import pytest
import torch

from leanbayes.lab import data


@pytest.fixture
def rng(request):
    return np.random.default_rng(request.config.getoption("--seed"))


def write_csv(path, columns, header=True):
    rows = [list(columns)] if header else []
    rows += [list(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(",".join(row) for row in rows) + "\n")
    return str(path)


def all_rows(dataset):
    parts = (dataset.train, dataset.validation, dataset.test)
    return torch.cat([p.x for p in parts if p]), torch.cat([p.y for p in parts if p])


@pytest.mark.parametrize("header", [True, False])
def test_a_table_for_regression(tmp_path, rng, header):
    a, b, y = rng.normal(5, 3, (3, 100))
    path = write_csv(tmp_path / "prices.csv", {"a": a, "b": b, "y": y}, header)
    dataset = data.load_dataset(path, test=0.2, validation=0.1)
    assert (len(dataset.train), len(dataset.validation), len(dataset.test)) == (70, 10, 20)
    assert (dataset.name, dataset.task, dataset.classes) == ("prices", "regression", ())
    assert torch.allclose(dataset.train.x.mean(0), torch.zeros(2), atol=1e-5)
    assert torch.allclose(dataset.train.y.std(correction=0), torch.tensor(1.0))
    x, targets = all_rows(dataset)
    raw = torch.cat([dataset.scaling.inverse(x), dataset.target_scaling.inverse(targets)], 1)
    expected = torch.tensor(np.stack([a, b, y], 1)).float()
    assert torch.allclose(raw.sort(0).values, expected.sort(0).values, atol=1e-4)


def test_the_target_may_be_any_column(tmp_path, rng):
    kind = rng.choice(["cat", "dog", "ewe"], 60)
    size = np.array([{"cat": 1.0, "dog": 2.0, "ewe": 3.0}[k] for k in kind])
    path = write_csv(tmp_path / "pets.csv", {"kind": kind, "size": size, "noise": size * 0})
    for target in ("kind", 0, -3):
        dataset = data.load_dataset(path, target=target, scaling="raw")
        assert dataset.task == "classification"
        assert dataset.classes == ("cat", "dog", "ewe")
        x, y = all_rows(dataset)
        assert torch.equal(x[:, 0], y + 1.0)
        assert dataset.target_scaling is None
    with pytest.raises(ValueError, match=r"'knid' is unknown; did you mean 'kind'"):
        data.load_dataset(path, target="knid")
    with pytest.raises(ValueError, match="has 3 columns, and none has number 3"):
        data.load_dataset(path, target=3)


@pytest.mark.parametrize(
    ("values", "task", "expected"),
    [
        ([0, 1, 1, 2] * 5, None, "classification"),
        (["3.0", "7.0"] * 10, None, "classification"),
        (list(range(40)), None, "regression"),
        ([0.5, 1.0] * 10, None, "regression"),
        ([0, 1, 1, 2] * 5, "regression", "regression"),
        (list(range(40)), "classification", "classification"),
    ],
)
def test_the_task_is_guessed_or_given(tmp_path, values, task, expected):
    path = write_csv(tmp_path / "t.csv", {"x": np.arange(len(values)), "y": values})
    dataset = data.load_dataset(path, task=task)
    assert dataset.task == expected
    assert dataset.train.y.is_floating_point() == (expected == "regression")
    assert len(dataset.classes) == (len(set(values)) if expected == "classification" else 0)


def test_the_split_depends_on_the_seed_alone(tmp_path, rng):
    path = write_csv(tmp_path / "t.csv", {"x": rng.normal(size=50), "y": rng.normal(size=50)})
    first, again, other = (data.load_dataset(path, seed=s, scaling="raw").test.x for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n3\n", "has 1 values in row 3, not 2 as in the first"),
        ("a,b\n1,2\n", "has 1 rows; train and test need at least three"),
        ("a\n1\n2\n3\n4\n", "has one column; inputs and a target need two"),
        ("a,b\n1,2\nx,3\n5,6\n", "has 'x' in column 'a', example 2; inputs are finite numbers"),
        ("a,b\n1,2\n,3\n5,6\n", "has '' in column 'a', example 2"),
        ("a,b\n1,2\nnan,3\n5,6\n", "has 'nan' in column 'a', example 2"),
        ("a,b\n1,2\n1_0,3\n5,6\n", "has '1_0' in column 'a', example 2"),
        ("a;b\n1,5;2\n2,5;3\n3,5;4\n", "has '1,5' in column 'a', example 1"),
    ],
)
def test_tables_that_cannot_be_used_say_why(tmp_path, text, message):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        data.load_dataset(str(path))


@pytest.mark.parametrize("delimiter", [";", "\t"])
@pytest.mark.parametrize("first", ['"size, in cm",kind,y', "size,kind,y", "0.5,1,2"])
def test_cells_may_stand_between_semicolons_or_tabs(tmp_path, delimiter, first):
    """The names of columns may hold commas, or there are none."""
    rows = [[0.1 * i, i % 3, 2.5 * i] for i in range(10)]
    paths = tmp_path / "commas.csv", tmp_path / "others.csv"
    for path, between in zip(paths, (",", delimiter), strict=True):
        head = between.join(next(csv.reader([first]))) if '"' not in first else None
        head = head or between.join(['"size, in cm"', "kind", "y"])
        path.write_text("\n".join([head, *(between.join(map(str, row)) for row in rows)]))
    expected, found = (data.load_dataset(str(path), target=0) for path in paths)
    assert torch.equal(found.train.x, expected.train.x)
    assert torch.equal(found.train.y, expected.train.y)
    assert [column.name for column in found.columns] == [c.name for c in expected.columns]


def test_shares_that_leave_a_part_empty_are_refused(tmp_path):
    path = write_csv(tmp_path / "t.csv", {"x": range(10), "y": range(10)})
    for test, validation in ((0.0, 0.1), (0.5, 0.5), (1.5, 0.1), (0.1, -0.2)):
        with pytest.raises(ValueError, match="leave a part empty; give shares between 0 and 1"):
            data.load_dataset(path, test=test, validation=validation)
    assert data.load_dataset(path, validation=0.0).validation is None


def test_a_file_that_does_not_exist():
    with pytest.raises(FileNotFoundError, match=r"nothing\.csv does not exist"):
        data.load_dataset("nothing.csv")


def test_arrays_are_split_at_random_or_as_they_say(tmp_path, rng):
    x, y = rng.normal(size=(40, 3, 2)), rng.normal(size=40)
    np.savez(tmp_path / "one.npz", x=x, y=y)
    one = data.load_dataset(str(tmp_path / "one.npz"), target_scaling="raw")
    assert (len(one.train), len(one.validation), len(one.test)) == (32, 4, 4)
    assert torch.allclose(all_rows(one)[0].sort(0).values, torch.tensor(x).float().sort(0).values)
    arrays = {"x_train": x[:20], "y_train": y[:20], "x_test": x[20:], "y_test": y[20:, None]}
    np.savez(tmp_path / "two.npz", **arrays)
    two = data.load_dataset(str(tmp_path / "two.npz"), target_scaling="raw")
    assert two.validation is None
    assert torch.equal(two.test.x, torch.tensor(x[20:]).float())
    assert torch.equal(two.train.y, torch.tensor(y[:20, None]).float())
    np.savez(tmp_path / "three.npz", **arrays, x_validation=x[:5], y_validation=y[:5])
    assert len(data.load_dataset(str(tmp_path / "three.npz")).validation) == 5


def test_arrays_of_bytes_are_images(tmp_path, rng):
    x, y = rng.integers(0, 256, (40, 1, 6, 6), dtype=np.uint8), rng.integers(0, 3, 40)
    np.savez(tmp_path / "images.npz", x=x, y=y)
    images = data.load_dataset(str(tmp_path / "images.npz"), test=0.5, validation=0.0)
    assert images.train.stored.dtype == torch.uint8
    assert images.classes == ("0", "1", "2")
    assert "pixels in [0, 1]" in images.preprocessing
    scaled = data.load_dataset(str(tmp_path / "images.npz"), scaling="symmetric")
    assert float(scaled.train.x.min()) < -0.9


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros(3)}, "has the arrays a; it needs x and y, or x_train"),
        ({"x_train": np.zeros((3, 1)), "y_train": np.zeros(3)}, "it needs x and y, or x_train"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(4)}, r"x of shape \(3, 2\) and y of shape \(4,\)"),
        ({"x": np.zeros(3), "y": np.zeros(3)}, "inputs are"),
        ({"x": np.zeros((9, 5), np.uint8), "y": np.zeros(9)}, "pixels are"),
        ({"x": np.full((9, 5), np.nan), "y": np.zeros(9)}, "not finite"),
        ({"x": np.array([[None]] * 9), "y": np.zeros(9)}, "truncated or damaged"),
    ],
)
def test_arrays_that_cannot_be_used_say_why(tmp_path, arrays, message):
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        data.load_dataset(str(tmp_path / "t.npz"))


@pytest.mark.parametrize("flaw", ["packed", "encrypted"])
def test_a_damaged_table_of_contents_is_one_sentence(tmp_path, flaw):
    """A way of packing that does not exist, or a password."""
    path = tmp_path / "t.npz"
    np.savez(path, x=np.zeros((9, 2)), y=np.arange(9))
    content = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = content.index(mark) + place
        content[start if flaw == "encrypted" else start + 2] = 1 if flaw == "encrypted" else 77
    path.write_bytes(content)
    with pytest.raises(ValueError, match="truncated or damaged") as caught:
        data.load_dataset(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"'shape': (9, 2), }", b"'shape': ((9, 2, ,"),  # an error of tokens
        (b"'<f8'", b"',f8'"),  # an error of syntax
        (b"(9, 2), }" + 24 * b" ", b"(" + 25 * b"9" + b", 2), }"),  # an overflow
    ],
)
def test_any_damage_to_the_header_of_an_array_is_one_sentence(tmp_path, before, after):
    """NumPy reads headers of its first version as Python, and raises what Python raises."""
    path, array = tmp_path / "t.npy", io.BytesIO()
    np.lib.format.write_array(array, np.zeros((9, 2)), version=(1, 0))
    content = array.getvalue().replace(before, after)
    with zipfile.ZipFile(path.with_suffix(".npz"), "w") as archive:
        archive.writestr("x.npy", content)
        archive.writestr("y.npy", content)
    with pytest.raises(ValueError, match="truncated or damaged") as caught:
        data.load_dataset(str(path.with_suffix(".npz")))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"no array"])
def test_a_member_that_is_not_an_array_is_one_sentence(tmp_path, content):
    """NumPy gives the bytes of a member whose first bytes are not those of an array."""
    path = tmp_path / "t.npz"
    np.savez(path, x=np.zeros((9, 2)))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("y.npy", content)
    with pytest.raises(ValueError, match="member 'y' is not an array") as caught:
        data.load_dataset(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [0.1, 1e30, -3e38])
def test_a_column_that_varies_by_rounding_is_almost_zero(tmp_path, value):
    numbers = [value, float(np.nextafter(value, 0.0))] * 20
    columns = {"a": range(40), "b": map(repr, numbers), "y": [i / 7 for i in range(40)]}
    dataset = data.load_dataset(write_csv(tmp_path / "constant.csv", columns))
    assert float(dataset.train.x[:, 1].abs().max()) < 1e-3
