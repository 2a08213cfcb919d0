"""Networks that people have, with their batches; plain torch, the same for every method."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from research.benchmarks.networks import Setup, mlp

VOCABULARY = 10_000
"""Entries of the tables of the transformer and of the LSTM."""


class Block(nn.Module):
    """Two 3 × 3 convolutions with batch normalization and a shortcut that is not learned."""

    def __init__(self, inputs: int, filters: int) -> None:
        super().__init__()
        self.stride = filters // inputs
        self.conv1 = nn.Conv2d(inputs, filters, 3, self.stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(filters)
        self.relu1, self.dropout = nn.ReLU(), nn.Dropout(0.0)
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(filters)
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.dropout(self.relu1(self.norm1(self.conv1(x))))
        y = self.norm2(self.conv2(y))
        if self.stride > 1:
            missing = y.shape[1] - x.shape[1]
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, missing // 2, missing // 2))
        return self.relu2(y + x)


def resnet20() -> nn.Sequential:
    """The ResNet-20 of CIFAR-10 [He and others, 2016]."""
    stem = (nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    widths = (16, 16, 16, 16, 32, 32, 32, 64, 64, 64)
    blocks = [Block(a, b) for a, b in pairwise(widths)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Embedded(nn.Module):
    """Vectors of tokens and of their positions, added."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.tokens(x) + self.positions[: x.shape[1]]


class MeanOfTokens(nn.Module):
    """The mean over the second dimension."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def transformer(
    layers: int = 4, width: int = 256, vocabulary: int = VOCABULARY, length: int = 64
) -> nn.Sequential:
    """An encoder of sequences for ten classes, with heads of 64 units."""
    encoder = nn.TransformerEncoderLayer(
        width, width // 64, 4 * width, dropout=0.0, batch_first=True
    )
    return nn.Sequential(
        Embedded(vocabulary, length, width),
        nn.TransformerEncoder(encoder, layers),
        MeanOfTokens(),
        nn.Linear(width, 10),
    )


class LastState(nn.Module):
    """The output of an LSTM at the last step."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(units, units, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0][:, -1]


def lstm() -> nn.Sequential:
    """An embedding, an LSTM of 128 units and a linear layer for ten classes."""
    table = nn.Embedding(VOCABULARY, 128)
    return nn.Sequential(table, LastState(128), nn.Dropout(0.0), nn.Linear(128, 10))


class TokenBlock(nn.Module):
    """The feed-forward half of a transformer's layer: 512 units, 2,048, and 512 again."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(512)
        self.up, self.down = nn.Linear(512, 2048), nn.Linear(2048, 512)
        self.relu, self.dropout = nn.ReLU(), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.dropout(self.relu(self.up(self.norm(x)))))


def token_mlp() -> nn.Sequential:
    """Four dense blocks that act on each token alone."""
    return nn.Sequential(*(TokenBlock() for _ in range(4)), MeanOfTokens(), nn.Linear(512, 10))


@dataclass(frozen=True)
class Tokens(Setup):
    """A network that reads tokens.

    Attributes:
        vocabulary: how many there are.
    """

    vocabulary: int = VOCABULARY

    def data(self, examples: int | None = None) -> tuple[Tensor, Tensor]:
        """Tokens whose frequencies fall as one over their rank, as those of words do."""
        count = examples or self.batch
        often = torch.arange(1, self.vocabulary + 1).float().reciprocal()
        tokens = torch.multinomial(often, count * self.shape[0], replacement=True)
        return tokens.view(count, *self.shape), torch.randint(10, (count,))


def large_transformer() -> nn.Sequential:
    """A transformer of 100 million parameters."""
    return transformer(12, 768, vocabulary=20_000, length=32)


NETWORKS: dict[str, Setup] = {
    "resnet": Setup("ResNet-20, batch 128", resnet20, 128, (3, 32, 32)),
    "transformer": Tokens("transformer, 4 × 256, 64 tokens, batch 32", transformer, 32, (64,)),
    "lstm": Tokens("LSTM, 128 units, 100 steps, batch 64", lstm, 64, (100,)),
    "tokens": Setup("token-wise MLP, 4 × 512-2048, batch 16", token_mlp, 16, (64, 512)),
}
README = Setup("MLP 784-400-400-10, batch 128", mlp, 128, (784,))
LARGE = Tokens("transformer, 100 million parameters", large_transformer, 2, (32,), 20_000)
