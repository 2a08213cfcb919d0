"""Commands that are killed, stopped or given changed files end right, or in one sentence."""

import os
import signal
import sys

import pytest

from research.trust.faults.process import Ended, run
from research.trust.faults.study import FAULTS, case, try_case
from research.trust.faults.subjects import Workshop

pytestmark = pytest.mark.filterwarnings("ignore")
QUICK = ("new", "fit", "predict")
NUMBERS = [n for n in range(120) if case(n, 0)[0] in QUICK]
CHOSEN = list({case(n, 0)[:2]: n for n in NUMBERS}.values())[:10]


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return Workshop(tmp_path_factory.mktemp("shop"))


@pytest.mark.parametrize("number", CHOSEN)
def test_a_fault_ends_right_or_in_a_sentence(shop, number):
    _, fault, _ = case(number, 0)
    if fault in ("full disk", "read-only") and (os.getuid() or not can_mount()):
        pytest.skip("small disks need the rights to mount one")
    assert try_case(shop, number, 0)["problem"] == ""


def can_mount():
    return sys.platform == "linux" and os.access("/usr/bin/mount", os.X_OK)


def test_a_seed_gives_the_same_cases_with_every_fault():
    first = [case(n, 3)[:2] for n in range(200)]
    assert first == [case(n, 3)[:2] for n in range(200)]
    assert {fault for _, fault in first} == FAULTS.keys()


def test_a_traceback_is_no_sentence():
    assert not Ended(1, "Traceback (most recent call last):\nValueError: x", 0).sentence
    assert not Ended(1, "leanbayes: one\nleanbayes: two", 0).sentence
    assert Ended(1, "leanbayes: one thing.\n", 0).sentence


def test_a_fork_reports_signals_exceptions_and_exits(tmp_path):
    def leave():
        sys.exit("leanbayes: no")

    def fail():
        raise ValueError("bad")

    assert run(lambda: os.kill(os.getpid(), signal.SIGKILL), tmp_path).code == -9
    assert run(leave, tmp_path).sentence == "leanbayes: no"
    assert "ValueError: bad" in run(fail, tmp_path).error
    assert run(lambda: None, tmp_path).code == 0
