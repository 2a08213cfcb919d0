"""The one reader and the one writer of CSV files."""

import math

import pytest

from leanbayes.lab.tables import read_numbers, read_table, write_table


def written(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode())
    return path


def test_what_is_written_is_read(tmp_path):
    columns = {"x": [0.1, 1e-300, 3], "a name": ['quoted "word"', "two\nlines", "a, b"]}
    table = read_table(write_table(tmp_path / "t.csv", columns))
    assert table.names == ("x", "a name")
    assert [float(cell) for cell in table["x"]] == columns["x"]
    assert list(table["a name"]) == columns["a name"]
    assert len(table) == 3


@pytest.mark.parametrize(
    ("text", "named", "names", "first"),
    [
        ("a,b\n1,2\n", True, ("a", "b"), ("1", "2")),
        ("a,b\n1,2\n", None, ("a", "b"), ("1", "2")),
        ("1,2\n3,4\n", None, ("0", "1"), ("1", "2")),
        ("1,2\n3,4\n", True, ("1", "2"), ("3", "4")),
        ("\ufeffa,b\r\n\r\n1,2\r\n", True, ("a", "b"), ("1", "2")),
        ("a,a\n1,2\n", True, ("a", "a"), ("1", "2")),
    ],
)
def test_the_first_line_may_hold_names(tmp_path, text, named, names, first):
    table = read_table(written(tmp_path, text), named=named)
    assert table.names == names
    assert tuple(column[0] for column in table.columns) == first


def test_cells_may_stand_between_tabs(tmp_path):
    assert read_table(written(tmp_path, "a\tb\n1,5\t2\n"), delimiter="\t")["a"] == ("1,5",)


def test_names_without_rows_are_a_table(tmp_path):
    table = read_table(written(tmp_path, "a,b\n"))
    assert (len(table), table["b"]) == (0, ())


def test_an_empty_cell_of_numbers_is_nan(tmp_path):
    numbers = read_numbers(written(tmp_path, "epoch,nll\n0,\n1,2.5\n"))
    assert numbers["epoch"] == [0, 1]
    assert math.isnan(numbers["nll"][0])
    assert numbers["nll"][1] == 2.5


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "t.csv is empty"),
        ("a,b\n1\n", "t.csv has 1 values in row 2, not 2 as in the first"),
        ("a,b\n1,two\n", r"t.csv is truncated or damaged \(could not convert.*'two'\)"),
    ],
)
def test_a_broken_table_is_one_sentence(tmp_path, text, sentence):
    with pytest.raises(ValueError, match=sentence):
        read_numbers(written(tmp_path, text))


def test_bytes_that_are_no_text_are_damage(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\n\xff\xfe,1\n")
    with pytest.raises(ValueError, match="truncated or damaged"):
        read_table(path)
