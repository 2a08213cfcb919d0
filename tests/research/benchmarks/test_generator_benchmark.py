"""The battery for the native generator finds noise that is not random, and reads Dieharder."""

import stat

import pytest
import torch

import leanbayes as lb
from research.benchmarks import generator

pytestmark = pytest.mark.skipif(not lb.kernels().native, reason=lb.kernels().reason)
SHAPE = (200, 200)


def test_good_noise_is_within_a_few_standard_errors():
    assert max(map(abs, generator.judge_normals(3, SHAPE).values())) < 5


@pytest.mark.parametrize(
    ("spoil", "seen"),
    [
        (lambda z: z + 0.05, "mean"),
        (lambda z: 1.05 * z, "variance"),
        (lambda z: torch.cat([z[:, :1], (z[:, :-1] + 9 * z[:, 1:]) / 82**0.5], 1), "lag 1"),
        (lambda z: z[:1].expand_as(z), "next row"),
        (lambda z: z.sign(), "distribution"),
    ],
)
def test_bad_noise_is_not(spoil, seen, monkeypatch):
    good = generator.normals
    monkeypatch.setattr(generator, "normals", lambda shape, by: spoil(good(shape, by)))
    assert abs(generator.judge_normals(3, SHAPE)[seen]) > 6


def test_seeds_that_repeat_themselves_are_found(monkeypatch):
    good = generator.normals
    monkeypatch.setattr(generator, "normals", lambda shape, _: good(shape, 1))
    assert generator.judge_normals(3, SHAPE)["next seed"] > 6


def test_a_program_is_fed_with_bits_and_its_table_is_read(tmp_path, monkeypatch):
    program = tmp_path / "dieharder"
    program.write_text(
        "#!/bin/sh\nhead -c 40000000 > /dev/null\n"
        'echo "#   test_name   |ntup| tsamples |psamples|  p-value |Assessment"\n'
        'echo "   diehard_runs|   0|    100000|     100|0.27781406|  PASSED  "\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = generator.dieharder((15,))
    assert found == [{"test": "diehard_runs 0", "p": 0.27781406, "says": "PASSED"}]


def test_the_page_says_what_was_found():
    result = {"normals": {"mean": -0.5, "lag 1": 2.25}, "count": 10**8}
    tests = [
        {"test": "diehard_runs 0", "p": 0.3, "says": "PASSED"},
        {"test": "sts_serial 9", "p": 0.998, "says": "WEAK"},
    ]
    _, text = generator.section({**result, "dieharder": tests})
    assert "1e+08 normals" not in text
    assert "2.2 standard errors off (lag 1)" in text
    assert "Of 2 tests of Dieharder its bits pass 1; one is weak and none is failed." in text
    assert "0.9980 (sts_serial)" in text
    assert generator.section({**result, "dieharder": None})[1].endswith("not installed.")
