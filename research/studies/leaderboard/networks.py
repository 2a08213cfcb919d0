"""Networks of the studies: perceptrons, small convolutional and residual networks."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Two convolutions with batch normalization and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))
        self.dropout = nn.Dropout(dropout)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            narrow = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(narrow, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.dropout(F.relu(self.norms[0](self.first(x))))
        return F.relu(self.norms[1](self.second(hidden)) + self.shortcut(x))


def mlp(units: int, inputs: int, dropout: float) -> nn.Module:
    """Return two hidden layers."""
    first = (nn.Linear(inputs, units), nn.ReLU(), nn.Dropout(dropout))
    second = (nn.Linear(units, units), nn.ReLU(), nn.Dropout(dropout))
    return nn.Sequential(nn.Flatten(), *first, *second, nn.Linear(units, 10))


def cnn(inputs: int, dropout: float) -> nn.Module:
    """Return two convolutions and a hidden layer, for images of 28 × 28 pixels."""
    first = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    hidden = (nn.Dropout(dropout), nn.Linear(32 * 49, 128), nn.ReLU(), nn.Dropout(dropout))
    return nn.Sequential(*first, *second, nn.Flatten(), *hidden, nn.Linear(128, 10))


def table(inputs: int, dropout: float) -> nn.Module:
    """Return a hidden layer of 50 units."""
    return nn.Sequential(nn.Linear(inputs, 50), nn.ReLU(), nn.Dropout(dropout), nn.Linear(50, 1))


def resnet(channels: int, inputs: int, dropout: float) -> nn.Module:
    """Return three blocks of 16, 32 and 64 filters with batch normalization."""
    stem = (nn.Conv2d(channels, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    blocks = (Block(16, 16, 1, dropout), Block(16, 32, 2, dropout), Block(32, 64, 2, dropout))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(64, 10))
    return nn.Sequential(*stem, *blocks, *head)


class Lstm(nn.Module):
    """An embedding, an LSTM and a linear layer on its last state."""

    def __init__(self, inputs: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5000, 32)
        self.lstm = nn.LSTM(32, 32, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.dropout(self.embedding(x)))
        return self.dense(self.dropout(states[:, -1]))
