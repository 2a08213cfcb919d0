"""The dimension that counts examples: members, signs and factors must follow it."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.layers.forward_pass import forward_pass

TIME, BATCH, WIDTH, MEMBERS = 5, 3, 8, 4
FACTORS = lb.priors.Normal(0.1, loc=1.0)


def encoder(batch_first: bool) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=batch_first)


def sequence(batch_first: bool) -> torch.Tensor:
    return torch.randn((BATCH, TIME, WIDTH) if batch_first else (TIME, BATCH, WIDTH))


class FirstOutput(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


class WithPositions(nn.Module):
    """Tokens and a table of positions, which has no dimension for examples."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(10, WIDTH), nn.Embedding(64, WIDTH)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, tokens):
        places = self.positions(torch.arange(tokens.shape[1]))
        return self.head(torch.tanh(self.tokens(tokens) + places).mean(1))


class Flattening(nn.Module):
    """Gives its layer one row for every step of every example, as many networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 2)

    def forward(self, x):
        return self.layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def member_means(model: nn.Module, x: torch.Tensor, dim: int) -> torch.Tensor:
    plain = [lb.deterministic(model, member=k).eval() for k in range(MEMBERS)]
    with torch.no_grad():
        return torch.stack([one(x).movedim(dim, 0) for one in plain])


@pytest.mark.tried(
    "Batch axis",
    what="rank-1 members in a transformer layer with batch_first=False",
    holds="linear layers count examples in dimension 1; each member is its own plain network",
)
@pytest.mark.parametrize("batch_first", [True, False])
def test_members_of_a_transformer_are_its_members(batch_first):
    model = lb.convert(encoder(batch_first), lb.Rank1(MEMBERS), FACTORS)
    x, dim = sequence(batch_first), 0 if batch_first else 1
    with lb.using(model, lb.estimators.mean):
        drawn = lb.predict(model, x, samples=1, batch_dim=dim).samples
        sliced = lb.predict(model, x, samples=1, batch_dim=dim, batch_size=2).samples
    expected = member_means(model, x, dim)
    torch.testing.assert_close(drawn, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sliced, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.tried(
    "Batch axis",
    what="a time-first network given to predict as if examples came first",
    holds="refused: the sentence says batch_dim",
)
@pytest.mark.parametrize(
    "net", [lambda: encoder(False), lambda: FirstOutput(nn.LSTM(WIDTH, 4))], ids=["encoder", "lstm"]
)
def test_steps_are_not_taken_for_examples(net):
    model = lb.convert(net(), lb.Rank1(MEMBERS), FACTORS)
    with pytest.raises(ValueError, match="batch_dim"):
        lb.predict(model, sequence(False), samples=2)
    steps = lb.tile(sequence(False), MEMBERS)
    with pytest.raises(ValueError, match="batch_dim"), forward_pass(rows=len(steps)):
        model(steps)
    tiled = lb.tile(sequence(False), MEMBERS, dim=1)
    with forward_pass(rows=tiled.shape[1]):
        assert model(tiled).shape[:2] == (TIME, MEMBERS * BATCH)


def test_a_time_first_lstm_is_predicted_member_by_member():
    model = FirstOutput(lb.convert(nn.LSTM(WIDTH, 4), lb.Rank1(MEMBERS), FACTORS))
    x = sequence(False)
    with lb.using(model, lb.estimators.mean):
        drawn = lb.predict(model, x, samples=1, batch_dim=1).samples
    expected = member_means(model, x, 1)
    torch.testing.assert_close(drawn, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.tried(
    "Batch axis",
    what="a table of positions, looked up with arange, in a mixture of members",
    holds="refused, also where there are as many positions as rows",
)
@pytest.mark.parametrize("positions", [7, 8, 16])  # two examples of four members are eight rows
def test_positions_are_not_split_among_members(positions):
    model = lb.convert(WithPositions(), lb.Rank1(MEMBERS), FACTORS)
    tokens = torch.randint(10, (2, positions))
    with pytest.raises(ValueError, match="expand the input to the batch or exclude the layer"):
        lb.predict(model, tokens, samples=1)
    tiled = lb.tile(tokens, MEMBERS)
    sentence = "expand the input to the batch or exclude the layer"
    with pytest.raises(ValueError, match=sentence), forward_pass(rows=len(tiled)):
        model(tiled)
    kept = lb.convert(WithPositions(), lb.Rank1(MEMBERS), FACTORS, exclude=["positions"])
    assert lb.predict(kept, tokens, samples=2).samples.shape == (2 * MEMBERS, 2, 2)


def test_one_row_for_all_examples_is_given_to_every_member():
    class OneRow(WithPositions):
        def forward(self, tokens):
            places = self.positions(torch.arange(tokens.shape[1])[None])
            return self.head(torch.tanh(self.tokens(tokens) + places).mean(1))

    model = lb.convert(OneRow(), lb.Rank1(MEMBERS), FACTORS)
    tokens = torch.randint(10, (2, 8))
    with lb.using(model, lb.estimators.mean):
        drawn = lb.predict(model, tokens, samples=1).samples
    torch.testing.assert_close(drawn, member_means(model, tokens, 0), rtol=1e-5, atol=1e-6)


def test_one_label_for_each_example_is_a_batch():
    model = lb.convert(nn.Embedding(10, 3), lb.Rank1(2), FACTORS)
    assert lb.predict(model, torch.arange(5), samples=1).samples.shape == (2, 5, 3)


def test_positions_share_one_draw_where_there_is_one_member():
    """Factors for every position would be another matrix for each of them."""
    table = lb.convert(nn.Embedding(6, 2), lb.Rank1(1), FACTORS)
    with torch.no_grad(), forward_pass(rows=4):
        ratio = table(torch.arange(6)) / table.posterior().weight.T
    factor = ratio / ratio[:1]  # r cancels: what is left is s of each entry, equal in all channels
    torch.testing.assert_close(factor[:, 0], factor[:, 1])


@pytest.mark.tried(
    "Batch axis",
    what="flipout signs in a transformer layer with batch_first=False",
    holds="signs belong to an example, and all its steps share them",
)
def test_flipout_has_signs_for_examples_and_not_for_steps():
    model = lb.convert(
        encoder(False),
        lb.MeanField(0.5),
        lb.priors.Normal(1.0),
        lb.estimators.flipout,
        include=["linear1"],
    )
    layer = model.linear1
    x = torch.ones(TIME, BATCH, WIDTH)
    y = layer(x).detach()
    assert torch.equal(y, y[:1].expand_as(y))  # equal steps of one example agree
    assert not torch.allclose(y[0, 0], y[0, 1])  # equal examples do not


def test_rows_of_flattened_steps_share_the_noise_of_their_example():
    model = lb.convert(Flattening(), lb.Rank1(2), lb.priors.Normal(0.1, loc=1.0))
    x = torch.ones(BATCH, TIME, WIDTH)
    samples = lb.predict(model, x, samples=3).samples
    assert torch.allclose(samples, samples[:, :, :1].expand_as(samples), atol=1e-6)
    assert not torch.allclose(samples[:, 0], samples[:, 1])


def test_a_layer_can_be_told_its_batch_dimension():
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2))
    model = lb.convert(net, lb.Rank1(MEMBERS), FACTORS, overrides={"**": {"batch_dim": 1}})
    x = sequence(False)
    with lb.using(model, lb.estimators.mean):
        drawn = lb.predict(model, x, samples=1, batch_dim=1).samples
    torch.testing.assert_close(drawn, member_means(model, x, 1), rtol=1e-5, atol=1e-6)
    assert model(x[:, 0].unsqueeze(1).expand(-1, MEMBERS, -1)).shape == (TIME, MEMBERS, 2)


def test_a_batch_dimension_is_saved(tmp_path):
    net = nn.Sequential(nn.Linear(WIDTH, 2), encoder(False))
    given = {"0": {"batch_dim": 1}}
    model = lb.convert(net[0], lb.KTied(2), lb.priors.Normal(1.0), overrides={"": {"batch_dim": 1}})
    again = lb.load(net[0], lb.save(model, tmp_path / "alone"))
    assert again.op.batch_dim == 1
    whole = lb.convert(net, lb.KTied(2), lb.priors.Normal(1.0), overrides=given)
    loaded = lb.load(net, lb.save(whole, tmp_path / "whole"))
    dims = [part.op.batch_dim for _, part in lb.extend.random_maps(loaded)]
    assert dims == [part.op.batch_dim for _, part in lb.extend.random_maps(whole)]
    assert sum(dims) == 3


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="batch_dim is 2; it is 0, or 1"):
        lb.convert(
            nn.Linear(2, 2), lb.KTied(2), lb.priors.Normal(1.0), overrides={"**": {"batch_dim": 2}}
        )
    with pytest.raises(ValueError, match="Conv has examples in dimension 0"):
        lb.convert(
            nn.Conv1d(1, 1, 1),
            lb.KTied(1),
            lb.priors.Normal(1.0),
            overrides={"**": {"batch_dim": 1}},
        )
    model = lb.convert(nn.Linear(2, 2), lb.KTied(2), lb.priors.Normal(1.0))
    with pytest.raises(ValueError, match="batch_dim is 3; inputs have shapes"):
        lb.predict(model, torch.zeros(2, 2), batch_dim=3)
    with pytest.raises(ValueError, match="may stand in two places"):
        lb.predict(model, torch.zeros(3, 3, 2), samples=1, batch_dim=1)
