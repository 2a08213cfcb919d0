"""LSTM, GRU and RNN: torch's own results, one draw a sequence, fused and unrolled alike."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch_layers import POSTERIOR, PRIOR

import leanbayes as lb
from leanbayes.distributions import FixedMap
from leanbayes.layers.forward_pass import Held, set_estimators
from leanbayes.ops import Linear

TIME, BATCH, IN, HIDDEN = 5, 4, 3, 4
KINDS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn_tanh": nn.RNN,
    "rnn_relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
OPTIONS = {
    "plain": {},
    "stacked": {"num_layers": 3},
    "bidirectional": {"bidirectional": True},
    "stacked_bidirectional": {"num_layers": 2, "bidirectional": True},
    "batch_first": {"batch_first": True, "num_layers": 2},
    "without_bias": {"bias": False, "bidirectional": True},
}
PROJECTED = {
    "projected": {"proj_size": 2},
    "projected_stacked": {"proj_size": 2, "num_layers": 2, "bidirectional": True},
}
NETS = {
    f"{kind}_{name}": (KINDS[kind], options)
    for kind in KINDS
    for name, options in (OPTIONS | PROJECTED if kind == "lstm" else OPTIONS).items()
}


def opaque(apply):
    """A map that does not say which weight it applies, so that only the loop can run it."""
    return lambda x: apply(x)


def unfused(q, op, usage):
    return opaque(lb.estimators.mean(q, op, usage))


def build(name: str, **more) -> nn.RNNBase:
    kind, options = NETS[name]
    return kind(IN, HIDDEN, **{**options, **more}).double()


def sequence(net: nn.RNNBase) -> torch.Tensor:
    shape = (BATCH, TIME, IN) if net.batch_first else (TIME, BATCH, IN)
    return torch.randn(shape, dtype=torch.float64)


def state(net: nn.RNNBase, *batch: int):
    rows = net.num_layers * (2 if net.bidirectional else 1)
    hidden = torch.randn(rows, *batch, net.proj_size or HIDDEN, dtype=torch.float64)
    if not isinstance(net, nn.LSTM):
        return hidden
    return hidden, torch.randn(rows, *batch, HIDDEN, dtype=torch.float64)


def tensors(output) -> list[torch.Tensor]:
    """Everything that a recurrent layer returns, in order."""
    y, final = output
    y = [y.data] if isinstance(y, PackedSequence) else [y]
    return y + (list(final) if isinstance(final, tuple) else [final])


def assert_same(a, b) -> None:
    for left, right in zip(tensors(a), tensors(b), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("estimator", [lb.estimators.mean, unfused], ids=["fused", "unrolled"])
@pytest.mark.parametrize("bias", [None, POSTERIOR], ids=["plain_bias", "random_bias"])
@pytest.mark.parametrize("name", NETS)
def test_means_give_the_results_of_torch(name, bias, estimator):
    net = build(name)
    model, x = lb.convert(net, POSTERIOR, PRIOR, estimator, bias=bias), sequence(net)
    assert_same(model(x), net(x))
    hx = state(net, BATCH)
    assert_same(model(x, hx), net(x, hx))
    one = x[0] if net.batch_first else x[:, 0]
    assert_same(model(one), net(one))
    hx = state(net)
    assert_same(model(one, hx), net(one, hx))


@pytest.mark.parametrize("ordered", [True, False], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("given", [False, True], ids=["zeros", "state"])
@pytest.mark.parametrize("name", NETS)
def test_packed_sequences_give_the_results_of_torch(name, given, ordered):
    net = build(name)
    model, x = lb.convert(net, POSTERIOR, PRIOR, lb.estimators.mean), sequence(net)
    lengths = torch.tensor([5, 3, 2, 1] if ordered else [2, 5, 1, 3])
    packed = pack_padded_sequence(x, lengths, net.batch_first, enforce_sorted=ordered)
    hx = state(net, BATCH) if given else None
    ours, theirs = model(packed, hx), net(packed, hx)
    assert_same(ours, theirs)
    torch.testing.assert_close(
        pad_packed_sequence(ours[0], net.batch_first)[0],
        pad_packed_sequence(theirs[0], net.batch_first)[0],
    )


@pytest.mark.parametrize("estimator", [lb.estimators.mean, unfused], ids=["fused", "unrolled"])
@pytest.mark.parametrize("name", NETS)
def test_gradients_of_the_means_are_those_of_torch(name, estimator):
    net = build(name)
    model, x = lb.convert(net, POSTERIOR, PRIOR, estimator), sequence(net)
    for module in (net, model):
        sum(t.square().sum() for t in tensors(module(x))).backward()
    for parameter, value in net.named_parameters():
        random = parameter in model.maps
        ours = model.map(parameter).posterior.loc if random else model.get_parameter(parameter)
        torch.testing.assert_close(ours.grad, value.grad, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("estimator", [lb.estimators.mean, unfused], ids=["fused", "unrolled"])
@pytest.mark.parametrize("kind", KINDS)
def test_dropout_between_layers_works_in_training_only(kind, estimator, training):
    net = build(f"{kind}_stacked", dropout=1.0).train(training)  # everything is dropped, or nothing
    model, x = lb.convert(net, POSTERIOR, PRIOR, estimator), sequence(net)
    assert_same(model(x), net(x))
    silent = torch.zeros_like(x)
    differs = not torch.allclose(model(x)[0], model(silent)[0])
    assert differs != training


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("name", NETS)
def test_a_drawn_sequence_runs_with_one_set_of_weights(name, packed):
    """A held model is the torch layer that has the drawn weights at every time step."""
    net = build(name)
    model, x = lb.convert(net, POSTERIOR, PRIOR, bias=POSTERIOR), sequence(net)
    if packed:
        x = pack_padded_sequence(x, torch.tensor([5, 4, 2, 1]), net.batch_first)
    with lb.held(model), torch.no_grad():
        drawn = {}
        for parameter in net.state_dict():
            fixed = model.map(parameter).held
            assert isinstance(fixed, FixedMap)
            drawn[parameter] = fixed.weight.reshape(net.get_parameter(parameter).shape)
        assert not torch.allclose(drawn["weight_hh_l0"], net.weight_hh_l0)
        net.load_state_dict(drawn)
        assert_same(model(x), net(x))
        with set_estimators(
            {layer: Held(opaque(layer.held), layer.op) for _, layer in lb.extend.random_maps(model)}
        ):
            assert_same(model(x), net(x))


def without_memory(posterior, prior, estimator) -> nn.Module:
    """A network that forgets: its output at a step depends on that step's input alone."""
    model = lb.convert(build("rnn_tanh_plain", bias=False), posterior, prior, estimator)

    def forget(name, learned):
        if "weight_hh" not in name:
            return learned
        return lb.posteriors.Point()(
            torch.zeros(learned().event_shape, dtype=torch.float64), Linear()
        )

    return lb.extend.map_posteriors(model, forget, inplace=True)


SHARING = {
    "weights": (POSTERIOR, PRIOR, lb.estimators.weights, True, True),
    "auto": (lb.KTied(2, 0.1), PRIOR, lb.estimators.auto, True, True),
    "flipout": (POSTERIOR, PRIOR, lb.estimators.flipout, True, False),
    "rank-one factors": (lb.Rank1(1, rate=0.1), lb.priors.Flat(), lb.estimators.auto, True, False),
    "local": (POSTERIOR, PRIOR, lb.estimators.local, False, False),
}


@pytest.mark.parametrize("case", SHARING)
@torch.no_grad()
def test_how_far_noise_is_shared(case):
    posterior, prior, estimator, over_time, over_examples = SHARING[case]
    model = without_memory(posterior, prior, estimator)
    y = model(torch.randn(IN, dtype=torch.float64).expand(TIME, BATCH, IN))[0]
    assert bool((y == y[:1]).all()) == over_time
    assert bool(torch.isclose(y, y[:, :1], rtol=1e-12).all()) == over_examples


@pytest.mark.parametrize(
    ("posterior", "prior", "estimator"),
    [case[:3] for case in SHARING.values()]
    + [(lb.posteriors.MatrixNormal(0.1), PRIOR, lb.estimators.weights)],
    ids=[*SHARING, "matrix normal"],
)
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_every_parameter_learns(kind, posterior, prior, estimator):
    net = build(f"{kind}_stacked_bidirectional")
    model, x = lb.convert(net, posterior, prior, estimator), sequence(net)
    model(x)[0].square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@pytest.mark.tried(
    "Batch axis",
    what="a packed sequence with noise per example",
    holds="it runs as the padded one does, sequence by sequence",
)
@pytest.mark.parametrize("name", ["lstm_stacked_bidirectional", "gru_plain", "lstm_projected"])
@pytest.mark.parametrize("family", ["rank1", "flipout"])
def test_noise_per_example_can_be_packed(name, family):
    posterior = lb.Rank1(members=2) if family == "rank1" else POSTERIOR
    prior = lb.priors.Normal(0.1, loc=1.0) if family == "rank1" else PRIOR
    estimator = lb.estimators.auto if family == "rank1" else lb.estimators.flipout
    model = lb.convert(build(name), posterior, prior, estimator)
    lengths, x = torch.tensor([2, 5, 3, 1]), torch.randn(5, 4, IN).double()
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    torch.manual_seed(0)
    y, state = model(packed)
    padded, given = pad_packed_sequence(y)
    assert given.equal(lengths)
    for row, length in enumerate(lengths.tolist()):
        torch.manual_seed(0)
        alone = model(x[:length])  # the same draws, cut where the sequence ends
        torch.testing.assert_close(padded[:length, row], alone[0][:, row])
        last, whole = (s if isinstance(s, tuple) else (s,) for s in (state, alone[1]))
        for part, expected in zip(last, whole, strict=True):
            torch.testing.assert_close(part[:, row], expected[:, row])


@pytest.mark.parametrize(
    "estimator", [lb.estimators.weights, lb.estimators.local], ids=["fused", "unrolled"]
)
@pytest.mark.parametrize("shape", [(TIME, BATCH, IN + 2), (TIME, BATCH, 1), (TIME, IN + 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_an_input_of_the_wrong_size_is_refused(kind, shape, estimator):
    model = lb.convert(build(f"{kind}_plain").float(), POSTERIOR, PRIOR, estimator)
    with pytest.raises((ValueError, RuntimeError), match=str(shape[-1])):
        model(torch.zeros(shape))


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_input_of_the_wrong_size_is_refused(kind):
    model = lb.convert(build(f"{kind}_plain").float(), POSTERIOR, PRIOR)
    packed = pack_padded_sequence(torch.zeros(TIME, 2, IN + 2), torch.tensor([5, 3]))
    with pytest.raises((ValueError, RuntimeError), match=str(IN + 2)):
        model(packed)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_the_wrong_size_is_refused(kind, packed):
    net = build(f"{kind}_plain").float()
    model, hx = lb.convert(net, POSTERIOR, PRIOR), state(net, BATCH + 1)
    hx = tuple(h.float() for h in hx) if isinstance(hx, tuple) else hx.float()
    x = torch.zeros(TIME, BATCH, IN)
    x = pack_padded_sequence(x, torch.tensor([5, 4, 3, 3])) if packed else x
    with pytest.raises((ValueError, RuntimeError), match=str(BATCH + 1)):
        model(x, hx)
