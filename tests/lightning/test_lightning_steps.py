"""What a LightningModule does beside training: tests, predictions, loggers, checkpoints."""

import copy

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes.lightning import BayesianModule
from leanbayes.training.batches import parts_of

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

X = torch.linspace(-2, 2, 40).reshape(20, 2)
Y = (X.sum(1) > 0).long()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 2))


def module(posterior=None, **options):
    model = lb.convert(net(), posterior or lb.KTied(2), lb.priors.Normal(1.0, loc=1.0))
    return BayesianModule(model, data_size=20, samples=6, **options)


def trainer(folder, logger=False, **options):
    return L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        default_root_dir=folder,
        logger=logger,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def loader(*tensors):
    return DataLoader(TensorDataset(*tensors), batch_size=8)


def test_a_test_scores_the_mixture_of_samples(tmp_path):
    plain = module(lb.posteriors.Point())  # no noise: torch's own loss is the oracle
    (scores,) = trainer(tmp_path).test(plain, loader(X, Y), verbose=False)
    outputs = plain.model(X).detach()
    assert scores["test/nll"] == pytest.approx(float(F.cross_entropy(outputs, Y)), rel=1e-5)
    right = float((outputs.argmax(-1) == Y).float().mean())
    assert scores["test/accuracy"] == pytest.approx(right)


@pytest.mark.parametrize("batches", [loader(X), loader(X, Y)], ids=["inputs", "pairs"])
def test_predictions_are_predictions(tmp_path, batches):
    parts = trainer(tmp_path).predict(module(likelihood=lb.likelihoods.Gaussian(0.3)), batches)
    assert [part.samples.shape for part in parts] == [(6, 8, 2), (6, 8, 2), (6, 4, 2)]
    assert all(isinstance(part, lb.Prediction) for part in parts)
    assert parts[0].aleatoric == pytest.approx(torch.full((8, 2), 0.09))


def test_members_are_tiled_in_predictions(tmp_path):
    parts = trainer(tmp_path).predict(module(lb.Rank1(3)), loader(X))
    assert parts[0].samples.shape == (18, 8, 2)


def test_loggers_get_the_hyper_parameters(tmp_path):
    logger = CSVLogger(tmp_path, name="log")
    trainer(tmp_path, logger).fit(module(lr=0.02), loader(X, Y))
    written = (tmp_path / "log" / "version_0" / "hparams.yaml").read_text()
    for line in (
        "lr: 0.02",
        "data_size: 20",
        "samples: 6",
        "KTied(rank=2",
        "Constant(",
        "seed: 42",
    ):
        assert line in written


def test_a_checkpoint_comes_back_with_a_fresh_network(tmp_path):
    ramp = lb.training.schedules.LinearRamp(7)
    trained = module(likelihood=lb.likelihoods.Gaussian(0.5, "learned"), lr=0.03, schedule=ramp)
    run = trainer(tmp_path)
    run.fit(trained, loader(X, torch.stack([Y, 1 - Y], 1).float()))
    run.save_checkpoint(tmp_path / "c.ckpt")
    fresh = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 2))
    before = copy.deepcopy(fresh.state_dict())
    again = BayesianModule.from_checkpoint(fresh, tmp_path / "c.ckpt", samples=9)
    assert (again.lr, again.data_size, again.samples) == (0.03, 20, 9)
    assert repr(again.likelihood) == repr(trained.likelihood)
    assert again.schedule == ramp
    for name, value in trained.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    assert all(torch.equal(value, before[name]) for name, value in fresh.state_dict().items())
    torch.manual_seed(1)
    expected = trained.model(X)
    torch.manual_seed(1)
    assert torch.equal(again.model(X), expected)
    more = trainer(tmp_path)
    more.fit(again, loader(X, torch.stack([Y, 1 - Y], 1).float()))


def test_a_checkpoint_of_another_network_or_program_is_refused(tmp_path):
    run = trainer(tmp_path)
    run.fit(module(), loader(X, Y))
    run.save_checkpoint(tmp_path / "c.ckpt")
    with pytest.raises(lb.errors.LoadError, match="another architecture"):
        BayesianModule.from_checkpoint(nn.Linear(2, 2), tmp_path / "c.ckpt")
    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    with pytest.raises(lb.errors.LoadError, match="not written by a BayesianModule"):
        BayesianModule.from_checkpoint(net(), tmp_path / "other.ckpt")


class Output:
    """As other libraries have them: several things, of which one is called logits."""

    def __init__(self, logits):
        self.logits, self.hidden = logits, None


class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 3), nn.Linear(3, 2)

    def forward(self, *, values, gate):
        return Output(self.second(gate[:, None] * torch.tanh(self.first(values))))


def dictionaries():
    rows = [{"values": X[i], "gate": X[i, 0], "labels": Y[i]} for i in range(len(X))]
    return DataLoader(rows, batch_size=8)


@pytest.mark.parametrize("posterior", [lb.KTied(2), lb.Rank1(2)])
def test_batches_may_be_dictionaries(tmp_path, posterior):
    model = lb.convert(Keywords(), posterior, lb.priors.Normal(0.1, loc=1.0))
    trained = BayesianModule(model, data_size=20, samples=4)
    run = trainer(tmp_path)
    run.fit(trained, dictionaries(), dictionaries())
    assert run.callback_metrics["validation/nll"].isfinite()
    parts = run.predict(trained, dictionaries())
    assert parts[0].samples.shape == (4 * lb.extend.members(model), 8, 2)
    other = BayesianModule(model, data_size=20, output=lambda given: 2 * given.logits, samples=4)
    with lb.using(model, lb.estimators.mean):
        twice, once = (m.predict_step(next(iter(dictionaries())), 0) for m in (other, trained))
    torch.testing.assert_close(twice.samples, 2 * once.samples)


def test_batches_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=9,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=6,
    )
    bert = transformers.BertForSequenceClassification(config)
    trained = BayesianModule(
        lb.convert(bert, lb.KTied(1), lb.priors.Normal(0.1)), data_size=6, samples=3
    )
    ids = torch.arange(24).reshape(6, 4) % 9
    rows = [{"input_ids": r, "attention_mask": torch.ones_like(r), "labels": r[0] % 2} for r in ids]
    run = trainer(tmp_path)
    run.fit(trained, DataLoader(rows, batch_size=3))
    assert run.predict(trained, DataLoader(rows, batch_size=3))[0].probs.shape == (3, 2)


BAD = {
    "no target": (X, ValueError, "no target"),
    "another key": ({"values": X, "label": Y}, ValueError, "did you mean 'label'"),
    "text": (("words", Y), TypeError, "is a str; give tensors"),
    "three": ((X, X, Y), ValueError, "a batch is a tuple; give a tensor, a pair"),
    "nothing": ({"labels": Y}, ValueError, "no inputs"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_batch_that_cannot_be_meant_gets_a_sentence(case):
    batch, kind, words = BAD[case]
    with pytest.raises(kind, match=words):
        parts_of(batch, "labels").with_target("labels")


def test_an_output_without_a_tensor_gets_a_sentence():
    class Pair(nn.Linear):
        def forward(self, x):
            return x, super().forward(x)

    with pytest.raises(TypeError, match=r"gives a tuple; choose a tensor of it with output="):
        BayesianModule(Pair(2, 2), data_size=20).objective((X, Y))
