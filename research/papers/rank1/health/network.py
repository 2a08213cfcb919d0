"""Recurrent network for health records [rank-1, Table 7]."""

from functools import partial

import torch
from torch import Tensor, nn

from leanbayes.errors import require
from leanbayes.lab.architectures import starts
from leanbayes.lab.architectures.base import Network, register_architecture
from research.networks.recurrent import KERAS_LSTM, keras_lstm


@register_architecture("ehr-rnn")
class EhrRecurrent(Network):
    """The recurrent network of the rank-1 paper for electronic health records (Table 7).

    Every day is a bag of codes and of measurements (cut into ranges), each a mean of embedding
    vectors. An LSTM reads the days; its state at the last day that has an entry, joined with the
    context of the patient, goes through ``hidden`` (ReLU6) and ``dense``. In the rank-1 paper all
    layers have rank-one factors except ``code_embedding`` and ``measurement_embedding``, which are
    mean field.

    Takes indices ``[batch, days, codes + measurements]``, where 0 means no entry, and gives
    ``[batch, outputs]``, or ``[batch]`` for one output. With a context there is one row more in
    front of the days, which begins with the numbers of the context in hundredths. The sizes of the
    vocabulary and of the bags, and the dimension that Table 7's multiplier multiplies, were not
    published.

    Args:
        vocabulary: how many codes there are, with 0.
        ranges: how many ranges of measurements there are, with 0; by default 5 for each of 100.
        codes: how many codes a day can hold.
        measurements: how many measurements a day can hold.
        days: how many days an example has.
        code_dimension: of a code's vector; by default 0.85827 × 128.
        measurement_dimension: of a measurement's vector; 32 (normal) or 16 (Cauchy) in Table 7.
        rnn_dim: dimension of the LSTM.
        hidden_layer_dim: dimension of the hidden layer.
        context: how many numbers describe the patient, such as gender and age.
        outputs: how many outputs there are.
        dropout: share of the bags, of the state and of the hidden layer that is dropped.

    Example:
        >>> EhrRecurrent(codes=3, measurements=2, vocabulary=9)(torch.ones(4, 7, 5).long()).shape
        torch.Size([4])
    """

    def __init__(
        self,
        vocabulary: int = 10_000,
        ranges: int = 501,
        codes: int = 32,
        measurements: int = 32,
        days: int = 30,
        code_dimension: int = 110,
        measurement_dimension: int = 32,
        rnn_dim: int = 512,
        hidden_layer_dim: int = 512,
        context: int = 0,
        outputs: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require(
            context <= codes + measurements,
            f"a context of {context} numbers does not fit into a row of {codes + measurements}; "
            "raise the limits of codes or measurements",
        )
        self.codes, self.measurements, self.context = codes, measurements, context
        self.rows = int(context > 0)
        self.input_shape = (self.rows + days, codes + measurements)
        self.code_embedding = nn.Embedding(vocabulary, code_dimension, padding_idx=0)
        self.measurement_embedding = nn.Embedding(ranges, measurement_dimension, padding_idx=0)
        self.lstm = keras_lstm(code_dimension + measurement_dimension, rnn_dim)
        self.hidden = nn.Linear(rnn_dim + context, hidden_layer_dim)
        self.dense = nn.Linear(hidden_layer_dim, outputs)
        self.dropout = nn.Dropout(dropout)
        self.first_weights = {
            "*_embedding.weight": partial(_padded, partial(starts.uniform, 0.05)),
            "hidden.weight": starts.he_normal,
            "dense.weight": starts.he_normal,
            "*.bias": starts.zeros,
            **KERAS_LSTM,
        }
        self.reset()

    def forward(self, entries: Tensor) -> Tensor:
        require(
            entries.shape[-1] == self.codes + self.measurements,
            f"days have {entries.shape[-1]} entries, and {self.codes} codes and "
            f"{self.measurements} measurements are needed; give the network those of the data",
        )
        context, entries = entries.split((self.rows, entries.shape[1] - self.rows), 1)
        codes, measurements = entries.long().split((self.codes, self.measurements), -1)
        bags = _bag(self.code_embedding, codes), _bag(self.measurement_embedding, measurements)
        y, _ = self.lstm(self.dropout(torch.cat(bags, -1)))
        state = self.dropout(y[torch.arange(len(y), device=y.device), _last_day(entries)])
        if self.context:
            state = torch.cat([state, context[:, 0, : self.context].to(state) / 100], -1)
        hidden = self.dropout(nn.functional.relu6(self.hidden(state)))
        logits: Tensor = self.dense(hidden)
        return logits.squeeze(-1) if logits.shape[-1] == 1 else logits


def _padded(
    fill: starts.Fill, tensor: Tensor, fan_in: int, generator: torch.Generator | None
) -> None:
    """Another rule, with zeros in the row of the padding index."""
    fill(tensor, fan_in, generator)
    nn.init.zeros_(tensor[0])


def _bag(embedding: nn.Module, indices: Tensor) -> Tensor:
    """Return the mean vector of the entries, zero where there are none."""
    total: Tensor = embedding(indices).sum(-2)
    return total / (indices != 0).sum(-1, keepdim=True).clamp_min(1)


def _last_day(entries: Tensor) -> Tensor:
    """Return the last day of each example that has an entry, the first if none has."""
    days = torch.arange(entries.shape[1], device=entries.device)
    return (days * (entries != 0).any(-1)).amax(-1)
