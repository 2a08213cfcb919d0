"""Run tests on mutants: collect once, then one forked process per mutant.

A first pass notes which functions every test calls. A mutant is tried by the tests that call its
function, one case of each at first, the quickest before the others: the code of the function is
replaced in a fork, so nothing is imported again.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch

from research.publishing.paper import ROOT
from research.trust.few_cases import few_of_each
from research.trust.mutation.mutants import SOURCE, Mutant, living_functions
from research.trust.mutation.native import NativeMutant

_BUDGET, _GRACE = 8.0, 4.0
"""CPU seconds of all tests of a mutant; of one test beyond ten times what it takes."""

Key = tuple[str, int]
AnyMutant = Mutant | NativeMutant


@dataclass
class Calls:
    """Which tests call which functions, and how long they take."""

    tests: dict[Key, list[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class Watch:
    """Notes the functions of the package that are called."""

    def __init__(self) -> None:
        self.called: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Trace function of the interpreter, which it calls for every call of a function."""
        self.called.add(frame.f_code)

    def keys(self) -> Iterable[Key]:
        """Files and first lines."""
        root = str(SOURCE) + os.sep
        for code in self.called:
            if code.co_filename.startswith(root):
                yield code.co_filename.removeprefix(root), code.co_firstlineno


class MutantRunner:
    """Plugin of pytest that runs all mutants in place of one run of the tests.

    Args:
        mutants: to be tried.
        notes: file of what every test calls; a stopped first pass goes on from it.
        tell: called with every mutant and its verdict.
        prepare: called before the first pass, in its fork.
    """

    def __init__(
        self,
        mutants: Sequence[AnyMutant],
        notes: Path,
        tell: Callable[[AnyMutant, Mapping[str, Any]], None],
        prepare: Callable[[], object],
    ) -> None:
        self.mutants, self.notes, self.tell, self.prepare = mutants, notes, tell, prepare
        self.failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        self.failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try every mutant on the collected tests."""
        items = {item.nodeid: item for item in few_of_each(session.items)}
        calls = self._watched(list(items.values()))
        gc.unfreeze()
        living_functions.cache_clear()  # an earlier folder may have imported less
        living_functions()
        gc.freeze()
        for mutant in self.mutants:
            names = promising_first(calls.tests.get(mutant.key, []), calls.seconds)
            started = time.monotonic()
            verdict = "uncovered"
            test = ""
            if names:
                chosen = [items[name] for name in names]
                verdict, test = self._fork(mutant, chosen, calls)
            duration = time.monotonic() - started
            facts = {"verdict": verdict, "test": test, "tests": len(names), "duration": duration}
            self.tell(mutant, {**asdict(mutant), **facts})
        return True

    def _watched(self, items: list[pytest.Item]) -> Calls:
        """Run every test once in a fork, unless the notes have it; failing ones are left out."""
        known = self.notes.read_text().splitlines() if self.notes.exists() else []
        noted = {json.loads(line)[0] for line in known}
        if not (child := os.fork()):
            try:
                self.prepare()
                with self.notes.open("a") as out:
                    for item in items:
                        if item.nodeid not in noted:
                            out.write(json.dumps(self._watch(item)) + "\n")
                            out.flush()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        calls, names = Calls(), {item.nodeid for item in items}
        for name, seconds, keys in map(json.loads, self.notes.read_text().splitlines()):
            calls.seconds[name] = seconds
            for file, line in keys if name in names else ():
                calls.tests.setdefault((file, line), []).append(name)
        return calls

    def _watch(self, item: pytest.Item) -> tuple[str, float, list[Key]]:
        self.failed, watch, started = False, Watch(), time.process_time()
        sys.settrace(watch)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        sys.settrace(None)
        seconds = time.process_time() - started
        return item.nodeid, seconds, [] if self.failed else list(watch.keys())

    def _fork(self, mutant: AnyMutant, items: list[pytest.Item], calls: Calls) -> tuple[str, str]:
        reader, writer = os.pipe()
        if not (child := os.fork()):
            os.close(reader)
            os.setsid()
            try:
                text = self._tried(mutant, items, calls, writer)
            except BaseException as error:  # of pytest itself, from a mutant it cannot survive
                text = f"killed\t{type(error).__name__}"
            with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
                os.write(writer, f"\n{text}".encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as lines:
            said = lines.read().strip().splitlines()
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            return "killed", f"signal {os.WTERMSIG(status)} in {said[-1] if said else ''}"
        verdict, _, test = said[-1].partition("\t")
        return verdict, test

    def _tried(self, mutant: AnyMutant, items: list[pytest.Item], calls: Calls, writer: int) -> str:
        if not mutant.install():
            return "invalid\t"
        spent = time.process_time()
        for item in items:
            os.write(writer, f"\n{item.nodeid}".encode())
            limit = 10 * calls.seconds[item.nodeid] + _GRACE
            signal.setitimer(signal.ITIMER_PROF, limit)  # its signal ends the process
            self.failed = False
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            signal.setitimer(signal.ITIMER_PROF, 0)
            if self.failed:
                return f"killed\t{item.nodeid}"
            if time.process_time() - spent > _BUDGET:
                return f"survived\tbudget spent at {item.nodeid}"
        return "survived\t"


def promising_first(names: Iterable[str], seconds: Mapping[str, float]) -> list[str]:
    """The quickest first: one case of every test, then a second one, and so on."""
    seen: Counter[str] = Counter()
    ranked = []
    for name in sorted(names, key=seconds.__getitem__):
        test = name.partition("[")[0]
        ranked.append((seen[test], seconds[name], name))
        seen[test] += 1
    return [name for *_, name in sorted(ranked)]


def try_mutants(
    mutants: Sequence[AnyMutant],
    tests: list[str],
    notes: Path,
    tell: Callable[[AnyMutant, Mapping[str, Any]], None],
    prepare: Callable[[], object] = bool,
) -> None:
    """Try mutants on tests, which must be those that concern their files."""
    torch.set_num_threads(1)
    options = ["-q", "-p", "no:cacheprovider", "--tb=no", "--no-header", "--show-capture=no"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins are imported here
    os.chdir(ROOT)
    pytest.main([*options, *tests], plugins=[MutantRunner(mutants, notes, tell, prepare)])
