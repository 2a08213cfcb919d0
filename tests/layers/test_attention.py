"""Multi-head attention gives the results of torch; a transformer block of plain layers trains."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_layers import POSTERIOR, PRIOR

import leanbayes as lb

BATCH, TARGET, SOURCE, WIDTH, HEADS = 3, 4, 5, 8, 2
SIZES = {
    "packed": {},
    "without_bias": {"bias": False},
    "other_sizes": {"kdim": 6, "vdim": 10},
    "other_keys": {"kdim": 6, "bias": False},
}


def attention(sizes: str, batch_first: bool = True, **options) -> nn.MultiheadAttention:
    net = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first, **SIZES[sizes], **options)
    net = net.double().eval()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if "bias" in name:  # torch starts them at zero
                parameter.normal_()
    return net


def inputs(net: nn.MultiheadAttention, batched: bool = True) -> list[Tensor]:
    sizes = ((TARGET, WIDTH), (SOURCE, net.kdim), (SOURCE, net.vdim))
    drawn = [torch.randn(BATCH, *size, dtype=torch.float64) for size in sizes]
    if not batched:
        return [t[0] for t in drawn]
    return drawn if net.batch_first else [t.transpose(0, 1) for t in drawn]


def float_mask(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(mask, -math.inf)


def some_mask(*shape: int) -> Tensor:
    """A random mask that leaves every target at least one source."""
    mask = torch.rand(shape) < 0.4
    mask[..., 0] = False
    return mask


MASKS = {
    "none": {},
    "padding": {"key_padding_mask": (BATCH, SOURCE)},
    "attention": {"attn_mask": (TARGET, SOURCE)},
    "attention_by_head": {"attn_mask": (BATCH * HEADS, TARGET, SOURCE)},
    "both": {"key_padding_mask": (BATCH, SOURCE), "attn_mask": (TARGET, SOURCE)},
}
UNBATCHED_MASKS = {
    "none": {},
    "padding": {"key_padding_mask": (SOURCE,)},
    "attention": {"attn_mask": (TARGET, SOURCE)},
    "attention_by_head": {"attn_mask": (HEADS, TARGET, SOURCE)},
}


def assert_same(a, b) -> None:
    for left, right in zip(a, b, strict=True):
        assert (left is None) == (right is None)
        if left is not None:
            torch.testing.assert_close(left, right, rtol=1e-11, atol=1e-11)


def assert_agree(net: nn.MultiheadAttention, x: list[Tensor], masks: dict[str, Tensor]) -> None:
    """In mean mode, whatever is asked for, the converted layer returns what torch does."""
    model = lb.convert(net, POSTERIOR, PRIOR, lb.estimators.mean)
    for need_weights, average in ((True, True), (True, False), (False, True)):
        options = {"need_weights": need_weights, "average_attn_weights": average, **masks}
        assert_same(model(*x, **options), net(*x, **options))


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch_first", "time_first"])
@pytest.mark.parametrize("sizes", SIZES)
def test_means_give_the_results_of_torch(sizes, batch_first, masks, kind):
    net = attention(sizes, batch_first)
    drawn = {name: some_mask(*shape) for name, shape in MASKS[masks].items()}
    if kind == "float":
        drawn = {name: float_mask(mask) for name, mask in drawn.items()}
    assert_agree(net, inputs(net), drawn)


@pytest.mark.parametrize("masks", UNBATCHED_MASKS)
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch_first", "time_first"])
def test_unbatched_means_give_the_results_of_torch(batch_first, masks):
    net = attention("packed", batch_first)
    drawn = {name: some_mask(*shape) for name, shape in UNBATCHED_MASKS[masks].items()}
    assert_agree(net, inputs(net, batched=False), drawn)


def test_causal_attention():
    net = attention("packed")
    x = [torch.randn(BATCH, TARGET, WIDTH, dtype=torch.float64)] * 3
    causal = torch.ones(TARGET, TARGET, dtype=torch.bool).triu(1)
    assert_agree(net, x, {"attn_mask": causal, "is_causal": True})
    model = lb.convert(net, POSTERIOR, PRIOR)
    with pytest.raises(ValueError, match="pass attn_mask as well"):
        model(*x, is_causal=True)


@pytest.mark.parametrize("sizes", SIZES)
def test_gradients_of_the_means_are_those_of_torch(sizes):
    net = attention(sizes)
    model, x = lb.convert(net, POSTERIOR, PRIOR, lb.estimators.mean), inputs(net)
    for module in (net, model):
        module(*x)[0].square().sum().backward()
    projections = [model.q_proj, model.k_proj, model.v_proj]
    ours = [p.posterior.loc.grad for p in projections]
    if net.in_proj_weight is not None:
        torch.testing.assert_close(torch.cat(ours), net.in_proj_weight.grad)
    else:
        theirs = (net.q_proj_weight, net.k_proj_weight, net.v_proj_weight)
        assert_same(ours, [p.grad for p in theirs])
    torch.testing.assert_close(model.out_proj.posterior.loc.grad, net.out_proj.weight.grad)
    if net.in_proj_bias is not None:
        biases = torch.cat([p.bias.grad for p in projections])
        torch.testing.assert_close(biases, net.in_proj_bias.grad)


@pytest.mark.parametrize("need_weights", [True, False])
def test_dropout_works_in_training_only(need_weights):
    net = attention("packed", dropout=0.5)
    model, x = lb.convert(net, POSTERIOR, PRIOR, lb.estimators.mean), inputs(net)
    options = {"need_weights": need_weights}
    assert_same(model(*x, **options), net(*x, **options))
    model.train()
    assert not torch.equal(model(*x, **options)[0], model(*x, **options)[0])


def test_a_held_model_is_torch_attention_with_the_drawn_weights():
    net = attention("packed")
    model, x = lb.convert(net, POSTERIOR, PRIOR), inputs(net)
    with lb.held(model), torch.no_grad():
        drawn = [m.held.weight for m in (model.q_proj, model.k_proj, model.v_proj)]
        assert not torch.allclose(torch.cat(drawn), net.in_proj_weight)
        net.in_proj_weight.copy_(torch.cat(drawn))
        net.out_proj.weight.copy_(model.out_proj.held.weight)
        assert_same(model(*x), net(*x))


@pytest.mark.parametrize("position", range(4), ids=["query", "key", "value", "out"])
def test_each_projection_has_noise_of_its_own(position):
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    net = attention("packed")
    model, x = lb.convert(net, POSTERIOR, PRIOR, lb.estimators.mean), inputs(net)
    getattr(model, names[position]).estimator = lb.estimators.weights
    assert not torch.equal(model(*x)[0], model(*x)[0])


@pytest.mark.parametrize(
    "estimator",
    [lb.estimators.auto, lb.estimators.weights, lb.estimators.local, lb.estimators.flipout],
)
def test_every_parameter_learns(estimator):
    net = attention("other_sizes")
    model = lb.convert(net, lb.KTied(2, 0.1), PRIOR, estimator, bias=POSTERIOR)
    model(*inputs(net))[0].square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        if "k_proj.bias" not in name:  # a shift of all keys cancels in the softmax
            assert parameter.grad.any(), name


class Block(nn.Module):
    """A transformer block as model libraries write it: four linear projections, norms, an MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(width, width) for _ in range(4)
        )
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (
            projection(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.blocks = nn.Sequential(Block(WIDTH, HEADS), Block(WIDTH, HEADS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 11, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embed(tokens))))


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
def test_a_block_of_plain_layers_trains_one_step(autocast):
    net = LanguageModel()
    names = [f"blocks.{i}.{p}_proj" for i, p in itertools.product((0, 1), "qkvo")]
    names += [f"blocks.{i}.mlp.{j}" for i, j in itertools.product((0, 1), (0, 3))]
    model = lb.convert(net, lb.KTied(2), lb.priors.Normal(0.2), exclude=["embed", "head"])
    assert {name for name, _ in lb.extend.random_maps(model)} == set(names)
    tokens = torch.randint(11, (BATCH, 6))
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = model(tokens[:, :-1])
        nll = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss = lb.elbo(nll, lb.kl(model), data_size=1000).loss
    assert logits.dtype == (torch.bfloat16 if autocast else torch.float32)
    loss.backward()
    optimizer.step()
    assert loss.isfinite()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        if not name.endswith("k_proj.bias"):
            assert not torch.equal(parameter, before[name]), name
    p = lb.predict(model, tokens, samples=3)
    assert p.probs.shape == (BATCH, 6, 11)
    assert (p.samples.std(0) > 0).all()
