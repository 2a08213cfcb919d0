"""Laplace approximations, against dense Gauss–Newton matrices, exact posteriors and a peer."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap

import leanbayes as lb
from leanbayes.prediction.linearized import linearized_samples
from leanbayes.training.curvature import curvature
from leanbayes.training.laplace import _widest, damped, nearest_kronecker

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

CLASSES = lb.likelihoods.Categorical()


def dense_ggn(net, x, name):
    """``Σ Jᵀ (diag p − p pᵀ) J`` of one weight, by automatic differentiation."""
    weights = {key: value.detach() for key, value in net.named_parameters()}

    def outputs(w, one):
        return functional_call(net, weights | {name: w}, (one[None],))[0]

    jacobian = vmap(jacrev(outputs), (None, 0))(weights[name], x).flatten(2)
    p = net(x).softmax(-1).detach()
    hessian = p.diag_embed() - p.unsqueeze(-1) * p.unsqueeze(-2)
    return torch.einsum("bki,bkl,blj->ij", jacobian, hessian, jacobian)


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.ReLU(inplace=True), nn.Flatten(),
        nn.Linear(18, 3),
    ).double()  # fmt: skip


@pytest.mark.parametrize(("layer", "weight"), [("0", "0.weight"), ("3", "3.weight")])
def test_the_diagonal_is_that_of_the_dense_matrix(layer, weight):
    net, x = cnn(), torch.randn(7, 1, 6, 6).double()
    sums, _ = curvature(net, {layer: net[int(layer)]}, [(x, torch.zeros(7).long())], CLASSES)
    dense = dense_ggn(net, x, weight).diagonal()
    torch.testing.assert_close(sums[layer].diagonal.flatten(), dense)


def test_kronecker_factors_of_one_example_are_exact():
    net, x = cnn(), torch.randn(1, 1, 6, 6).double()
    sums, _ = curvature(net, {"3": net[3]}, [(x, torch.zeros(1).long())], CLASSES)
    torch.testing.assert_close(torch.kron(*sums["3"].kronecker), dense_ggn(net, x, "3.weight"))


def test_batches_add_up_and_the_log_likelihood_is_counted():
    net, x, y = cnn(), torch.randn(6, 1, 6, 6).double(), torch.randint(3, (6,))
    whole, total = curvature(net, {"0": net[0]}, [(x, y)], CLASSES)
    parts, same = curvature(net, {"0": net[0]}, [(x[:2], y[:2]), (x[2:], y[2:])], CLASSES)
    for a, b in zip(whole["0"].kronecker, parts["0"].kronecker, strict=True):
        torch.testing.assert_close(a, b)
    expected = -float(nn.functional.cross_entropy(net(x), y, reduction="sum").detach())
    assert total == pytest.approx(expected)
    assert same == pytest.approx(expected)


def test_linear_regression_has_its_exact_posterior():
    x, net = torch.randn(40, 3).double(), nn.Linear(3, 1, bias=False).double()
    y, likelihood = torch.randn(40, 1).double(), lb.likelihoods.Gaussian(0.5)
    model = lb.laplace(net, (x, y), "kfac", likelihood=likelihood, prior_precision=2.0)
    exact = torch.linalg.inv(x.mT @ x / 0.25 + 2 * torch.eye(3))
    columns = model.posterior().columns.dense * model.posterior().rows.dense
    torch.testing.assert_close(columns, exact)
    assert model.prior.spec == lb.priors.Normal(1 / math.sqrt(2))
    diagonal = lb.laplace(net, (x, y), "diagonal", likelihood=likelihood, prior_precision=2.0)
    expected = 1 / (x.square().sum(0, keepdim=True) / 0.25 + 2)
    torch.testing.assert_close(diagonal.posterior().variance, expected)


def test_the_precision_has_the_largest_evidence():
    """Of a linear regression, whose evidence is known in closed form up to the prior's mode."""
    net = nn.Linear(3, 1, bias=False).double()
    x, y = torch.randn(40, 3).double(), torch.randn(40, 1).double()
    found = (
        lb.laplace(net, (x, y), "kfac", likelihood=lb.likelihoods.Gaussian(0.5)).prior.spec.scale
        ** -2
    )
    values = torch.linalg.eigvalsh(x.mT @ x / 0.25)
    square = float(net.weight.square().sum().detach())

    def evidence(delta):
        return 0.5 * (3 * math.log(delta) - delta * square) - 0.5 * float(
            (values + delta).log().sum()
        )

    assert all(evidence(found) >= evidence(found * factor) for factor in (0.8, 0.99, 1.01, 1.25))


def test_the_nearest_kronecker_product_is_a_minimum():
    precision = torch.rand(4, 5).double() * 10 + 0.1
    rows, columns = nearest_kronecker(precision)

    def divergence(r, c):
        ratio = torch.outer(r, c) * precision
        return float((ratio - ratio.log()).sum())

    best = divergence(rows, columns)
    for _ in range(20):
        near = [v * (0.05 * torch.randn(len(v))).exp() for v in (rows, columns)]
        assert divergence(*near) >= best


@pytest.mark.parametrize("shape", [(1, 5), (4, 1)])
def test_one_row_or_column_has_the_exact_variances(shape):
    values = [torch.rand(size).double() for size in shape]
    rows, columns = damped(*values, 0.3)
    exact = 1 / (torch.outer(*values) + 0.3)
    torch.testing.assert_close(torch.outer(rows, columns), exact)


def test_the_prior_is_split_between_rows_and_columns():
    """Exact where nothing is known, nearly so where all is, and never wider than exact."""
    values = torch.tensor([0.0, 1e4]).double(), torch.tensor([0.0, 3e-2, 2e3]).double()
    found = torch.outer(*damped(*values, 0.3))
    exact = 1 / (torch.outer(*values) + 0.3)
    assert found[0, 0] == pytest.approx(float(exact[0, 0]))
    assert found[1, 2] == pytest.approx(float(exact[1, 2]), rel=1e-3)
    assert (found <= exact * (1 + 1e-9)).all()
    nothing = torch.outer(*damped(torch.zeros(2), torch.zeros(3), 4.0))
    torch.testing.assert_close(nothing, torch.full((2, 3), 0.25))
    scaled = torch.outer(*damped(100 * values[0], values[1] / 100, 0.3))
    torch.testing.assert_close(scaled, found)


def trained():
    torch.manual_seed(1)
    x = torch.randn(200, 4)
    y = (x[:, 0] + x[:, 1] > 0).long() + (x[:, 2] > 1).long()
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    lb.fit(net, (x, y), epochs=20, lr=0.02, batch_size=50, weight_decay=1e-3)
    return net, x, y


@pytest.mark.parametrize("posterior", ["kfac", "diagonal", "last-layer"])
def test_the_result_is_an_ordinary_model(posterior, tmp_path):
    net, x, y = trained()
    model = lb.laplace(net, (x, y), posterior)
    with lb.using(model, lb.estimators.mean):
        torch.testing.assert_close(model(x), net(x))
    assert lb.kl(model) > 0
    assert lb.predict(model, x, samples=20).mutual_information.mean() > 0
    same = lb.load(net, lb.save(model, tmp_path / "m"))
    assert torch.equal(lb.kl(same), lb.kl(model))
    lb.fit(model, (x, y), epochs=1)
    random = {name for name, _ in lb.extend.random_maps(model)}
    assert random == ({"2", "2.bias"} if posterior == "last-layer" else {"0", "0.bias"} | {
        "2", "2.bias"})  # fmt: skip


def test_a_linearized_linear_model_is_the_model_itself():
    net, x = nn.Linear(3, 2), torch.randn(5, 3)
    model = lb.laplace(net, (torch.randn(30, 3), torch.randint(2, (30,))))
    drawn = linearized_samples(model, lambda called: called(x), 4000)
    assert drawn.shape == (4000, 5, 2)
    lb.testing.assert_mean(drawn, net(x).detach(), "linearized outputs")
    q = model.posterior()
    along = ((x @ q.columns.dense) * x).sum(-1, keepdim=True)
    variance = (along * q.rows.dense.diagonal() + model.bias.posterior().variance.mT).detach()
    lb.testing.assert_mean((drawn - net(x).detach()).square(), variance, "linearized variances")


def test_linearized_samples_are_tangents():
    """A draw that is scaled by a small number changes the network as its tangent does."""
    net, x, y = trained()
    model = lb.laplace(net.double(), (x.double(), y), "diagonal", prior_precision=1e12)
    torch.manual_seed(3)
    tangent = linearized_samples(model, lambda called: called(x.double()), 1)[0]
    with torch.no_grad():
        near = tangent - net(x.double())
    assert 0 < near.abs().max() < 1e-3


def test_what_cannot_be_linearized_is_refused():
    model = lb.convert(nn.Linear(3, 2), lb.posteriors.ZeroMean(), lb.priors.ARD())
    with pytest.raises(ValueError, match="no mean to linearize at"):
        linearized_samples(model, lambda called: called(torch.zeros(1, 3)), 1)
    with pytest.raises(ValueError, match="no Bayesian layer"):
        linearized_samples(nn.Linear(3, 2), lambda called: called(torch.zeros(1, 3)), 1)


@pytest.mark.parametrize(
    ("net", "sentence"),
    [
        (nn.Embedding(3, 2), r"only  \(Embedding\); a Laplace approximation needs one"),
        (nn.ReLU(), "no linear layer or ungrouped 2-D convolution; a Laplace"),
        (lb.convert(nn.Linear(2, 2), lb.KTied(), lb.priors.Normal(1.0)), "random weights already"),
    ],
)
def test_models_without_a_known_curvature(net, sentence):
    with pytest.raises(ValueError, match=sentence):
        lb.laplace(net, (torch.zeros(4, 2), torch.zeros(4).long()))


def loader_of(x, y):
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=200)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_factors_are_those_of_laplace_torch():
    laplace = pytest.importorskip("laplace")
    net, x, y = trained()
    sums, _ = curvature(net, {"0": net[0], "2": net[2]}, [(x, y)], CLASSES)
    peer = laplace.Laplace(net, "classification", "all", "kron")
    peer.fit(loader_of(x, y))
    blocks = {len(block[0]): block for block in peer.H_facs.kfacs if len(block) == 2}
    for layer in sums.values():
        outputs, inputs = layer.kronecker
        theirs = torch.kron(*blocks[len(outputs)])
        ours = torch.kron(outputs, inputs).float()
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_predictions_are_not_behind_those_of_laplace_torch():
    """Digits, and digits with shuffled pixels as OOD images; their draws of logits, our defaults.

    Their default link, probit, also counts the variance that all logits share, which softmax
    ignores.
    """
    laplace = pytest.importorskip("laplace")
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    x, y = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)
    train, new = (x[:600], y[:600]), (x[600:], y[600:])
    ood = new[0][:, torch.randperm(64)]
    net = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
    lb.fit(net, train, epochs=60, lr=5e-3, progress=False)
    peer = laplace.Laplace(net.eval(), "classification", "last_layer", "kron")
    peer.fit(loader_of(*train))
    peer.optimize_prior_precision(method="marglik")
    options = {"link_approx": "mc", "n_samples": 500}
    theirs, far = (lb.Prediction(peer(z, **options).detach().log()[None]) for z in (new[0], ood))
    model = lb.laplace(net, train)
    ours, ours_far = (lb.predict(model, z, samples=500, seed=0) for z in (new[0], ood))

    def detected(known, unknown):
        entropy = torch.cat([known.entropy, unknown.entropy])
        return lb.metrics.auroc(entropy, torch.arange(len(entropy)) >= len(known)).value

    nll, other = (-float(p.log_likelihood(new[1]).mean()) for p in (ours, theirs))
    assert nll < other + 0.005
    assert detected(ours, ours_far) > detected(theirs, far) - 0.02


def test_a_temperature_is_found_again():
    logits = 4 * torch.randn(5000, 3)
    y = torch.distributions.Categorical(logits=logits / 2.5).sample()
    found = lb.calibrate(nn.Identity(), (logits, y), samples=1)
    assert 2.2 < found.temperature < 2.8
    same = lb.likelihoods.Likelihood.from_dict(found.to_dict())
    assert same.temperature == found.temperature
    before = lb.predict(nn.Identity(), logits, samples=1).calibration(y)
    after = lb.predict(nn.Identity(), logits, samples=1, likelihood=found).calibration(y)
    assert str(before) != str(after)


def test_a_noise_scale_is_found_again():
    x = torch.randn(4000, 1)
    y = x + 0.3 * torch.randn(4000, 1)
    for noise in ("fixed", "learned"):
        start = lb.likelihoods.Gaussian(1.0, noise)
        found = lb.calibrate(nn.Identity(), (x, y), likelihood=start, samples=1)
        assert float(found.distribution(x).scale.mean().detach()) == pytest.approx(0.3, rel=0.05)
        assert float(start.distribution(x).scale.mean().detach()) == 1.0


def test_what_cannot_be_calibrated_is_said():
    with pytest.raises(ValueError, match="no temperature or noise scale to fit"):
        lb.calibrate(nn.Identity(), (torch.ones(2, 1), torch.ones(2, 1)),
                     likelihood=lb.likelihoods.Poisson())  # fmt: skip


def test_linearized_predictions_are_one_function_for_all_batches():
    net, x, y = trained()
    model = lb.laplace(net, (x, y), "kfac")
    whole = lb.predict(model, x, samples=5, linearized=True, seed=1)
    parts = lb.predict(model, x, samples=5, linearized=True, seed=1, batch_size=64)
    torch.testing.assert_close(whole.samples, parts.samples)
    assert whole.method == "linearized"
    sampled = lb.predict(model, x, samples=200, seed=1).log_likelihood(y).mean()
    linear = lb.predict(model, x, samples=200, seed=1, linearized=True).log_likelihood(y).mean()
    assert linear > sampled


def test_a_frozen_network_has_the_same_curvature():
    net, x, y = trained()
    expected = lb.kl(lb.laplace(net, (x, y), "kfac")).detach()
    frozen = lb.laplace(net.requires_grad_(False), (x, y), "kfac")
    torch.testing.assert_close(lb.kl(frozen), expected)


def test_a_list_of_batches_is_enough():
    net, x, y = trained()
    parts = lb.laplace(net, [(x[:50], y[:50]), (x[50:], y[50:])], "kfac")
    torch.testing.assert_close(lb.kl(parts), lb.kl(lb.laplace(net, (x, y), "kfac")))


def test_outputs_that_are_not_finite_are_refused():
    net, x, y = trained()
    with pytest.raises(ValueError, match="outputs that are not finite"):
        lb.laplace(net, (x * math.nan, y))


def test_the_last_layer_alone_is_random_by_default():
    net, (x, y) = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), (
        torch.randn(30, 3), torch.randint(2, (30,)),
    )  # fmt: skip
    assert {name.split(".")[0] for name in lb.named_kl(lb.laplace(net, (x, y)))} == {"2"}


def test_validation_rows_choose_the_widest_of_equally_good_precisions():
    best = torch.tensor([1.0, 2.0, 1.0])
    losses = {0.1: best + 2, 1.0: best + torch.tensor([0.5, -0.3, 0.1]), 10.0: best, 100.0: best}
    assert _widest(losses) == 1.0
    assert _widest(losses | {1.0: best + 0.5}) == 10.0


def test_held_out_rows_choose_the_prior_and_never_a_worse_one_than_the_network():
    torch.manual_seed(5)
    x = torch.randn(400, 4)
    y = (x[:, 0] + 1.5 * torch.randn(400) > 0).long()
    net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    lb.fit(net, (x[:100], y[:100]), epochs=60, lr=0.02, batch_size=50, progress=False)
    held_out = (x[100:], y[100:])
    model = lb.laplace(net, (x[:100], y[:100]), validation=held_out)
    ours, plain = (
        -lb.predict(each, held_out[0], samples=30, seed=0).log_likelihood(y[100:]).mean()
        for each in (model, net)
    )
    assert ours < plain


def test_classes_have_a_measured_factor_and_numbers_the_evidence():
    net, x, y = trained()
    blocks = {}
    for kind in ("kfac", "last-layer"):
        model, numbers = (
            lb.laplace(net, (x, target), kind, likelihood=law)
            for target, law in ((y, None), (torch.zeros(200, 3), lb.likelihoods.Gaussian(0.5)))
        )
        blocks[kind] = [
            dict(lb.extend.random_maps(m))["2"].prior.spec.scale for m in (model, numbers)
        ]
    assert blocks["kfac"][0] < blocks["last-layer"][0]
    given = lb.laplace(net, (x, y), prior_precision=4.0)
    assert dict(lb.extend.random_maps(given))["2"].prior.spec == lb.priors.Normal(0.5)
