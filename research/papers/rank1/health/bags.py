"""Events to bags: by example and day, indices of codes and of ranges of measured values."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leanbayes.errors import require_count
from research.papers.rank1.health.events import Events
from research.papers.rank1.health.stays import DAY, Stays

Numbers = npt.NDArray[np.int64]

RARE, FIRST = 1, 2
"""Index 0 means no entry; codes that are too rare share index 1."""

CENT = 100
"""The context is kept in hundredths, so that records are whole numbers."""


@dataclass(frozen=True)
class RecordShape:
    """How large records are.

    Args:
        days: how many days with entries are kept, counted from the last.
        codes: how many codes a day can hold.
        measurements: how many measurements a day can hold.
        older_than: events that are so many days older than the last go into one bag.
    """

    days: int
    codes: int
    measurements: int
    older_than: int | None = None

    def __post_init__(self) -> None:
        require_count("days", self.days, 1)
        require_count("codes", self.codes, 1)
        require_count("measurements", self.measurements, 1)
        if self.older_than is not None:
            require_count("older_than", self.older_than, 1)

    def empty(self, examples: int) -> npt.NDArray[np.int32]:
        """Return records without entries: a row for the context, then one for each day."""
        return np.zeros((examples, 1 + self.days, self.codes + self.measurements), np.int32)


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What events become, learned from those of training patients alone.

    Args:
        code: index of every code as an event without a value.
        measurement: place among the measured codes, or −1.
        edges: ``[measured, ranges − 1]``, between which ranges of values lie.
    """

    code: Numbers
    measurement: Numbers
    edges: npt.NDArray[np.float64]

    @property
    def sizes(self) -> tuple[int, int]:
        """How many indices there are of codes, and of ranges, with 0."""
        ranges = len(self.edges) * (self.edges.shape[1] + 1)
        return int(self.code.max(initial=RARE)) + 1, ranges + 1

    def indices(self, events: Events) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """Return the index of every event, and whether it is a measurement."""
        place = self.measurement[events.code]
        measured = (place >= 0) & ~np.isnan(events.value)
        index = self.code[events.code]
        if measured.any():
            ranges = self.edges.shape[1] + 1
            place, value = place[measured], events.value[measured].astype(np.float64)
            above = (value[:, None] > self.edges[place]).sum(1)
            index[measured] = place * ranges + above + 1
        return index, measured


def learn_vocabulary(
    events: Events, chosen: npt.NDArray[np.bool_], vocabulary: int, measured: int, ranges: int
) -> Vocabulary:
    """The most frequent codes, the most frequent measurements, and quantiles of their values.

    Args:
        events: all of them.
        chosen: which may be learned from.
        vocabulary: how many codes there may be, with 0 and the one of rare codes.
        measured: how many codes are measurements with a value.
        ranges: into how many equally frequent ranges their values are cut.
    """
    require_count("vocabulary", vocabulary, FIRST + 1)
    require_count("measured", measured, 1)
    require_count("ranges", ranges, 1)
    kinds, valued = len(events.names), chosen & ~np.isnan(events.value)
    places = _ranked(np.bincount(events.code[valued], minlength=kinds))[:measured]
    measurement = np.full(kinds, -1, np.int64)
    measurement[places] = np.arange(len(places))
    rest = chosen & ~(valued & (measurement[events.code] >= 0))
    frequent = _ranked(np.bincount(events.code[rest], minlength=kinds))[: vocabulary - FIRST]
    code = np.full(kinds, RARE, np.int64)
    code[frequent] = np.arange(len(frequent)) + FIRST
    levels = np.arange(1, ranges) / ranges
    edges = np.zeros((len(places), ranges - 1))
    order = np.argsort(events.code[valued], kind="stable")
    sorted_codes, values = events.code[valued][order], events.value[valued][order]
    for row, place in zip(edges, places, strict=True):
        begin, end = np.searchsorted(sorted_codes, (place, place + 1))
        row[:] = np.quantile(values[begin:end].astype(np.float64), levels)
    return Vocabulary(code, measurement, edges)


def _ranked(counts: Numbers) -> Numbers:
    """The codes that occur, the most frequent first; of equally frequent ones the first seen."""
    order = np.argsort(-counts, kind="stable")
    return order[counts[order] > 0]


@dataclass(frozen=True, eq=False)
class Bagged:
    """Records ``[examples, 1 + days, codes + measurements]``, and what did not fit.

    Args:
        entries: indices; row 0 is the context: gender (male 1) and age (a century 1), in
            hundredths.
        kept: how many different entries of a day there are.
        left_out: how many more did not fit into the days or their bags.
    """

    entries: npt.NDArray[np.int32]
    kept: int
    left_out: int


def bag(
    stays: Stays, examples: Numbers, events: Events, words: Vocabulary, shape: RecordShape
) -> Bagged:
    """Return the records of some stays: what was known of the patient until the cut, by day.

    Days are counted back from the cut, so that an admission 24 hours before is in the last, and
    those without entries are left out. An entry counts once a day; where a bag is full, the newest
    entries are kept.
    """
    entries, left_out = shape.empty(len(examples)), 0
    index, measured = words.indices(events)
    begins = np.searchsorted(events.patient, np.arange(len(stays.by_subject) + 1))
    for record, stay in zip(entries, examples, strict=True):
        patient, cut = stays.patient[stay], stays.cut[stay]
        record[0, :2] = CENT * stays.male[stay], np.rint(stays.age[stay])
        begin, end = begins[patient], begins[patient + 1]
        end = begin + np.searchsorted(events.time[begin:end], cut, side="right")
        newest_first = slice(end - 1, begin - 1 if begin else None, -1) if end > begin else slice(0)
        days = np.maximum(cut - events.time[newest_first] - 1, 0) // DAY
        if shape.older_than is not None:
            days = np.minimum(days, shape.older_than)
        left_out += _fill(record, days, index[newest_first], measured[newest_first], shape)
    kept = int(np.count_nonzero(entries[:, 1:]))
    return Bagged(entries, kept, left_out)


def _fill(
    record: npt.NDArray[np.int32],
    days: Numbers,
    index: Numbers,
    measured: npt.NDArray[np.bool_],
    shape: RecordShape,
) -> int:
    """Write the entries of one example, which come newest first; how many do not fit."""
    if not len(days):
        return 0
    width = 2 * (int(index.max()) + 1)
    _, first = np.unique(days * width + 2 * index + measured, return_index=True)
    first.sort()
    days, index, measured = days[first], index[first], measured[first]
    back = np.unique(days, return_inverse=True)[1]  # 0 is the newest day that has entries
    group = 2 * back + measured
    order = np.argsort(group, kind="stable")
    group = group[order]
    slot = np.arange(len(group)) - np.searchsorted(group, group)
    back, kind = group // 2, group % 2
    room = np.where(kind == 1, shape.measurements, shape.codes)
    fits = (back < shape.days) & (slot < room)
    last = min(int(back[-1]) + 1, shape.days)
    rows, columns = last - back[fits], slot[fits] + kind[fits] * shape.codes
    record[rows, columns] = index[order][fits]
    return int(len(fits) - fits.sum())
