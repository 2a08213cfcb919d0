"""Saved models that every later version must load; see ``tests/golden/README.md``.

``python tests/golden_models.py`` writes what is missing in ``tests/golden`` and leaves the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb

FOLDER = Path(__file__).parents[1] / "golden"
PRIOR = lb.priors.Normal(0.5)
FACTORS = lb.priors.Normal(0.1, loc=1.0)


@dataclass(frozen=True)
class Golden:
    """A network, how it is converted, and the shape of each of its inputs."""

    net: Callable[[], nn.Module]
    inputs: tuple[tuple[int, ...], ...]
    posterior: lb.posteriors.Posterior = field(default_factory=lambda: lb.KTied(2))
    prior: lb.priors.Prior = PRIOR
    options: Mapping[str, Any] = field(default_factory=dict)
    entries: int = 0
    dtype: torch.dtype = torch.float64

    def network(self) -> nn.Module:
        return self.net().to(self.dtype).eval()

    def draw_inputs(self) -> list[Tensor]:
        if self.entries:
            return [torch.randint(self.entries, shape) for shape in self.inputs]
        return [torch.randn(shape, dtype=self.dtype) for shape in self.inputs]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


X = ((4, 3),)
MODELS: dict[str, Golden] = {
    "k_tied": Golden(mlp, X),
    "k_tied_float32": Golden(mlp, X, dtype=torch.float32),
    "mean_field": Golden(mlp, X, lb.MeanField()),
    "mean_field_softplus": Golden(
        mlp,
        X,
        lb.MeanField(lb.posteriors.Scale(0.1, raw_spread=0.1, stored="softplus", ceiling=0.2)),
    ),
    "matrix_normal": Golden(mlp, X, lb.posteriors.MatrixNormal()),
    "matrix_normal_low_rank_diagonal": Golden(
        mlp, X, lb.posteriors.MatrixNormal(rank=1, diagonal=True)
    ),
    "point": Golden(mlp, X, lb.posteriors.Point()),
    "variance": Golden(mlp, X, lb.posteriors.ZeroMean()),
    "dropout_layer": Golden(mlp, X, lb.posteriors.VariationalDropout(), lb.priors.LogUniform()),
    "dropout_additive": Golden(
        mlp, X, lb.posteriors.VariationalDropout("additive"), lb.priors.ARD()
    ),
    "pruned": Golden(mlp, X, lb.posteriors.Pruned(lb.MeanField())),
    "rank1": Golden(mlp, X, lb.Rank1(2), FACTORS),
    "rank1_batch_ensemble": Golden(mlp, X, lb.Rank1(2, factors="fixed"), lb.priors.Flat()),
    "random_biases": Golden(
        mlp, X, options={"bias": lb.MeanField(0.3), "bias_prior": lb.priors.Laplace(2.0)}
    ),
    "shared_prior": Golden(mlp, X, lb.MeanField(), lb.priors.Normal(0.5, learn="model")),
    "group_ard": Golden(mlp, X, lb.posteriors.MatrixNormal(rank=0), lb.priors.GroupARD(0.5)),
    "mixed": Golden(
        mlp,
        X,
        options={
            "overrides": {"2": {"posterior": lb.MeanField(), "estimator": lb.estimators.weights}}
        },
    ),
    "conv1d": Golden(lambda: nn.Conv1d(2, 3, 3, stride=2, padding=1), ((4, 2, 6),)),
    "conv2d_grouped": Golden(lambda: nn.Conv2d(4, 6, 3, groups=2, padding="same"), ((2, 4, 4, 4),)),
    "conv3d": Golden(lambda: nn.Conv3d(1, 2, (1, 2, 3)), ((2, 1, 2, 3, 4),)),
    "conv_transpose2d": Golden(
        lambda: nn.ConvTranspose2d(2, 4, 3, stride=2, output_padding=1, groups=2), ((2, 2, 3, 3),)
    ),
    "embedding": Golden(lambda: nn.Embedding(7, 3, padding_idx=0), ((4, 5),), entries=7),
    "lstm": Golden(lambda: nn.LSTM(3, 4, batch_first=True), ((2, 5, 3),)),
    "lstm_projected_random_biases": Golden(
        lambda: nn.LSTM(3, 4, 2, proj_size=2),
        ((5, 2, 3),),
        lb.posteriors.Point(),
        options={"bias": lb.MeanField(0.1)},
    ),
    "gru_bidirectional": Golden(lambda: nn.GRU(3, 4, bidirectional=True), ((5, 2, 3),)),
    "rnn_relu": Golden(lambda: nn.RNN(3, 4, nonlinearity="relu"), ((5, 2, 3),)),
    "lstm_rank1": Golden(
        lambda: nn.LSTM(3, 4, batch_first=True), ((4, 5, 3),), lb.Rank1(2), FACTORS
    ),
    "attention": Golden(lambda: nn.MultiheadAttention(4, 2, batch_first=True), ((2, 3, 4),) * 3),
    "attention_other_sizes": Golden(
        lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=2), ((3, 2, 4), (5, 2, 3), (5, 2, 2))
    ),
    "lstm_cell": Golden(lambda: nn.LSTMCell(3, 4), ((2, 3),)),
    "gru_cell": Golden(lambda: nn.GRUCell(3, 4), ((2, 3),), options={"bias": lb.MeanField(0.1)}),
    "rnn_cell": Golden(lambda: nn.RNNCell(3, 4, bias=False), ((2, 3),)),
    "embedding_bag": Golden(lambda: nn.EmbeddingBag(7, 3, padding_idx=0), ((4, 5),), entries=7),
    "bilinear": Golden(lambda: nn.Bilinear(3, 2, 4), ((4, 3), (4, 2))),
    "transformer_layer": Golden(
        lambda: nn.TransformerEncoderLayer(4, 2, 4, batch_first=True),
        ((2, 3, 4),),
        lb.posteriors.Point(),
        options={"include": ["self_attn", "linear1"]},
    ),
}


def mean_output(model: nn.Module, inputs: list[Tensor]) -> Tensor:
    """The first tensor that the model returns with its means as weights."""
    with lb.using(model, lb.estimators.mean), torch.no_grad():
        y = model(*inputs)
    return y if isinstance(y, Tensor) else y[0]


def write(name: str, golden: Golden) -> None:
    """Save a model with numbers that no initialization gives, and what it answers."""
    torch.manual_seed(sum(name.encode()))
    model = lb.convert(golden.network(), golden.posterior, golden.prior, **golden.options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for kept, buffer in model.named_buffers():
            if kept.endswith(".mask"):
                buffer.copy_(torch.rand(buffer.shape) < 0.5)
    inputs = golden.draw_inputs()
    lb.save(model, FOLDER / name)
    answers = {
        "inputs": [x.tolist() for x in inputs],
        "mean": mean_output(model, inputs).tolist(),
        "kl": lb.kl(model).item(),
        "layers": {n: repr(layer.posterior.spec) for n, layer in lb.extend.random_maps(model)},
    }
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(answers) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for each, example in MODELS.items():
        if not (FOLDER / f"{each}.safetensors").exists():
            write(each, example)
