"""Torch layers of every kind that is converted, and small networks of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import leanbayes as lb

PRIOR = lb.priors.Normal(0.5)
POSTERIOR = lb.MeanField(0.1)


@dataclass(frozen=True)
class Layer:
    """A torch layer, how many weight matrices and biases it has, and an input."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    matrices: int = 1
    biases: int = 1
    inputs: int = 1
    entries: int = 0

    def module(self) -> nn.Module:
        return self.make().double().eval()

    def input(self) -> tuple[Tensor, ...]:
        if self.entries:
            return (torch.randint(self.entries, self.shape),)
        return (torch.randn(self.shape, dtype=torch.float64),) * self.inputs


def _encoder_layer(**options) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)


LAYERS: dict[str, Layer] = {
    "linear": Layer(lambda: nn.Linear(3, 4), (6, 3)),
    "linear_without_bias": Layer(lambda: nn.Linear(3, 4, bias=False), (6, 3), biases=0),
    "linear_sequence": Layer(lambda: nn.Linear(3, 4), (6, 5, 3)),
    "conv1d": Layer(lambda: nn.Conv1d(2, 4, 3), (6, 2, 7)),
    "conv2d": Layer(lambda: nn.Conv2d(2, 4, 3, padding=1), (6, 2, 5, 5)),
    "conv2d_non_square": Layer(
        lambda: nn.Conv2d(2, 4, (3, 2), (2, 1), (1, 0), (1, 2)), (6, 2, 7, 6)
    ),
    "conv2d_same": Layer(lambda: nn.Conv2d(2, 4, (3, 5), padding="same"), (6, 2, 5, 5)),
    "conv2d_reflect": Layer(
        lambda: nn.Conv2d(2, 4, 3, padding=(1, 2), padding_mode="reflect"), (6, 2, 5, 5)
    ),
    "conv2d_circular_same": Layer(
        lambda: nn.Conv2d(2, 4, (2, 3), padding="same", padding_mode="circular"), (6, 2, 5, 5)
    ),
    "conv2d_grouped": Layer(lambda: nn.Conv2d(4, 6, 3, groups=2), (6, 4, 5, 5)),
    "conv2d_depthwise": Layer(lambda: nn.Conv2d(4, 4, 3, groups=4), (6, 4, 5, 5)),
    "conv3d": Layer(lambda: nn.Conv3d(2, 3, (1, 2, 3)), (2, 2, 3, 4, 5)),
    "conv_transpose1d": Layer(
        lambda: nn.ConvTranspose1d(2, 4, 3, stride=2, output_padding=1), (6, 2, 4)
    ),
    "conv_transpose2d": Layer(
        lambda: nn.ConvTranspose2d(2, 4, (2, 3), (1, 2), (0, 1), dilation=(2, 1)), (6, 2, 4, 4)
    ),
    "conv_transpose2d_grouped": Layer(
        lambda: nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False), (6, 4, 3, 3), biases=0
    ),
    "conv_transpose3d": Layer(lambda: nn.ConvTranspose3d(2, 3, (1, 2, 2)), (2, 2, 2, 3, 3)),
    "embedding": Layer(lambda: nn.Embedding(9, 4), (6, 5), biases=0, entries=9),
    "embedding_padded": Layer(
        lambda: nn.Embedding(9, 4, padding_idx=-1), (6, 5), biases=0, entries=9
    ),
    "embedding_bag": Layer(lambda: nn.EmbeddingBag(9, 4), (6, 5), biases=0, entries=9),
    "embedding_bag_sum": Layer(
        lambda: nn.EmbeddingBag(9, 4, mode="sum", padding_idx=2), (6, 5), biases=0, entries=9
    ),
    "bilinear": Layer(lambda: nn.Bilinear(3, 3, 4), (6, 3), inputs=2),
    "lstm_cell": Layer(lambda: nn.LSTMCell(3, 4), (6, 3), 2, 2),
    "gru_cell": Layer(lambda: nn.GRUCell(3, 4, bias=False), (6, 3), 2, 0),
    "rnn_cell_tanh": Layer(lambda: nn.RNNCell(3, 4), (6, 3), 2, 2),
    "rnn_cell_relu": Layer(lambda: nn.RNNCell(3, 4, nonlinearity="relu"), (6, 3), 2, 2),
    "lstm": Layer(lambda: nn.LSTM(3, 4), (5, 6, 3), 2, 2),
    "lstm_stacked_bidirectional": Layer(
        lambda: nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True), (6, 5, 3), 8, 8
    ),
    "lstm_projected": Layer(lambda: nn.LSTM(3, 4, 2, proj_size=2), (5, 6, 3), 6, 4),
    "gru": Layer(lambda: nn.GRU(3, 4, 2, bias=False), (5, 6, 3), 4, 0),
    "gru_bidirectional": Layer(lambda: nn.GRU(3, 4, bidirectional=True), (5, 6, 3), 4, 4),
    "rnn_tanh": Layer(lambda: nn.RNN(3, 4, 2), (5, 6, 3), 4, 4),
    "rnn_relu": Layer(lambda: nn.RNN(3, 4, nonlinearity="relu"), (5, 6, 3), 2, 2),
    "attention": Layer(lambda: nn.MultiheadAttention(8, 2), (5, 6, 8), 4, 4, inputs=3),
    "attention_batch_first": Layer(
        lambda: nn.MultiheadAttention(8, 2, bias=False, batch_first=True), (6, 5, 8), 4, 0, 3
    ),
    "attention_other_sizes": Layer(
        lambda: _SelfAttention(nn.MultiheadAttention(8, 2, kdim=6, vdim=6)), (5, 6, 8), 4, 4
    ),
    "transformer_encoder_layer": Layer(_encoder_layer, (6, 5, 8), 6, 6),
    "transformer_encoder_layer_gelu": Layer(
        lambda: _encoder_layer(activation="gelu", norm_first=True), (6, 5, 8), 6, 6
    ),
    "transformer_encoder": Layer(
        lambda: nn.TransformerEncoder(_encoder_layer(), 2), (6, 5, 8), 12, 12
    ),
    "transformer_decoder_layer": Layer(
        lambda: nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), (6, 5, 8), 10, 10, 2
    ),
}


class _SelfAttention(nn.Module):
    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        narrow = x[..., : self.attention.kdim]
        return self.attention(x, narrow, narrow)[0]


def first(output) -> Tensor:
    """The tensor that a layer returns, or the first of several."""
    return output if isinstance(output, Tensor) else output[0]


def snapshot(model: nn.Module):
    """Everything about a module that a conversion could change."""
    types = {name: type(module) for name, module in model.named_modules()}
    modes = {name: module.training for name, module in model.named_modules()}
    numbers = {name: p.detach().clone() for name, p in model.state_dict().items()}
    frozen = {name: p.requires_grad for name, p in model.named_parameters()}
    return types, modes, numbers, frozen


def assert_unchanged(model: nn.Module, before) -> None:
    types, modes, numbers, frozen = snapshot(model)
    assert (types, modes, frozen) == (before[0], before[1], before[3])
    assert numbers.keys() == before[2].keys()
    assert all(torch.equal(numbers[name], before[2][name]) for name in numbers)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()


class Net(nn.Module):
    """A network with nested names and one layer in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(3, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Sequential(nn.Linear(4, 4)))
        self.again = self.stem_twin = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stem_twin(self.again(self.body(self.stem(x)))))


def converted_names(model: nn.Module) -> set[str]:
    return {name for name, _ in lb.extend.random_maps(model)}
