"""The Large Movie Review Dataset as sequences of word indices, the way Keras' example has it.

Ranks are those of Keras' Tokenizer on the training texts and the shuffle is Keras' (seed 113), but
it acts on the order of the archive, positive reviews first: Keras' own file, a pickle, has another
order, so the 5000 validation reviews are not those of the paper [k-tied, appendix E].
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from leanbayes.lab.data.dataset import Dataset, Examples, split_last
from leanbayes.lab.data.files import File, Form
from leanbayes.lab.data.images import read_bytes
from leanbayes.lab.data.sources import register_dataset
from leanbayes.lab.files import reading
from research.data.formats import archive_members

SHUFFLE_SEED = 113
SENTIMENT = {"neg": 0, "pos": 1}
INNER = tuple(f"{split}/{label}/" for split in ("train", "test") for label in ("pos", "neg"))

PADDING, START, RARE, FIRST = 0, 1, 2, 3
"""Indices: padding, start of a review, a word too rare; a word of rank r has r + 3."""

_FILTERED = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))

Texts = dict[str, list[tuple[str, int]]]
"""Reviews and their labels, of ``"train"`` and ``"test"``."""


def tokenize(text: str) -> list[str]:
    """Return lower-case words between punctuation, as Keras' Tokenizer cuts them.

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
    counts = Counter(word for words in texts for word in words)
    ranked = sorted(counts, key=counts.__getitem__, reverse=True)
    return {word: rank for rank, word in enumerate(ranked, 1)}


def encode(sentences: Sequence[Sequence[int]], words: int, length: int) -> npt.NDArray[np.int64]:
    """Return indices ``[reviews, length]``: the end of each review, with padding before short ones.

    Example:
        >>> encode([[1, 9], [1, 2, 3, 4]], words=6, length=4).tolist()
        [[0, 1, 4, 2], [4, 5, 2, 2]]
    """
    indices = np.full((len(sentences), length), PADDING, np.int64)
    for row, ranks in zip(indices, sentences, strict=True):
        kept = np.array(ranks[-length:], np.int64) + FIRST
        kept[kept >= words] = RARE
        marked = np.append(START, kept)[-length:]
        row[length - len(marked) :] = marked
    return indices


def read_json_lines(paths: tuple[Path, ...]) -> Texts:
    """Return ``train.jsonl.xz`` and ``test.jsonl.xz``: one review per line, with its label."""
    splits: Texts = {}
    for name, path in zip(("train", "test"), paths, strict=True):
        content = read_bytes(path)
        with reading(path):
            rows = [json.loads(line) for line in content.decode().split("\n") if line]
            splits[name] = [(row["text"], int(row["label"])) for row in rows]
    return splits


def read_texts(paths: tuple[Path, ...]) -> Texts:
    """Return ``aclImdb_v1.tar.gz``, or the folder it unpacks to: one file a review."""
    splits: dict[str, list[tuple[tuple[int, int], str, int]]] = {"train": [], "test": []}
    with reading(paths[0]):
        for name, content in archive_members(paths[0], INNER):
            split, sentiment, file = name.split("/")
            label, number = SENTIMENT[sentiment], int(file.partition("_")[0])
            splits[split].append(((1 - label, number), content.decode(), label))
        if not all(splits.values()):
            raise ValueError("it has no reviews in train and test")
    return {
        split: [(text, label) for _, text, label in sorted(rows)] for split, rows in splits.items()
    }


FOLDERS = ("imdb", ".")
FORMS = (
    Form((File("train.jsonl.xz"), File("test.jsonl.xz")), read_json_lines, ("imdb",)),
    Form(
        (
            File(
                "aclImdb_v1.tar.gz",
                ("sha256:c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",),
                ("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",),
                84125825,
            ),
        ),
        read_texts,
        FOLDERS,
    ),
    Form((File("aclImdb"),), read_texts, FOLDERS),
)


@register_dataset(
    "imdb",
    task="sequence",
    license="none stated",
    source="A. L. Maas et al., Learning Word Vectors for Sentiment Analysis, ACL 2011",
    forms=FORMS,
)
def imdb(
    content: Texts, *, words: int = 20_000, length: int = 80, validation: int = 5_000
) -> Dataset:
    """Reviews as indices ``[reviews, length]``; words are ranked by the training texts alone.

    Args:
        content: what was read.
        words: size of the vocabulary, counting padding 0, start 1, rare word 2 and the unused 3.
        length: words kept from the end of a review; shorter ones are padded in front.
        validation: how many of the last training reviews are set apart, after the shuffle.
    """
    if words < 5 or length < 1:
        raise ValueError(f"words={words} and length={length} leave no words; give more of both")
    shuffle = np.random.RandomState(SHUFFLE_SEED)
    texts = {split: [tokenize(text) for text, _ in rows] for split, rows in content.items()}
    ranks = rank_words(texts["train"])
    parts = []
    for split in ("train", "test"):
        sentences = [[ranks[word] for word in text if word in ranks] for text in texts[split]]
        order = np.arange(len(sentences))
        shuffle.shuffle(order)
        indices = torch.from_numpy(encode(sentences, words, length)[order])
        labels = torch.tensor([label for _, label in content[split]])[order]
        parts.append(Examples(indices, labels))
    train, held_out = split_last(parts[0], validation)
    return Dataset(
        name="imdb",
        task="sequence",
        train=train,
        validation=held_out,
        test=parts[1],
        classes=("negative", "positive"),
        preprocessing=(
            f"{len(ranks)} words ranked by their frequency in the training reviews; indices below "
            f"{words}, rank r is r + 3, padding 0, start 1, rarer words 2; last {length} words, "
            f"padded in front; shuffled (numpy RandomState({SHUFFLE_SEED})); last {validation} "
            "training reviews for validation"
        ),
    )
