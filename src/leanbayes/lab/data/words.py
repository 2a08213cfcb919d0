"""Words as numbers, by the conventions of Keras' IMDB example (facts of the k-tied LSTM)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Sentences", "encode", "rank_words", "to_ranks", "tokenize"]

PADDING, START, RARE, FIRST = 0, 1, 2, 3
"""Indices: padding, start of a review, a word too rare; a word of rank r has r + 3."""

_FILTERED = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))


@dataclass(frozen=True)
class Sentences:
    """Ragged rows of word ranks, one after the other; row i is ``values[ends[i-1]:ends[i]]``."""

    values: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> Sentences:
        """From lists of ranks."""
        kept = [np.asarray(row, np.int64) for row in rows]
        ends = np.cumsum([len(row) for row in kept])
        return cls(np.concatenate([np.empty(0, np.int64), *kept]), ends.astype(np.int64))

    def __len__(self) -> int:
        return len(self.ends)


def tokenize(text: str) -> list[str]:
    """Lower-case words between punctuation, as Keras' Tokenizer cuts them.

    Example:
        >>> tokenize("It's GREAT!<br />(Really.)")
        ["it's", 'great', 'br', 'really']
    """
    return [word for word in text.lower().translate(_FILTERED).split(" ") if word]


def rank_words(texts: Iterable[list[str]]) -> dict[str, int]:
    """Words by falling frequency, from 1; of equally frequent ones the first seen comes first.

    Example:
        >>> rank_words([["b", "a"], ["a"]])
        {'a': 1, 'b': 2}
    """
    counts: Counter[str] = Counter()
    for words in texts:
        counts.update(words)
    ranked = sorted(counts, key=counts.__getitem__, reverse=True)
    return {word: rank for rank, word in enumerate(ranked, 1)}


def to_ranks(texts: Iterable[list[str]], ranks: dict[str, int]) -> Sentences:
    """The ranks of all words; a word that has none is left out, as in Keras."""
    return Sentences.of([[ranks[word] for word in words if word in ranks] for words in texts])


def encode(sentences: Sentences, words: int, length: int) -> npt.NDArray[np.int64]:
    """Indices ``[reviews, length]``: the end of each review, with padding before short ones.

    Args:
        sentences: ranks of words.
        words: indices are below this; rarer words become :data:`RARE`.
        length: words kept, counted from the end.

    Example:
        >>> encode(Sentences.of([[1, 9], [1, 2, 3, 4]]), words=6, length=4).tolist()
        [[0, 1, 4, 2], [4, 5, 2, 2]]
    """
    starts = np.concatenate([[0], sentences.ends[:-1]])[:, None]
    places = sentences.ends[:, None] - length + np.arange(length)
    padded = np.concatenate([sentences.values, [0]])  # so that every place may be looked up
    indices = padded[np.maximum(places, 0)] + FIRST
    indices[indices >= words] = RARE
    indices[places == starts - 1] = START
    indices[places < starts - 1] = PADDING
    return indices
