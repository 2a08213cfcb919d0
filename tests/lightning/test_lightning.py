"""The LightningModule and its callbacks: they train, resume to the same bits, and stop on NaN."""

import lightning as L
import pytest
import torch
from dense import absolute
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes.lightning import BayesianModule, NonFiniteLossError, PriorUpdates, StopOnNonFinite

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")


class Ordered:
    """Batches in one order; Lightning takes any iterable."""

    def __init__(self, x, y, batch):
        self.parts = list(zip(x.split(batch), y.split(batch), strict=True))

    def __iter__(self):
        return iter(self.parts)

    def __len__(self):
        return len(self.parts)


def _data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(96, 4, generator=generator)
    return x, (x[:, 0] > 0).long()


def _module(posterior=None, prior=None, **options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    posterior = posterior or lb.KTied(2)
    prior = prior or lb.priors.Normal(1.0)
    return BayesianModule(lb.convert(net, posterior, prior), data_size=96, **options)


def _trainer(folder, epochs, *callbacks, **options):
    return L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=list(callbacks),
        **options,
    )


def _loader():
    return Ordered(*_data(), 32)


@pytest.mark.parametrize(
    ("posterior", "prior"),
    [(lb.KTied(2), lb.priors.Normal(1.0)), (lb.Rank1(3), lb.priors.Normal(0.1, loc=1.0))],
    ids=["k_tied", "rank1"],
)
def test_fit_lowers_the_loss(tmp_path, posterior, prior):
    module = _module(posterior, prior, lr=0.02)
    trainer = _trainer(tmp_path, 30)
    trainer.fit(module, _loader(), _loader())
    assert trainer.callback_metrics["validation/accuracy"] > 0.9
    assert trainer.callback_metrics["validation/nll"] < 0.4
    assert trainer.callback_metrics["train/kl"] > 0


def test_a_resumed_run_ends_in_the_same_bits(tmp_path):
    whole = _module(scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 2))
    _trainer(tmp_path, 5).fit(whole, _loader(), _loader())

    first = _module(scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 2))
    trainer = _trainer(tmp_path, 3)
    trainer.fit(first, _loader(), _loader())
    trainer.save_checkpoint(tmp_path / "at3.ckpt")

    second = _module(scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 2))
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.zero_()
    _trainer(tmp_path, 5).fit(
        second, _loader(), _loader(), ckpt_path=tmp_path / "at3.ckpt", weights_only=True
    )
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_kl_schedule_counts_steps_or_epochs(tmp_path):
    weights = []

    class Watch(L.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            weights.append(pl_module.kl_weight)

    _trainer(tmp_path, 2, Watch()).fit(
        _module(schedule=lb.training.schedules.LinearRamp(6)), _loader()
    )
    assert weights == pytest.approx([i / 6 for i in range(6)])
    weights.clear()
    by_epoch = _module(schedule=lb.training.schedules.LinearRamp(2), count="epoch")
    _trainer(tmp_path, 2, Watch()).fit(by_epoch, _loader())
    assert weights == pytest.approx([0.0] * 3 + [0.5] * 3)


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_layer(tmp_path):
    module = _module()
    with torch.no_grad():
        module.model[2].posterior.u.fill_(float("nan"))
    before = module.model[0].posterior.loc.clone()
    with pytest.raises(NonFiniteLossError, match=r"model\.2\.posterior\.u"):
        _trainer(tmp_path, 1, StopOnNonFinite()).fit(module, _loader())
    assert torch.equal(module.model[0].posterior.loc, before)


def test_bad_inputs_are_told_from_bad_parameters(tmp_path):
    x, y = _data()
    x[0, 0] = float("inf")
    with pytest.raises(NonFiniteLossError, match="inputs or the likelihood"):
        _trainer(tmp_path, 1, StopOnNonFinite()).fit(_module(), Ordered(x, y, 32))


def test_prior_updates_put_group_ard_at_its_optimum(tmp_path):
    module = _module(lb.posteriors.MatrixNormal(0.1), lb.priors.GroupARD())
    _trainer(tmp_path, 1, PriorUpdates(rounds=200)).fit(module, _loader())
    layer = module.model[0]
    for parameter in layer.prior.parameters():
        parameter.grad = None
    layer.kl().backward()
    for parameter in layer.prior.parameters():
        assert parameter.grad.abs().max() < 1e-3


def test_a_learned_noise_scale_is_trained(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(96, 1)
    y = 2 * x + 0.1 * torch.randn(96, 1)
    model = lb.convert(nn.Linear(1, 1), lb.MeanField(), lb.priors.Normal(2.0))
    likelihood = lb.likelihoods.Gaussian(1.0, noise="learned")
    module = BayesianModule(model, data_size=96, likelihood=likelihood, lr=0.05)
    loader = DataLoader(TensorDataset(x, y), batch_size=32)
    _trainer(tmp_path, 60).fit(module, loader, loader)
    assert 0.05 < likelihood.log_scale.exp() < 0.25


def test_train_samples_lower_the_variance_of_the_gradient():
    x, y = _data()

    def spread(samples):
        module = _module(lb.MeanField(scale=0.5), train_samples=samples)
        torch.manual_seed(1)
        return torch.stack([module.objective((x, y)).nll.detach() for _ in range(100)]).var()

    assert spread(8) < 0.5 * spread(1)


def test_wrong_arguments_get_a_sentence():
    with pytest.raises(ValueError, match="'step' or 'epoch'"):
        _module(count="batch")
    with pytest.raises(ValueError, match="number of training examples"):
        BayesianModule(nn.Linear(1, 1), data_size=0)


@pytest.mark.parametrize("count", [1, 2])
def test_inputs_may_come_time_first(count):
    class LastStep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.lstm(x)[0][-1])

    model = lb.convert(LastStep(), lb.Rank1(count), lb.priors.Normal(0.1, loc=1.0))
    module = BayesianModule(model, data_size=100, batch_dim=1)
    batch = torch.randn(7, 5, 3), torch.randint(2, (5,))
    assert module.objective(batch).loss.isfinite()
    module.log = lambda name, value, **_: None
    module.validation_step(batch, 0)


@pytest.mark.parametrize(("batch", "rows"), [("split", 30), ("tile", 96)])
def test_members_see_their_share_or_all(batch, rows):
    module, seen = _module(lb.Rank1(3, batch=batch), lb.priors.Normal(0.1, loc=1.0)), []
    module.model[0].register_forward_pre_hook(lambda m, inputs: seen.append(len(inputs[0])))
    x, y = _data()
    module.objective((x[:32], y[:32])).loss.backward()
    assert set(seen) == {rows}


def test_checkpoints_of_absolute_logs_load(tmp_path):
    module, trainer = _module(), _trainer(tmp_path, 1)
    trainer.fit(module, _loader(), _loader())
    trainer.save_checkpoint(tmp_path / "new.ckpt")
    old = torch.load(tmp_path / "new.ckpt", weights_only=True)
    state = old["state_dict"]
    for name, part in module.named_modules():
        if hasattr(part, "transforms"):
            state.update({f"{name}.{key}": t.detach() for key, t in absolute(part).items()})
            state._metadata[name]["version"] = 1
    torch.save(old, tmp_path / "old.ckpt")
    for name in ("new", "old"):
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        again = BayesianModule.from_checkpoint(net, tmp_path / f"{name}.ckpt")
        torch.testing.assert_close(lb.kl(again.model), lb.kl(module.model))
