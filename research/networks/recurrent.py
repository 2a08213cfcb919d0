"""Recurrent networks, with the one bias and the first weights of Keras."""

from functools import partial
from typing import Literal

from torch import Tensor, nn

from leanbayes.errors import require_choice
from leanbayes.lab.architectures import starts
from leanbayes.lab.architectures.base import Network, register_architecture
from research.networks.starts import glorot_uniform, orthogonal, unit_forget_bias

KERAS_LSTM: dict[str, starts.Fill] = {
    "lstm.weight_ih*": glorot_uniform,
    "lstm.weight_hh*": orthogonal,
    "lstm.bias_ih*": unit_forget_bias,
    "lstm.bias_hh*": starts.zeros,
}
"""First weights of an LSTM that is called ``lstm``."""


def keras_lstm(inputs: int, hidden: int) -> nn.LSTM:
    """Return an LSTM whose second bias, which Keras does not have, stays at zero."""
    lstm = nn.LSTM(inputs, hidden, batch_first=True)
    lstm.get_parameter("bias_hh_l0").requires_grad_(False)
    return lstm


@register_architecture("imdb-lstm")
class ImdbLstm(Network):
    """``embedding``, ``lstm`` and ``dense`` of the Keras IMDB example, without dropout [k-tied
    suppl., D.1].

    Takes word indices ``[batch, words]``, padded at the front with an index like any other, and
    gives one logit per example, ``[batch]``. In the k-tied paper only ``lstm`` is Bayesian.

    Args:
        vocabulary: how many words there are.
        embedding: dimension of a word's vector.
        hidden: dimension of the LSTM.
        words: how many words an example has.
        kernels: first weights of the LSTM's two matrices: Glorot uniform and orthogonal as in
            Keras, or both He normal as the k-tied paper says of all its posterior means.

    Example:
        >>> ImdbLstm(vocabulary=50)(torch.zeros(3, 80, dtype=torch.long)).shape
        torch.Size([3])
    """

    def __init__(
        self,
        vocabulary: int = 20_000,
        embedding: int = 128,
        hidden: int = 128,
        words: int = 80,
        kernels: Literal["keras", "he"] = "keras",
    ) -> None:
        super().__init__()
        require_choice("kernels", kernels, ("keras", "he"))
        self.input_shape = (words,)
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = keras_lstm(embedding, hidden)
        self.dense = nn.Linear(hidden, 1)
        self.first_weights = {
            "embedding.weight": partial(starts.uniform, 0.05),
            "dense.weight": glorot_uniform,
            "dense.bias": starts.zeros,
            **KERAS_LSTM,
        }
        if kernels == "he":
            self.first_weights |= {"lstm.weight*": starts.he_normal}
        self.reset()

    def forward(self, words: Tensor) -> Tensor:
        y, _ = self.lstm(self.embedding(words))
        logits: Tensor = self.dense(y[:, -1])
        return logits.squeeze(-1)
