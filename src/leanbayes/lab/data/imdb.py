"""The Large Movie Review Dataset as sequences of word indices, the way Keras' example has it.

Ranks are those of Keras' Tokenizer on the training texts and the shuffle is Keras' (seed 113), but
it acts on the order of the archive, positive reviews first: Keras' own file, a pickle, has another
order, so the 5000 validation reviews are not those of the paper [k-tied, appendix E].
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from leanbayes.lab.damage import reading
from leanbayes.lab.data.dataset import Dataset, Examples
from leanbayes.lab.data.files import File, Form
from leanbayes.lab.data.formats import members, read_bytes
from leanbayes.lab.data.sources import register_dataset
from leanbayes.lab.data.splits import split_last
from leanbayes.lab.data.words import Sentences, encode, rank_words, to_ranks, tokenize

__all__ = ["Reviews"]

SHUFFLE_SEED = 113
SENTIMENT = {"neg": 0, "pos": 1}
INNER = tuple(f"{split}/{label}/" for split in ("train", "test") for label in ("pos", "neg"))

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Reviews:
    """Word ranks and labels of both splits."""

    train: Sentences
    train_labels: Labels
    test: Sentences
    test_labels: Labels
    ranks: str

    @classmethod
    def of_texts(cls, splits: dict[str, list[tuple[str, int]]]) -> Reviews:
        """From texts with their labels; words are ranked by the training texts alone."""
        words = {name: [tokenize(text) for text, _ in rows] for name, rows in splits.items()}
        ranks = rank_words(words["train"])
        labels = {name: np.array([y for _, y in rows]) for name, rows in splits.items()}
        return cls(
            to_ranks(words["train"], ranks),
            labels["train"],
            to_ranks(words["test"], ranks),
            labels["test"],
            f"{len(ranks)} words ranked by their frequency in the training reviews",
        )


def read_json_lines(paths: tuple[Path, ...]) -> Reviews:
    """``train.jsonl.xz`` and ``test.jsonl.xz``: one review a line, with its label."""
    splits = {}
    for name, path in zip(("train", "test"), paths, strict=True):
        content = read_bytes(path)
        with reading(path):
            rows = [json.loads(line) for line in content.decode().split("\n") if line]
            splits[name] = [(row["text"], int(row["label"])) for row in rows]
    return Reviews.of_texts(splits)


def read_texts(paths: tuple[Path, ...]) -> Reviews:
    """``aclImdb_v1.tar.gz``, or the folder it unpacks to: one file a review."""
    splits: dict[str, list[tuple[tuple[int, int], str, int]]] = {"train": [], "test": []}
    with reading(paths[0]):
        for name, content in members(paths[0], INNER):
            split, sentiment, file = name.split("/")
            label, number = SENTIMENT[sentiment], int(file.partition("_")[0])
            splits[split].append(((1 - label, number), content.decode(), label))
        if not all(splits.values()):
            raise ValueError("it has no reviews in train and test")
    return Reviews.of_texts(
        {
            split: [(text, label) for _, text, label in sorted(rows)]
            for split, rows in splits.items()
        }
    )


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
    licence="none stated",
    source="A. L. Maas et al., Learning Word Vectors for Sentiment Analysis, ACL 2011",
    forms=FORMS,
)
def imdb(
    content: Reviews, *, words: int = 20_000, length: int = 80, validation: int = 5_000
) -> Dataset:
    """Reviews as indices ``[reviews, length]``.

    Args:
        content: what was read.
        words: size of the vocabulary, counting padding 0, start 1, rare word 2 and the unused 3.
        length: words kept from the end of a review; shorter ones are padded in front.
        validation: how many of the last training reviews are set apart, after the shuffle.
    """
    if words < 5 or length < 1:
        raise ValueError(f"words={words} and length={length} leave no words; give more of both")
    shuffle = np.random.RandomState(SHUFFLE_SEED)
    parts = []
    for sentences, labels in (
        (content.train, content.train_labels),
        (content.test, content.test_labels),
    ):
        order = np.arange(len(sentences))
        shuffle.shuffle(order)
        indices = encode(sentences, words, length)[order]
        parts.append(Examples(torch.from_numpy(indices), torch.from_numpy(labels[order])))
    train, held_out = split_last(parts[0], validation)
    return Dataset(
        name="imdb",
        task="sequence",
        train=train,
        validation=held_out,
        test=parts[1],
        classes=("negative", "positive"),
        preprocessing=(
            f"{content.ranks}; indices below {words}, rank r is r + 3, padding 0, start 1, rarer "
            f"words 2; last {length} words, padded in front; shuffled (numpy "
            f"RandomState({SHUFFLE_SEED})); last {validation} training reviews for validation"
        ),
    )
