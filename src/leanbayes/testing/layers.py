"""The contracts of an op, and of a layer kind: from a torch layer and back to it."""

import copy
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.conversion.convert import convert, deterministic
from leanbayes.estimators import mean, weights
from leanbayes.layers import is_bayesian, is_convertible
from leanbayes.models.random_maps import held, kl, random_maps, using
from leanbayes.ops import LinearOp
from leanbayes.posteriors import MeanField, Point
from leanbayes.priors import Normal
from leanbayes.saving.io import load, save
from leanbayes.testing.assertions import assert_close, assert_gradients, seeded


def check_op(op: LinearOp, x: Tensor, columns: int, rows: int = 4) -> None:
    """Check that an op acts linearly and row by row, and that squares give variances.

    Args:
        op: the op.
        x: an input of it, float64 (or indices).
        columns: number of columns of a matrix for this input.
        rows: number of rows to try, a multiple of the op's groups.

    Raises:
        AssertionError: If a part of the contract does not hold.
    """
    with seeded(0):
        a = torch.randn(rows, columns, dtype=torch.float64)
        s = torch.randn(x.shape[0], op.input_channels(columns), dtype=torch.float64)
    basis = [torch.zeros_like(a).index_fill(1, torch.tensor([j]), 1.0) for j in range(columns)]
    patches = torch.stack([op(x, e) for e in basis], -1).movedim(
        op.channel_dim - (op.channel_dim < 0), -2
    )
    # patches [batch, …, rows, columns]: what each row reads
    y = op(x, a).movedim(op.channel_dim, -1)
    assert y.shape[-1] == rows, f"{op} gives {y.shape[-1]} output channels for {rows} rows"
    assert_close(y, (patches * a).sum(-1), "the op is not the matrix times the patch")
    half = op(x, a[: rows // 2].repeat_interleave(2, 0)).movedim(op.channel_dim, -1)
    if op.groups == 1:
        expected = y[..., : rows // 2].repeat_interleave(2, -1)
        assert_close(half, expected, "the op does not act row by row")
    variance = op(op.square(x), a.square()).movedim(op.channel_dim, -1)
    assert_close(
        variance, (patches.square() * a.square()).sum(-1), "square(x) does not give variances"
    )
    assert_close(op.matrix(op.unmatrix(a)), a, "unmatrix does not undo matrix")
    scaled = op.scaled(x, s, a).movedim(op.channel_dim, -1)
    factor = op.column_factor(s, rows)
    explicit = torch.stack(
        [op(x[i : i + 1], a * factor[i]).movedim(op.channel_dim, -1)[0] for i in range(len(x))]
    )
    assert_close(scaled, explicit, "scaled(x, s, a) is not op(x ∘ s, a)")


_PRIOR = Normal(1.0)


def check_layer(
    net: nn.Module, *inputs: Any, refused: Sequence[nn.Module] = (), seed: int = 0
) -> None:
    """Check the Bayesian layer of a torch layer against its contract.

    It must convert and come back with the same weights under the same names, and return the torch
    layer's outputs with its means. A held draw must be one function, and the KL must count every
    weight once. It must learn, stay frozen, be saved and loaded, and refuse unsupported options.

    Args:
        net: a torch layer whose kind was registered, in any state.
        *inputs: what it is called with.
        refused: layers whose options the kind does not know.
        seed: seed of the draws; the global generator is left as it was.

    Raises:
        AssertionError: If a part of the contract does not hold.
    """
    name = type(net).__name__
    assert is_convertible(net), f"{name} has no kind of layer; call lb.extend.register_layer"
    net = copy.deepcopy(net).eval()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    with seeded(seed):
        for bias in (None, MeanField(0.1)):
            model = convert(net, MeanField(0.1), _PRIOR, bias=bias)
            assert is_bayesian(model), f"from_torch of {name} gives no lb.extend.Layer"
            assert any(True for _ in random_maps(model)), f"nothing in {name} became random"
            _check_outputs(model, net, inputs)
            _check_way_back(model, net, inputs)
            _check_file(model, net, inputs)
        _check_kl(net, inputs)
        _check_learning(net, inputs)
        hooked = copy.deepcopy(net)
        hooked.register_forward_hook(lambda module, inputs, output: output)
        for module in (hooked, *refused):
            _check_refusal(module)
    unchanged = all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    assert unchanged, f"converting {name} changed the torch layer"


def _tensors(output: Any) -> Iterator[Tensor]:
    """All tensors of an output, in order."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Sequence):
        for part in output:
            yield from _tensors(part)


@torch.no_grad()
def _check_outputs(model: nn.Module, net: nn.Module, inputs: Sequence[Any]) -> None:
    name = type(net).__name__
    with using(model, mean):
        assert_close(model(*inputs), net(*inputs), f"with its means {name} gives other outputs")
    with using(model, weights):
        pairs = zip(_tensors(model(*inputs)), _tensors(model(*inputs)), strict=True)
        assert any(not torch.equal(a, b) for a, b in pairs), f"{name} does not use its draws"
    with held(model):
        assert_close(model(*inputs), model(*inputs), f"{name} draws again while it is held")


@torch.no_grad()
def _check_way_back(model: nn.Module, net: nn.Module, inputs: Sequence[Any]) -> None:
    name, back = type(net).__name__, deterministic(model)
    assert type(back) is type(net), f"{name} comes back as {type(back).__name__}"
    ours, theirs = back.state_dict(), net.state_dict()
    assert list(ours) == list(theirs), f"{name} comes back with tensors {list(ours)}"
    for key, value in theirs.items():
        assert torch.equal(ours[key], value), f"{key} of {name} comes back with other numbers"
    assert_close(back(*inputs), net(*inputs), f"{name} comes back with other options")


@torch.no_grad()
def _check_file(model: nn.Module, net: nn.Module, inputs: Sequence[Any]) -> None:
    name = type(net).__name__
    with tempfile.TemporaryDirectory() as folder:
        again = load(net, save(model, f"{folder}/layer"))
    assert torch.equal(kl(again), kl(model)), f"a saved {name} has another KL"
    with using(model, mean), using(again, mean):
        assert_close(again(*inputs), model(*inputs), f"a saved {name} gives other outputs")


def _check_kl(net: nn.Module, inputs: Sequence[Any]) -> None:
    name, model = type(net).__name__, convert(net, Point(), _PRIOR)
    sizes = [sum(p.numel() for p in module.parameters()) for module in (net, model)]
    assert sizes[0] == sizes[1], f"{name} has {sizes[0]} numbers, and {sizes[1]} as point estimates"
    first = kl(model)
    model(*inputs)
    assert torch.equal(kl(model), first), f"the KL of {name} depends on a call"
    twice = nn.ModuleList([model, model])
    assert torch.equal(kl(twice), first), f"the KL of a shared {name} is counted twice"


def _check_learning(net: nn.Module, inputs: Sequence[Any]) -> None:
    name, model = type(net).__name__, convert(net, MeanField(0.1), _PRIOR, weights)
    loss = sum(y.square().sum() for y in _tensors(model(*inputs)) if y.requires_grad) + kl(model)
    loss.backward()
    assert_gradients(model.named_parameters(), name)
    frozen = convert(copy.deepcopy(net).requires_grad_(False), MeanField(0.1), _PRIOR)
    trained = [key for key, p in deterministic(frozen).named_parameters() if p.requires_grad]
    assert not trained, f"{trained[0]} of a frozen {name} comes back trained"


def _check_refusal(module: nn.Module) -> None:
    try:
        convert(module, MeanField(), _PRIOR)
    except ValueError as error:
        sentence = str(error.__cause__ or error)
    else:
        raise AssertionError(f"{module} is converted although it is to be refused")
    assert "\n" not in sentence, f"{module} is refused in more than one sentence: {sentence}"
