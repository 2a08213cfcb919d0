"""Bad input: one sentence that says what was given and what to do; the model stays as it was."""

import math

import pytest
import torch
from registry import POSTERIORS, suitable_prior
from torch import nn
from torch.distributions import Normal
from torch_layers import POSTERIOR, PRIOR, assert_unchanged, mlp, snapshot

import leanbayes as lb
from leanbayes.distributions import (
    KroneckerNormal,
    KTiedNormal,
    LocationScale,
    Masked,
    Rank1Mixture,
    Triangular,
)
from leanbayes.ops import Conv
from leanbayes.training import schedules

NAN = float("nan")


def sentence(caught: pytest.ExceptionInfo) -> str:
    """The message of an exception, which is one line that ends without a stack of advice."""
    text = str(caught.value)
    assert text
    assert "\n" not in text
    assert len(text) < 300
    return text


RECIPES = {
    "NaN scale": (lambda: lb.MeanField(NAN), "start is nan; it must be positive"),
    "NaN tied scale": (lambda: lb.KTied(2, NAN), "start is nan; it must be positive"),
    "NaN matrix scale": (
        lambda: lb.posteriors.MatrixNormal(NAN),
        "scale is nan; it must be positive",
    ),
    "NaN variance scale": (
        lambda: lb.posteriors.ZeroMean(scale=NAN),
        "start is nan; it must be positive",
    ),
    "NaN log alpha": (
        lambda: lb.posteriors.VariationalDropout(log_alpha=NAN),
        "log_alpha is nan; give a number",
    ),
    "NaN rate": (lambda: lb.Rank1(rate=NAN), "rate is nan; it must lie between 0 and 1"),
    "NaN ceiling": (
        lambda: lb.posteriors.Scale(ceiling=NAN),
        "ceiling is nan; it must be positive",
    ),
    "NaN spread": (
        lambda: lb.posteriors.Scale(spread=NAN),
        "spread is nan; it must not be negative",
    ),
    "NaN prior": (lambda: lb.priors.Normal(NAN), "scale is nan; it must be positive"),
    "NaN prior loc": (lambda: lb.priors.Cauchy(1.0, NAN), "loc is nan; give a number"),
    "NaN noise": (lambda: lb.likelihoods.Gaussian(NAN), "scale is nan; it must be positive"),
    "zero scale": (lambda: lb.MeanField(0.0), "start is 0.0; it must be positive"),
    "negative prior": (lambda: lb.priors.Laplace(-1.0), "scale is -1.0; it must be positive"),
    "infinite prior": (lambda: lb.priors.Normal(math.inf), "scale is inf; it must be positive"),
    "no freedom": (lambda: lb.priors.StudentT(0.0), "df is 0.0; it must be positive"),
    "mixture weight": (
        lambda: lb.priors.ScaleMixture(1.5),
        "weight is 1.5; it must lie between 0 and 1",
    ),
    "no rank": (lambda: lb.KTied(0), "rank is 0; it must be at least 1"),
    "negative rank": (
        lambda: lb.posteriors.MatrixNormal(rank=-1),
        "rank is -1; it must be at least 0",
    ),
    "half a rank": (lambda: lb.KTied(2.5), "rank is 2.5"),
    "no members": (lambda: lb.Rank1(0), "members is 0; it must be at least 1"),
    "three factors": (lambda: lb.Rank1(2, ("normal",) * 3), "a pair for r and s"),
    "sure signs": (lambda: lb.Rank1(signs=2.0), "signs is 2.0; as a probability it is at most 1"),
    "unknown storage": (lambda: lb.posteriors.Scale(stored="loog"), "did you mean 'log'?"),
    "unknown start": (lambda: lb.posteriors.Scale("fan_out"), "did you mean 'fan_in'?"),
    "unknown noise": (
        lambda: lb.posteriors.ZeroMean("gaussian"),
        "choose one of bernoulli, normal, uniform",
    ),
    "unknown alpha": (lambda: lb.posteriors.VariationalDropout("layers"), "did you mean 'layer'?"),
    "unknown factors": (lambda: lb.Rank1(factors="normale"), "did you mean 'normal'?"),
    "unknown perturbation": (lambda: lb.Rank1(perturb="times"), "choose one of add, multiply"),
    "unknown learning": (lambda: lb.priors.Normal(1.0, learn="all"), "None, 'layer' or 'model'"),
    "unknown noise model": (
        lambda: lb.likelihoods.Gaussian(1.0, "estimated"),
        "'fixed', 'learned' or",
    ),
    "no steps": (lambda: schedules.LinearRamp(0), "steps is 0; it must be positive"),
    "kernel of four": (lambda: Conv((1, 1, 1, 1)), "4 dimensions; 1, 2 or 3 are possible"),
}


@pytest.mark.parametrize("case", RECIPES)
def test_recipes(case):
    make, expected = RECIPES[case]
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the sentence is compared below)
        make()
    assert expected in sentence(caught)


CONVERSIONS = {
    "a posterior is no recipe": ({"posterior": nn.Linear(1, 1)}, "give a spec such as lb.KTied"),
    "a class is no recipe": ({"posterior": lb.KTied}, "give a spec such as lb.KTied(2)"),
    "a number is no prior": ({"prior": 0.2}, "prior is 0.2; give a spec such as lb.priors.Normal"),
    "estimators have no names": (
        {"estimator": "local"},
        "give a function such as lb.estimators.auto",
    ),
    "unknown layer": ({"include": ["bod"]}, "pattern 'bod' matches no layer"),
    "unknown exclusion": ({"exclude": ["3"]}, "pattern '3' matches no layer"),
    "a pattern instead of patterns": ({"include": "head"}, "'head'"),
    "unknown override": ({"overrides": {"4": {}}}, "pattern '4' matches no layer"),
    "unknown choice": ({"overrides": {"0": {"postrior": 1}}}, "did you mean 'posterior'?"),
    "nothing left": ({"exclude": ["**"]}, "look at include and exclude"),
    "no density": (
        {"posterior": lb.posteriors.ZeroMean("bernoulli")},
        "use prior=lb.priors.Flat()",
    ),
    "no mass below zero": ({"prior": lb.priors.LogNormal(1.0)}, "use a prior on the whole line"),
    "a prior of weights": (
        {"posterior": lb.Rank1(2), "prior": lb.priors.ARD()},
        "lb.priors.Normal(0.1, loc=1",
    ),
    "factors and biases": (
        {"posterior": lb.Rank1(2), "prior": None, "bias": POSTERIOR},
        "give bias_prior",
    ),
}


@pytest.mark.parametrize("case", CONVERSIONS)
def test_conversions(case):
    arguments, expected = CONVERSIONS[case]
    net = mlp()
    before = snapshot(net)
    options = {"posterior": POSTERIOR, "prior": PRIOR, **arguments}
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the sentence is compared below)
        lb.convert(net, inplace=True, **options)
    assert expected in sentence(caught)
    assert_unchanged(net, before)


def test_a_network_without_layers_to_convert():
    with pytest.raises(ValueError, match="has no layer that can be converted") as caught:
        lb.convert(nn.ReLU(), POSTERIOR, PRIOR)
    sentence(caught)


WRONG_SHAPES = {
    "linear": (lambda: nn.Linear(3, 4), [(6, 5), (6, 1), (6, 2, 5), (5,)], 3),
    "conv2d": (lambda: nn.Conv2d(2, 4, 2), [(6, 3, 5, 5), (6, 1, 5, 5), (3, 5, 5)], 2),
    "conv2d_grouped": (lambda: nn.Conv2d(4, 4, 2, groups=2), [(6, 2, 5, 5), (6, 1, 5, 5)], 4),
    "conv_transpose1d": (lambda: nn.ConvTranspose1d(2, 4, 2), [(6, 3, 5), (6, 1, 5)], 2),
}


@pytest.mark.parametrize("layer", WRONG_SHAPES)
@pytest.mark.parametrize("name", POSTERIORS)
def test_inputs_of_the_wrong_size(name, layer):
    make, shapes, needed = WRONG_SHAPES[layer]
    recipe = POSTERIORS[name]
    model = lb.convert(make().double(), recipe, suitable_prior(recipe))
    before = snapshot(model)
    for shape in shapes:
        with pytest.raises(ValueError, match=str(needed)) as caught:
            model(torch.zeros(shape, dtype=torch.float64))
        assert str(shape) in sentence(caught)
    assert_unchanged(model, before)


@pytest.mark.parametrize("shape", [(5, 5), (2, 1, 1, 5, 5)])
def test_inputs_with_the_wrong_number_of_dimensions(shape):
    model = lb.convert(nn.Conv2d(1, 4, 2), POSTERIOR, PRIOR)
    with pytest.raises(ValueError, match="dimensions") as caught:
        model(torch.zeros(shape))
    assert str(shape) in sentence(caught)


def test_embeddings_look_up_indices():
    model = lb.convert(nn.Embedding(5, 3), POSTERIOR, PRIOR)
    with pytest.raises((TypeError, RuntimeError)) as caught:
        model(torch.zeros(4))
    assert "FloatTensor" in sentence(caught) or "float32" in sentence(caught)
    with pytest.raises(IndexError) as caught:
        model(torch.tensor([5]))
    sentence(caught)


MIXTURES = {
    "linear": (nn.Linear(3, 2), (4, 3), 4),
    "sequence": (nn.Linear(3, 2), (4, 6, 3), 4),
    "conv": (nn.Conv2d(2, 2, 2), (4, 2, 3, 3), 4),
    "embedding": (nn.Embedding(5, 3), (4,), 4),
    "lstm": (nn.LSTM(3, 2), (6, 4, 3), 4),
    "gru": (nn.GRU(3, 2, batch_first=True), (4, 6, 3), 4),
    "one example": (nn.Linear(3, 2), (1, 3), 1),
    "no batch": (nn.Linear(3, 2), (3,), 1),
}


@pytest.mark.parametrize(
    "estimator", [lb.estimators.auto, lb.estimators.mean, lb.estimators.weights]
)
@pytest.mark.parametrize("case", MIXTURES)
def test_members_that_do_not_divide_the_batch(case, estimator):
    net, shape, batch = MIXTURES[case]
    model = lb.convert(net, lb.Rank1(3), lb.priors.Normal(0.1, loc=1.0), estimator)
    before = snapshot(model)
    dtype = torch.long if isinstance(net, nn.Embedding) else torch.float32
    with pytest.raises(
        ValueError, match=rf"batch {batch} is not a multiple of 3 members"
    ) as caught:
        model(torch.zeros(shape, dtype=dtype))
    assert "call tile(x, members)" in sentence(caught)
    assert_unchanged(model, before)


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float64)


CHECKED = {"validate_args": True}
DISTRIBUTIONS = {
    "NaN scale": (
        lambda: LocationScale(ones(2, 3), NAN * ones(2, 3), **CHECKED),
        "a scale that is not finite",
    ),
    "infinite mean": (
        lambda: LocationScale(ones(2, 3) / 0, ones(2, 3), **CHECKED),
        "a loc that is not finite",
    ),
    "NaN factor": (
        lambda: KTiedNormal(ones(2, 3), NAN * ones(1, 2), ones(1, 3), **CHECKED),
        "a u that is not finite",
    ),
    "tied shapes": (
        lambda: KTiedNormal(ones(2, 3), ones(1, 3), ones(1, 2)),
        "[k, out] and [k, in]",
    ),
    "triangle": (lambda: Triangular(ones(2, 3)), "(2, 3)"),
    "Kronecker shapes": (
        lambda: KroneckerNormal(ones(2, 3), Triangular(ones(3, 3)), Triangular(ones(2, 2))),
        "3 rows and 2 columns do not fit",
    ),
    "mask": (lambda: Masked(LocationScale(ones(2, 3), ones(2, 3)), ones(3, 2)), "it needs (2, 3)"),
    "members": (
        lambda: Rank1Mixture(ones(2, 3), Normal(ones(4, 2), 1.0), Normal(ones(5, 3), 1.0)),
        "different numbers of members: [4, 5]",
    ),
    "factor": (lambda: Rank1Mixture(ones(2, 3), ones(4, 3), None), "it needs [members, 2]"),
}


@pytest.mark.parametrize("case", DISTRIBUTIONS)
def test_distributions(case):
    make, expected = DISTRIBUTIONS[case]
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the sentence is compared below)
        make()
    assert expected in sentence(caught)


def test_weights_that_became_nan_are_named_before_they_are_converted():
    net = mlp()
    with torch.no_grad():
        net[2].weight[0, 0] = NAN
    with pytest.raises(ValueError, match="layer '2'") as caught:
        lb.convert(net, POSTERIOR, PRIOR)
    assert "look for a NaN" in sentence(caught)


LABELS = {
    "a label above": (
        lb.likelihoods.Categorical(),
        (4, 3),
        [0, 1, 2, 3],
        "a label is 3, and the 3 outputs",
    ),
    "a label below": (lb.likelihoods.Categorical(), (4, 3), [0, 1, 2, -1], "labels 0 to 2"),
    "no number for a label": (
        lb.likelihoods.Categorical(),
        (4, 3),
        [0, 1, NAN, 2.0],
        "not finite, the first",
    ),
    "two for on or off": (lb.likelihoods.Bernoulli(), (4,), [0, 1, 2, 0], "targets go from 0 to 2"),
    "minus one for off": (
        lb.likelihoods.Bernoulli(),
        (4,),
        [-1, 1, 1, -1],
        "targets go from -1 to 1",
    ),
    "half a count": (lb.likelihoods.Poisson(), (4,), [0, 1, 2.5, 0], "Poisson is for counts"),
}


@pytest.mark.tried(
    "Input",
    what="labels outside of a likelihood's outputs",
    holds="refused on a CPU: the sentence says which labels there can be",
)
@pytest.mark.parametrize("case", LABELS)
def test_labels_that_outputs_do_not_have(case):
    likelihood, shape, labels, expected = LABELS[case]
    outputs, y = torch.zeros(2, *shape), torch.tensor(labels)
    for loss in (likelihood.nll, likelihood.metrics):
        with pytest.raises(ValueError, match=r"target|label") as caught:
            loss(outputs, y)
        assert expected in sentence(caught)
    with pytest.raises(ValueError, match=r"target|label"):
        likelihood.check(outputs, y)


@pytest.mark.parametrize(
    "likelihood",
    [lb.likelihoods.Categorical(), lb.likelihoods.Bernoulli(), lb.likelihoods.Gaussian()],
)
def test_targets_that_fit_pass(likelihood):
    likelihood.check(torch.zeros(5, 3, 2), torch.tensor([0, 1, 1]))
    likelihood.check(torch.zeros(5, 3, 2), torch.tensor([0.0, 1.0, 1.0]))


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "1"])
def test_seeds(seed):
    with pytest.raises(ValueError, match="whole number from 0 to") as caught:
        lb.predict(mlp(), torch.zeros(2, 3), seed=seed)
    sentence(caught)
