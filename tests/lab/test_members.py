"""Ensembles and MC dropout in recipes, diversity in results, votes in reports, foreign data."""

import itertools

import numpy as np
import pytest
import torch
from pages import Page
from sklearn.metrics import roc_auc_score
from torch import nn

import leanbayes as lb
from leanbayes import metrics
from leanbayes.lab.architectures import ARCHITECTURES, register_architecture
from leanbayes.lab.data import load_dataset
from leanbayes.lab.evaluation import evaluate, foreign_scores
from leanbayes.lab.from_recipe import build_model
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.report import write_report
from leanbayes.lab.report.classes import votes
from leanbayes.lab.runs import Run
from leanbayes.lab.train import train
from leanbayes.layers import RandomMap

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")


def recipe(**changes):
    values = {
        "name": "digits-small",
        "data": {"name": "digits"},
        "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [8]}},
        "optimizer": {"lr": 0.01},
        "training": {"epochs": 2, "batch_size": 200},
        "evaluation": {"samples": 1},
    }
    return check_recipe(values | changes)


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "ensemble"
    return folder, train(recipe(ensemble=3), folder, progress=False)


def test_a_recipe_trains_an_ensemble(ensemble):
    folder, result = ensemble
    model, _ = Run(folder).load()
    assert isinstance(model, lb.DeepEnsemble)
    assert lb.extend.members(model) == 3
    first, second = (net.state_dict() for net in model.networks[:2])
    assert not any(torch.equal(first[name], second[name]) for name in first)
    alone = sum(p.numel() for p in build_model(recipe()).parameters())
    assert sum(result["parameters"].values()) == 3 * alone


def test_results_have_the_diversity_of_members(ensemble):
    """Pairs of members, one after another."""
    folder, result = ensemble
    run = Run(folder)
    test = run.dataset.test
    model, _ = run.load()
    labels = [net(test.x).argmax(-1) for net in model.networks]
    pairs = [(a != b).double().mean() for a, b in itertools.combinations(labels, 2)]
    wrong = torch.stack([(label != test.y).double().mean() for label in labels]).mean()
    found = {name: score["value"] for name, score in result["metrics"].items()}
    assert found["disagreement"] == pytest.approx(float(np.mean(pairs)))
    assert found["diversity"] == pytest.approx(float(np.mean(pairs) / wrong))
    assert found["kl_diversity"] > 0
    assert "member_disagreement" not in found  # one sample each: members are the samples


def test_members_with_several_samples_are_compared_by_their_averages():
    test = load_dataset("digits").test[:80]
    model = lb.convert(
        build_model(recipe(ensemble=2)), lb.MeanField(0.3), lb.priors.Normal(1.0), inplace=True
    )
    found = evaluate(model, test, lb.likelihoods.Categorical(), samples=6, seed=1)
    drawn = lb.predict(model, test.x, samples=6, seed=1, batch_size=1000).samples.softmax(-1)
    first, second = (drawn[member::2].mean(0).argmax(-1) for member in range(2))
    differ = (first != second).double().mean()
    assert found["member_disagreement"]["value"] == pytest.approx(float(differ))
    wrong = torch.stack([label != test.y for label in (first, second)]).double().mean()
    assert found["member_diversity"]["value"] == pytest.approx(float(differ / wrong))
    assert found["disagreement"]["value"] != found["member_disagreement"]["value"]


def test_the_report_shows_where_members_disagree(ensemble, tmp_path):
    page = Page(write_report([ensemble[0]], tmp_path / "r.html"))
    assert "Members" in page.headings
    assert "Two of the 3 members take" in page.text
    assert "on which members disagree most, with their votes" in page.text


def test_votes_are_counted():
    digits = load_dataset("digits")
    assert votes(torch.tensor([3, 5, 3, 3]), digits) == "3 3, 1 5"


def test_a_recipe_with_mc_dropout_draws_in_predictions(tmp_path):
    @register_architecture("dropped")
    def dropped():
        layers = nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10)
        return nn.Sequential(*layers)

    try:
        wanted = recipe(
            architecture={"name": "dropped"}, mc_dropout=True, evaluation={"samples": 20}
        )
        result = train(wanted, tmp_path / "run", progress=False)
        assert result["metrics"]["mutual_information"]["value"] > 0.01
        model, _ = Run(tmp_path / "run").load()
        x = Run(tmp_path / "run").dataset.test.x[:5]
        assert lb.predict(model, x, samples=9).mutual_information.min() > 0
    finally:
        ARCHITECTURES.unregister("dropped")
    with pytest.raises(ValueError, match="the model has no dropout layer"):
        build_model(recipe(mc_dropout=True))
    with pytest.raises(ValueError, match="ensemble"):
        recipe(ensemble=0)


def test_foreign_data_are_told_by_uncertainty(ensemble, tmp_path):
    folder = ensemble[0]
    images = np.random.default_rng(0).integers(0, 17, (60, 1, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "noise.npz", x=images, y=np.arange(60) % 10)
    found = foreign_scores(folder, str(tmp_path / "noise.npz"), samples=1)
    run = Run(folder)
    model, _ = run.load()
    own = lb.predict(model, run.dataset.test.x, samples=1).entropy
    other = load_dataset(str(tmp_path / "noise.npz")).test
    foreign = lb.predict(model, run.dataset.scaling(other.stored), samples=1).entropy
    truth = np.r_[np.zeros(len(own)), np.ones(len(foreign))]
    expected = roc_auc_score(truth, torch.cat([own, foreign]).numpy())
    assert found["auroc_entropy"]["value"] == pytest.approx(expected)
    assert found["auroc_entropy"]["error"] > 0
    assert 0 <= found["auroc_mutual_information"]["value"] <= 1
    np.savez(tmp_path / "large.npz", x=np.zeros((60, 1, 9, 9), np.uint8), y=np.arange(60) % 10)
    with pytest.raises(ValueError, match="give a data set of the same shape"):
        foreign_scores(folder, str(tmp_path / "large.npz"), samples=1)


def test_members_are_averaged_over_their_own_samples():
    log_probs = torch.randn(6, 5, 4).log_softmax(-1)
    found = metrics.member_log_probs(log_probs, 3)
    for member in range(3):
        expected = log_probs[[member, member + 3]].exp().mean(0)
        torch.testing.assert_close(found[member].exp(), expected)
    with pytest.raises(ValueError, match="6 samples are not those of 4 members"):
        metrics.member_log_probs(log_probs, 4)


def test_disagreements_are_shares_of_pairs():
    labels = torch.randint(3, (4, 7))
    pairs = torch.stack([(a != b).double() for a, b in itertools.combinations(labels, 2)])
    found = metrics.disagreements(nn.functional.one_hot(labels, 3).float())
    torch.testing.assert_close(found, pairs.mean(0))


@pytest.mark.parametrize("batch", ["split", "tile", None])
def test_members_of_a_recipe_see_their_share_or_all(batch, tmp_path, monkeypatch):
    posterior = {"kind": "Rank1", "members": 4} | ({"batch": batch} if batch else {})
    seen, usage = set(), RandomMap.usage

    def watched(self, x, op):
        if self.training and torch.is_grad_enabled():
            seen.add(len(x))
        return usage(self, x, op)

    monkeypatch.setattr(RandomMap, "usage", watched)
    prior = {"kind": "Normal", "scale": 0.1, "loc": 1.0}
    chosen = recipe(posterior=posterior, prior=prior)
    train(chosen, tmp_path / "run", progress=False)
    size = Run(tmp_path / "run").data_size
    last = size % 200
    assert seen == ({200, last - last % 4} if batch == "split" else {800, 4 * last})
    model, _ = Run(tmp_path / "run").load()
    assert lb.predict(model, torch.rand(3, 64), samples=2).samples.shape == (8, 3, 10)
