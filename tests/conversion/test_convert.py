"""Deterministic -> Bayesian: every layer type, every option, all or nothing."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, spectral_norm
from torch_layers import (
    LAYERS,
    POSTERIOR,
    PRIOR,
    Net,
    assert_unchanged,
    converted_names,
    first,
    mlp,
    snapshot,
)

import leanbayes as lb
from leanbayes.layers import is_convertible


@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_every_layer_becomes_random_with_its_weights_as_means(name):
    layer = LAYERS[name]
    net, x = layer.module(), layer.input()
    before, expected = snapshot(net), first(net(*x))
    model = lb.convert(net, POSTERIOR, PRIOR)
    assert len(list(lb.extend.random_maps(model))) == layer.matrices
    assert not any(is_convertible(m) for m in model.modules())
    assert not torch.equal(first(model(*x)), first(model(*x)))
    with lb.using(model, lb.estimators.mean):
        torch.testing.assert_close(first(model(*x)), expected, rtol=1e-12, atol=1e-12)
    for parameter in model.parameters():
        parameter.fill_(7.0)
    assert_unchanged(net, before)


@pytest.mark.parametrize(
    "estimator",
    [lb.estimators.mean, lb.estimators.weights, lb.estimators.local, lb.estimators.flipout],
)
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_lie_in_memory_as_those_of_torch(name, estimator):
    """Code that calls ``view`` on an output works on."""
    layer = LAYERS[name]
    net, x = layer.module(), layer.input()
    y = first(lb.convert(net, POSTERIOR, PRIOR, estimator)(*x))
    assert y.is_contiguous() or not first(net(*x)).is_contiguous()


@pytest.mark.parametrize("name", LAYERS)
def test_random_biases_are_maps_of_their_own(name):
    layer = LAYERS[name]
    net, x = layer.module(), layer.input()
    model = lb.convert(
        net, lb.posteriors.Point(), PRIOR, bias=POSTERIOR, bias_prior=lb.priors.Normal(2.0)
    )
    maps = dict(lb.extend.random_maps(model))
    biases = {n: m for n, m in maps.items() if m.posterior.spec == POSTERIOR}
    assert (len(maps) - len(biases), len(biases)) == (layer.matrices, layer.biases)
    assert all(m.prior.spec == lb.priors.Normal(2.0) for m in biases.values())
    with lb.using(model, lb.estimators.mean):
        torch.testing.assert_close(first(model(*x)), first(net(*x)), rtol=1e-12, atol=1e-12)
    if layer.biases:
        assert not torch.equal(first(model(*x)), first(model(*x)))


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("name", ["linear", "conv2d_grouped", "conv_transpose2d", "embedding"])
def test_a_mixture_keeps_a_bias_for_each_member(name, members):
    layer = LAYERS[name]
    model = lb.convert(layer.module(), lb.Rank1(members), lb.priors.Normal(0.1, loc=1.0))
    y = model(lb.tile(layer.input()[0], members))
    assert y.shape[0] == members * layer.shape[0]
    if layer.biases:
        assert model.bias.numel() == members * layer.module().bias.numel()


PATTERNS = {
    "all": (["**"], [], {"stem", "body.0", "body.2.0", "again", "head"}),
    "one part": (["*"], [], {"stem", "again", "head"}),
    "below": (["body.*"], [], {"body.0"}),
    "below, any depth": (["body.**"], [], {"body.0", "body.2.0"}),
    "exact": (["stem", "head"], [], {"stem", "head"}),
    "any depth, by its end": (["**.0"], [], {"body.0", "body.2.0"}),
    "without": (["**"], ["body.**", "head"], {"stem", "again"}),
    "second name of a shared layer": (["stem_twin"], [], {"again"}),
    "without the second name": (["**"], ["stem_twin"], {"stem", "body.0", "body.2.0", "head"}),
}


@pytest.mark.parametrize("case", PATTERNS)
def test_patterns_choose_layers(case):
    include, exclude, expected = PATTERNS[case]
    model = lb.convert(Net(), POSTERIOR, PRIOR, include=include, exclude=exclude)
    assert converted_names(model) == expected
    left = {n for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    assert left == {"stem", "body.0", "body.2.0", "again", "head"} - expected


def test_a_pattern_is_a_glob_and_not_a_regular_expression():
    with pytest.raises(ValueError, match="matches no layer"):
        lb.convert(Net(), POSTERIOR, PRIOR, include=["st.m"])


def test_overrides_change_single_choices_and_later_ones_win():
    overrides = {
        "body.**": {"posterior": lb.KTied(2), "estimator": lb.estimators.weights},
        "body.2.0": {"posterior": lb.KTied(3), "bias": lb.MeanField(0.2)},
        "head": {"prior": lb.priors.He()},
    }
    model = lb.convert(Net(), POSTERIOR, PRIOR, overrides=overrides)
    maps = dict(lb.extend.random_maps(model))
    posteriors = {name: m.posterior.spec for name, m in maps.items()}
    assert posteriors == {
        "stem": POSTERIOR,
        "body.0": lb.KTied(2),
        "body.2.0": lb.KTied(3),
        "body.2.0.bias": lb.MeanField(0.2),
        "again": POSTERIOR,
        "head": POSTERIOR,
    }
    assert {n for n, m in maps.items() if m.prior.spec == lb.priors.He()} == {"head"}
    by_weights = {n for n, m in maps.items() if m.estimator is lb.estimators.weights}
    assert by_weights == {"body.0", "body.2.0", "body.2.0.bias"}


def test_a_shared_layer_stays_one_layer():
    model = lb.convert(Net(), POSTERIOR, PRIOR)
    assert model.again is model.stem_twin
    block = mlp()
    twice = lb.convert(nn.Sequential(block, block), POSTERIOR, PRIOR)
    assert twice[0] is twice[1]
    assert len(list(lb.extend.random_maps(twice))) == 2


def test_a_bare_layer_is_converted():
    assert isinstance(lb.convert(nn.Linear(3, 2), POSTERIOR, PRIOR), lb.extend.Affine)


def test_inplace_changes_the_model_itself_and_keeps_everything_else():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    norm = net[1]
    assert lb.convert(net, POSTERIOR, PRIOR, inplace=True) is net
    assert net[1] is norm
    assert converted_names(net) == {"0", "2"}


def test_training_flags_are_kept_layer_by_layer():
    net = mlp()
    net[2].eval()
    model = lb.convert(net, POSTERIOR, PRIOR)
    assert [m.training for m in model] == [True, True, False]


@pytest.mark.parametrize(
    "name", ["linear", "conv2d", "embedding", "lstm", "attention", "gru_cell", "bilinear"]
)
@pytest.mark.parametrize(
    "posterior",
    [POSTERIOR, lb.KTied(2), lb.posteriors.MatrixNormal(), lb.Rank1(1), lb.posteriors.Point()],
    ids=repr,
)
def test_frozen_weights_stay_frozen_and_so_does_all_that_belongs_to_them(name, posterior):
    net = LAYERS[name].module().requires_grad_(False)
    model = lb.convert(net, posterior, lb.priors.Normal(0.1, loc=1.0))
    assert not any(p.requires_grad for p in model.parameters())


def test_a_frozen_layer_beside_a_trained_one():
    net = mlp()
    net[0].requires_grad_(False)
    model = lb.convert(net, POSTERIOR, PRIOR, bias=POSTERIOR)
    means = {n: p.requires_grad for n, p in model.named_parameters() if n.endswith("loc")}
    assert set(means.values()) == {True, False}
    assert all(learns == n.startswith("2") for n, learns in means.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("posterior", [POSTERIOR, lb.KTied(2), lb.Rank1(2)], ids=repr)
def test_the_dtype_is_kept(posterior, dtype):
    model = lb.convert(mlp().to(dtype), posterior, lb.priors.Normal(0.5, 1.0, learn="layer"))
    full = torch.float32 if dtype == torch.bfloat16 else dtype
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert {number.dtype for number in model.buffers()} == {full}
    assert model(torch.randn(4, 3, dtype=dtype)).dtype == dtype
    assert lb.kl(model).dtype == full


def _scaled_linear() -> nn.Module:
    class Scaled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    return Scaled(4, 2)


def _hooked() -> nn.Module:
    layer = nn.Linear(4, 2)
    layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    return layer


def _pruned() -> nn.Module:
    return prune.l1_unstructured(nn.Linear(4, 2), "weight", 1)


def _filled(value: float, module: nn.Module) -> nn.Module:
    nn.init.constant_(module.weight, value)
    return module


REFUSED = {
    "lazy": (lambda: nn.LazyLinear(2), "run one batch"),
    "parametrized": (lambda: parametrizations.weight_norm(nn.Linear(4, 2)), "remove"),
    "own forward": (_scaled_linear, "exclude it"),
    "forward hook": (_hooked, "hook"),
    "spectral norm": (lambda: spectral_norm(nn.Linear(4, 2)), "exclude it"),
    "pruned": (_pruned, "exclude it"),
    "not finite": (lambda: _filled(float("nan"), nn.Linear(4, 2)), "NaN"),
    "max_norm": (lambda: nn.Embedding(4, 2, max_norm=1.0), "exclude it"),
    "maximum of a bag": (lambda: nn.EmbeddingBag(4, 2, mode="max"), "mode='sum'"),
    "sparse bag": (lambda: nn.EmbeddingBag(4, 2, sparse=True), "exclude it"),
    "sparse": (lambda: nn.Embedding(4, 2, sparse=True), "exclude it"),
    "padding not zero": (lambda: _filled(1.0, nn.Embedding(4, 2, padding_idx=0)), "zero"),
    "bias_k": (lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True), "exclude it"),
    "add_zero_attn": (lambda: nn.MultiheadAttention(4, 2, add_zero_attn=True), "exclude it"),
}


@pytest.mark.parametrize("inplace", [False, True], ids=["copy", "inplace"])
@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_lost_is_refused_by_name_and_nothing_changes(case, inplace):
    make, remedy = REFUSED[case]
    net = nn.Sequential(nn.Linear(3, 4), nn.Sequential(make()))
    types = [type(m) for m in net.modules()]
    weight = net[0].weight.detach().clone()
    with pytest.raises(ValueError, match=r"layer '1\.0'") as caught:
        lb.convert(net, POSTERIOR, PRIOR, inplace=inplace)
    assert remedy in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [type(m) for m in net.modules()] == types
    assert torch.equal(net[0].weight, weight)
    spared = lb.convert(net, POSTERIOR, PRIOR, exclude=["1.0"], inplace=True)
    assert converted_names(spared) == {"0"}


@pytest.mark.parametrize("exclude", [[], ["0"], ["1"]])
def test_tied_weights_are_refused_unless_both_sides_are_left_alone(exclude):
    net = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5), nn.Linear(5, 2))
    net[1].weight = net[0].weight
    before = snapshot(net)
    with pytest.raises(ValueError, match=r"'0' and '1' share one weight.*exclude both"):
        lb.convert(net, POSTERIOR, PRIOR, exclude=exclude, inplace=True)
    assert_unchanged(net, before)
    assert converted_names(lb.convert(net, POSTERIOR, PRIOR, exclude=["0", "1"])) == {"2"}


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("include", ["**", "**linear1", "**linear2", "**self_attn"])
@pytest.mark.parametrize("name", ["transformer_encoder_layer", "transformer_encoder"])
@torch.no_grad()
def test_fused_transformer_paths_do_not_bypass_the_posteriors(name, include, padded):
    net, (x,) = LAYERS[name].module(), LAYERS[name].input()
    model = lb.convert(net, POSTERIOR, PRIOR, include=[include]).eval()
    padding = torch.zeros(x.shape[:2], dtype=torch.bool)
    padding[0, 3:] = padded
    options = {"src_key_padding_mask": padding} if padded else {}
    changed = (model(x, **options) - model(x, **options)).abs()
    assert (changed[~padding] > 0).all()


def test_the_plan_says_what_will_be_done():
    net = Net()
    planned = lb.plan(net, POSTERIOR, PRIOR, overrides={"head": {"posterior": lb.KTied(3)}})
    assert [names for names, _, _ in planned.layers][-2:] == [("again", "stem_twin"), ("head",)]
    head, *lines = str(planned).splitlines()
    assert head.split() == ["layer", "kind", "posterior", "prior"]
    assert len(lines) == 7
    assert "again, stem_twin" in lines[3]
    assert "KTied(rank=3)" in lines[4]
    assert "A layer with several names draws at every call" in lines[5]
    assert converted_names(net) == set()


def test_a_plan_is_names_and_choices_and_can_be_applied_to_any_such_model():
    planned = lb.plan(Net(), POSTERIOR, PRIOR, exclude=["head"])
    assert planned == lb.plan(Net(), POSTERIOR, PRIOR, exclude=["head"])
    assert planned.layers[0] == (("stem",), "Linear", lb.extend.LayerSpec(POSTERIOR, PRIOR))
    net = Net()
    assert planned.apply(net) is net
    assert converted_names(net) == {"stem", "body.0", "body.2.0", "again"}
    assert net.again is net.stem_twin


def _untied() -> nn.Module:
    net = Net()
    net.stem_twin = nn.Linear(4, 4)
    return net


def _hooked_head() -> nn.Module:
    net = Net()
    net.head = _hooked()
    return net


UNPLANNED = {
    "absent": (mlp, "that the model does not have"),
    "no longer shared": (_untied, "that the model does not have"),
    "not convertible": (lambda: nn.Sequential(nn.ReLU()), "that the model does not have"),
    "refused": (_hooked_head, "hook"),
}


@pytest.mark.parametrize("case", UNPLANNED)
def test_a_plan_that_does_not_suit_a_model_changes_nothing(case):
    make, phrase = UNPLANNED[case]
    planned, net = lb.plan(Net(), POSTERIOR, PRIOR), make()
    before = snapshot(net)
    with pytest.raises(ValueError, match=phrase):
        planned.apply(net)
    assert_unchanged(net, before)


@pytest.mark.parametrize("name", LAYERS)
def test_options_of_the_torch_layer_can_still_be_read(name):
    net = LAYERS[name].module()
    model = lb.convert(net, POSTERIOR, PRIOR)
    for option, value in vars(net).items():
        if not option.startswith("_") and not isinstance(value, nn.Module):
            fused = ("activation_relu_or_gelu", "use_nested_tensor")
            assert getattr(model, option) == value or option in fused, option


@pytest.mark.parametrize("name", ["linear", "lstm", "attention", "attention_other_sizes"])
def test_a_conversion_without_gradients_freezes_nothing(name):
    with torch.no_grad():
        model = lb.convert(LAYERS[name].module(), POSTERIOR, PRIOR, bias=POSTERIOR)
    assert all(p.requires_grad for p in model.parameters())


def test_a_conversion_needs_no_choice():
    model = lb.convert(mlp())
    for name, layer in lb.extend.random_maps(model):
        q, fan_in = layer.posterior(), mlp().get_submodule(name).in_features
        assert isinstance(layer.posterior.spec, lb.KTied)
        assert layer.prior.spec == lb.priors.He()
        torch.testing.assert_close(
            q.variance.sqrt().log().mean().exp().detach(),
            torch.tensor(0.1 / fan_in**0.5, dtype=torch.float64), rtol=0.2, atol=0,
        )  # fmt: skip
    assert "KTied" in str(lb.plan(mlp()))


@pytest.mark.parametrize(
    ("posterior", "prior"),
    [
        (lb.MeanField(), lb.priors.He()),
        (lb.posteriors.MatrixNormal(), lb.priors.He()),
        (lb.posteriors.ZeroMean(), lb.priors.LogUniform()),
        (lb.posteriors.VariationalDropout(), lb.priors.LogUniform()),
    ],
    ids=lambda spec: type(spec).__name__,
)
def test_families_have_a_recommended_prior(posterior, prior):
    assert lb.convert(nn.Linear(3, 2), posterior).prior.spec == prior


def test_a_pattern_that_matches_nothing_names_the_wider_one_that_does():
    net = nn.Sequential(OrderedDict(body=nn.ModuleDict({"lora_A": nn.Linear(3, 2)})))
    with pytest.raises(ValueError, match=r"'\*\*lora_A\*\*' matches 1, such as 'body.lora_A'"):
        lb.plan(net, include=["*lora_A*"])


@pytest.mark.parametrize(
    ("norm", "start"),
    [(nn.BatchNorm1d(40), 0.05), (nn.LayerNorm(40), 0.1), (nn.Identity(), 0.1)],
    ids=["batch", "layer", "none"],
)
def test_scales_start_smaller_with_batch_normalization(norm, start):
    net = nn.Sequential(nn.Linear(25, 40), norm, nn.Linear(40, 20))
    assert lb.plan(net).layers[0].choice.posterior.scale.start == start
    torch.manual_seed(0)
    scale = lb.convert(net).get_submodule("0").posterior().stddev
    assert float(scale.detach().log().mean().exp()) == pytest.approx(start / 5, rel=0.3)
