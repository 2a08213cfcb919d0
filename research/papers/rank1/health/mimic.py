"""MIMIC-III by name: the whole database, and its open demo; who dies in hospital."""

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from leanbayes.errors import require, require_choice, require_count
from leanbayes.lab.data.dataset import Dataset, Examples
from leanbayes.lab.data.files import File, Form
from leanbayes.lab.data.sources import register_dataset
from research.papers.rank1.health.bags import (
    Bagged,
    RecordShape,
    Vocabulary,
    bag,
    learn_vocabulary,
)
from research.papers.rank1.health.events import EVENT_TABLES, Events, read_events
from research.papers.rank1.health.groups import random_groups
from research.papers.rank1.health.stays import read_stays
from research.papers.rank1.health.tables import Tables, find_tables

OUTCOMES = ("survived", "died")
SOURCE = (
    "A. E. W. Johnson et al., MIMIC-III, a freely accessible critical care database, Scientific "
    "Data 3, 2016"
)


def _forms(*folders: str) -> tuple[Form, ...]:
    return tuple(Form((File(folder),), _read) for folder in folders)


def _read(paths: tuple[Path, ...]) -> Tables:
    return find_tables(paths[0])


@register_dataset(
    "mimic-iii",
    task="sequence",
    license="PhysioNet Credentialed Health Data License 1.5.0",
    source=f"{SOURCE}; PhysioNet, version 1.4",
    forms=_forms(
        "mimic-iii", "mimic-iii-clinical-database-1.4", "physionet.org/files/mimiciii/1.4"
    ),
)
@register_dataset(
    "mimic-iii-demo",
    task="sequence",
    license="Open Data Commons Open Database License 1.0",
    source=f"{SOURCE}; PhysioNet, demo, version 1.4",
    forms=_forms(
        "mimic-iii-demo",
        "mimic-iii-clinical-database-demo-1.4",
        "physionet.org/files/mimiciii-demo/1.4",
    ),
)
def mimic(
    content: Tables,
    *,
    hours: int = 24,
    days: int = 30,
    codes: int = 32,
    measurements: int = 32,
    vocabulary: int = 10_000,
    measured: int = 100,
    ranges: int = 5,
    older_than: int | None = None,
    adults: bool = True,
    tables: str | Sequence[str] | None = None,
    test: float = 0.1,
    validation: float = 0.1,
    seed: int = 0,
) -> Dataset:
    """Records ``[stays, 1 + days, codes + measurements]``; see ``docs/health_records.md``.

    Args:
        content: the tables of a folder.
        hours: after admission, when it is predicted who dies; sooner ends are left out.
        days: how many days with entries a record keeps.
        codes: how many codes a day can hold.
        measurements: how many measurements a day can hold.
        vocabulary: how many codes there are, with 0 for none and 1 for rare ones.
        measured: how many of the most frequent codes are measurements with a value.
        ranges: into how many equally frequent ranges values are cut.
        older_than: events so many days before the prediction go into one bag.
        adults: leave out stays of patients below 18.
        tables: which tables events are read from; all that are there, if not given.
        test: the share of patients for test.
        validation: the share of patients for validation.
        seed: of the split; all stays of a patient are in one part.
    """
    require_count("hours", hours, 1)
    shape = RecordShape(days, codes, measurements, older_than)
    stays = read_stays(content, hours=hours, adults=adults)
    examples = stays.eligible.nonzero()[0]
    require(len(examples) > 0, f"no stay in {content.folder} lasts more than {hours} hours")
    parts = random_groups(stays.patient[examples], test, validation, seed)
    names = _chosen(content, tables)
    events = read_events(content, stays, names)
    learned_from = np.isin(events.patient, stays.patient[examples[parts[0]]])
    words = learn_vocabulary(events, learned_from, vocabulary, measured, ranges)
    bagged = bag(stays, examples, events, words, shape)
    patients = len(np.unique(stays.patient[examples]))
    known = f"{len(examples)} stays of {patients} patients, with all that was known after {hours} h"
    notes = (known, *_told(names, events, bagged, words), f"split by patient (seed {seed})")
    return _dataset(bagged, stays.died[examples], parts, notes)


def _dataset(
    bagged: Bagged,
    died: npt.NDArray[np.bool_],
    parts: tuple[npt.NDArray[np.int64], ...],
    notes: Iterable[str],
) -> Dataset:
    entries, targets = torch.from_numpy(bagged.entries), torch.from_numpy(died).long()
    train, held_out, tested = (Examples(entries[part], targets[part]) for part in parts)
    return Dataset(
        name="",
        task="sequence",
        train=train,
        validation=held_out if len(held_out) else None,
        test=tested,
        classes=OUTCOMES,
        preprocessing="; ".join(notes),
    )


def _chosen(content: Tables, wanted: str | Sequence[str] | None) -> list[str]:
    """Return the tables of events to read; says which are not there, if nobody chose."""
    if wanted is not None:
        chosen = [wanted] if isinstance(wanted, str) else list(wanted)
        for name in chosen:
            require_choice("table of events", name, EVENT_TABLES)
        return chosen
    absent = [name for name in EVENT_TABLES if name not in content]
    if absent:
        warnings.warn(
            f"{content.folder} lacks {', '.join(absent)}, so records are made of the other tables; "
            "to choose tables yourself, give tables=[…]",
            stacklevel=4,
        )
    return [name for name in EVENT_TABLES if name in content]


def _told(names: Sequence[str], events: Events, bagged: Bagged, words: Vocabulary) -> list[str]:
    """Return what was read, what is missing, and what did not fit."""
    notes = [f"{len(events)} events from {', '.join(names)}"]
    absent = [name for name in EVENT_TABLES if name not in names]
    if absent:
        notes.append(f"nothing from {', '.join(absent)}")
    if events.lost:
        lost = ", ".join(f"{count} of {name}" for name, count in events.lost.items())
        notes.append(f"rows without a known patient, a time or a code: {lost}")
    total = bagged.kept + bagged.left_out
    notes.append(f"{bagged.left_out} of {total} entries did not fit into days and bags")
    codes, ranges = words.sizes
    notes.append(f"{codes} codes and {ranges} ranges of values, learned from training patients")
    return notes
