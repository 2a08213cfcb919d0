"""What is left of a network, and how good it is, after every epoch [matrix normal, figures 1–5]."""

import pytest
import torch

import leanbayes as lb
from leanbayes.lab.from_recipe import build_model, load_data
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.runs import Run
from leanbayes.lab.train import train
from research.papers.matrix_normal.sparse_curves import SparseCurves, relevant_shares, sparse_curves

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

COLUMNS = {
    *(f"left/{kind}" for kind in ("weights", "rows", "columns")),
    *(f"test/{metric}" for metric in ("accuracy", "average_nll", "negative_elbo")),
}


def recipe(**changes):
    values = {
        "name": "digits-sparse",
        "data": {"name": "digits"},
        "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [20]}},
        "posterior": {"kind": "MeanField", "scale": 0.05},
        "prior": "ARD",
        "optimizer": {"lr": 0.02},
        "training": {"epochs": 4, "batch_size": 100},
        "measurements": [{"kind": "sparse_curves", "examples": 200, "samples": 3}],
        "evaluation": {"samples": 2},
    }
    return check_recipe({**values, **changes})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sparse") / "run"
    train(recipe(), folder, progress=False)
    return Run(folder)


def test_curves_are_in_the_metrics_and_the_last_is_that_of_the_trained_network(run):
    curves = run.columns
    assert curves.keys() >= COLUMNS
    assert curves["left/weights"][-1] < curves["left/weights"][0]
    model, likelihood = run.load()
    found = sparse_curves(
        model,
        run.dataset.test,
        likelihood,
        SparseCurves(examples=200, samples=3),
        data_size=run.data_size,
        seed=run.recipe.seed,
    )
    assert {name: curves[name][-1] for name in COLUMNS} == pytest.approx(found)


def test_measuring_does_not_change_the_training(tmp_path):
    short = {"training": {"epochs": 2, "batch_size": 200}}
    measured = train(recipe(**short), tmp_path / "measured", progress=False)
    plain = train(recipe(**short, measurements=[]), tmp_path / "plain", progress=False)
    assert measured["metrics"] == plain["metrics"]
    assert not COLUMNS & Run(tmp_path / "plain").columns.keys()


@pytest.mark.checklist("MN9")
@pytest.mark.parametrize("prior", [lb.priors.ARD(), lb.priors.GroupARD()])
@pytest.mark.parametrize(
    "posterior", [lb.MeanField(0.05), lb.KTied(2), lb.posteriors.MatrixNormal(0.05, diagonal=True)]
)
def test_shares_are_those_that_pruning_keeps(posterior, prior):
    """By masks and their counts, with some means so small that they have no relevance."""
    net = torch.nn.Sequential(torch.nn.Linear(9, 7), torch.nn.ELU(), torch.nn.Linear(7, 3))
    with torch.no_grad():
        net[0].weight[2:4] *= 1e-4
        net[2].weight[:, 5] *= 1e-4
        net[2].weight[1, 0] *= 1e-4
    model = lb.convert(net, posterior, prior)
    found = relevant_shares(model)
    for group, kind in (("weight", "weights"), ("row", "rows"), ("column", "columns")):
        total = lb.analysis.sparsity_report(lb.prune(model, by="relevance", groups=group)).total
        left = getattr(total, kind)
        assert found[f"left/{kind}"] == pytest.approx(left.left / left.of)
        assert 0 < found[f"left/{kind}"] < 1


def test_scores_are_those_of_the_samples_and_the_whole_kl():
    spec = recipe()
    model, test = build_model(spec), load_data(spec).test
    wanted = SparseCurves(examples=50, samples=4)
    before = torch.get_rng_state()
    found = sparse_curves(model, test, lb.likelihoods.Categorical(), wanted, data_size=700, seed=3)
    assert torch.equal(before, torch.get_rng_state())
    x, y = test.x[:50], test.y[:50]
    drawn = lb.predict(model, x, samples=4, seed=3)
    assert found["test/accuracy"] == float((drawn.labels == y).double().mean())
    each = [torch.nn.functional.cross_entropy(sample, y) for sample in drawn.samples]
    nll = float(torch.stack(each).mean())
    assert found["test/average_nll"] == pytest.approx(nll, rel=1e-5)
    whole = nll + float(lb.kl(model).detach()) / 700
    assert found["test/negative_elbo"] == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"posterior": None, "prior": None},
        {
            "data": {"name": "table.csv"},
            "architecture": {"name": "mlp", "options": {"inputs": 2, "hidden": [8], "outputs": 1}},
            "likelihood": {"kind": "gaussian"},
        },
    ],
    ids=["plain", "numbers"],
)
def test_what_has_no_relevance_or_no_accuracy_is_refused_before_it_is_trained(
    tmp_path, monkeypatch, changes
):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{i},{i * i % 7},{i / 10}\n" for i in range(60))
    (tmp_path / "table.csv").write_text("a,b,y\n" + rows)
    with pytest.raises(ValueError, match=r"measurement 'sparse_curves' (needs random|records acc)"):
        train(recipe(**changes), tmp_path / "run", progress=False)
