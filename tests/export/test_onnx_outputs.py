"""What exported networks answer about numbers, for several inputs, and what export refuses."""

import importlib.util
import json

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.export.graph import OutputGraph, OutputSpec
from leanbayes.export.tracing import sized, traced_pass

np = pytest.importorskip("numpy")
pytest.importorskip("onnxscript")
ort = pytest.importorskip("onnxruntime")


def run(file, **inputs):
    running = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
    said = running.run(None, {name: value.numpy() for name, value in inputs.items()})
    names = [value.name for value in running.get_outputs()]
    return {n: torch.tensor(v) for n, v in zip(names, said, strict=True)}, running


LIKELIHOODS = {
    "learned": (lb.likelihoods.Gaussian(0.3, "learned"), 1),
    "predicted": (lb.likelihoods.Gaussian(0.3, "predicted"), 2),
    "heavy tails": (lb.likelihoods.StudentTNoise(0.3, df=5.0), 1),
    "counts": (lb.likelihoods.Poisson(), 1),
    "on or off": (lb.likelihoods.Bernoulli(), 3),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_answers_are_those_of_a_prediction(name):
    likelihood, width = LIKELIHOODS[name]
    samples = torch.randn(7, 2, 5, width)
    levels = (0.01, 0.3, 0.5, 0.99)
    asked = OutputGraph(OutputSpec(likelihood, levels), samples.flatten(0, 1), stacked=True)
    with torch.no_grad():
        said = dict(zip(asked.names, asked(samples), strict=True))
    p = lb.Prediction(samples.flatten(0, 1), likelihood)
    if name == "on or off":
        assert torch.allclose(said["probabilities"], p.probs)
        assert torch.allclose(said["entropy"], p.entropy)
        return
    assert torch.allclose(said["mean"], p.mean)
    assert torch.allclose(said["standard_deviation"], p.variance.sqrt())
    assert torch.allclose(said["aleatoric"], p.aleatoric)
    assert torch.allclose(said["epistemic"], p.epistemic)
    assert ("quantiles" in said) == (name in ("learned", "predicted"))
    if "quantiles" in said:
        assert torch.allclose(said["quantiles"], p.quantiles(levels).detach(), atol=1e-5)


def test_numbers_with_quantiles_in_a_file(tmp_path):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    model, x = lb.convert(net, lb.KTied(2, scale=0.2), lb.priors.Flat()), torch.randn(9, 4)
    likelihood = lb.likelihoods.Gaussian(0.3, "predicted")
    file = tmp_path / "m.onnx"
    lb.export_onnx(model, x, file, samples=3, noise="input", likelihood=likelihood)
    noise = torch.randn(3, 9, 10)
    said, running = run(file, x=x, noise=noise)
    one = traced_pass(model, sized((x,), (0,)), (0,), noisy=True)
    with torch.no_grad():
        samples = torch.cat([one.module(x, part)[0] for part in noise])
        p = lb.Prediction(samples, likelihood)
        wanted = {
            "mean": p.mean,
            "standard_deviation": p.variance.sqrt(),
            "aleatoric": p.aleatoric,
            "epistemic": p.epistemic,
            "quantiles": p.quantiles([0.05, 0.5, 0.95]),
        }
    assert list(said) == list(wanted)
    assert all(torch.allclose(said[name], wanted[name], atol=1e-4) for name in wanted)
    notes = running.get_modelmeta().custom_metadata_map
    assert json.loads(notes["quantiles"]) == [0.05, 0.5, 0.95]
    assert notes["samples"] == "3"


class Two(nn.Module):
    """Numbers with time first, and indices; double precision."""

    def __init__(self):
        super().__init__()
        self.steps, self.table, self.out = nn.Linear(3, 4), nn.Embedding(6, 4), nn.Linear(4, 2)

    def forward(self, x, index):
        return self.out(torch.tanh(self.steps(x)).mean(0) + self.table(index))


def test_two_inputs_in_double_precision_with_the_batch_second(tmp_path):
    model = lb.convert(Two().double(), lb.MeanField(0.2), lb.priors.Flat())
    x, index = torch.randn(5, 9, 3).double(), torch.randint(6, (9,))
    dims, file = (1, 0), tmp_path / "m.onnx"
    lb.export_onnx(model, (x, index), file, samples=2, noise="input", batch_dim=dims)
    one = traced_pass(model, sized((x, index), dims), dims, noisy=True)
    assert one.shared == 3 * 4  # steps share their weights, and examples do
    own, shared = torch.randn(2, 9, one.numbers).double(), torch.randn(2, one.shared).double()
    said, _ = run(file, x_0=x, x_1=index, noise=own, weight_noise=shared)
    with torch.no_grad():
        drawn = [one.module(x, index, a, b)[0] for a, b in zip(own, shared, strict=True)]
    assert said["probabilities"].dtype == torch.float64
    assert torch.allclose(said["probabilities"], lb.Prediction(torch.cat(drawn)).probs)


def test_an_ensemble_of_plain_networks_needs_one_pass(tmp_path):
    model = lb.DeepEnsemble.of(lambda: nn.Linear(3, 4), members=3)
    x = torch.randn(7, 3)
    said, running = run(lb.export_onnx(model, x[:1], tmp_path / "m.onnx"), x=x)
    assert [value.name for value in running.get_inputs()] == ["x"]
    p = lb.predict(model, x, samples=1)
    assert torch.allclose(said["probabilities"], p.probs, atol=1e-5)
    assert torch.allclose(said["mutual_information"], p.mutual_information, atol=1e-5)


class NoMean(lb.likelihoods.Likelihood):
    def distribution(self, outputs):
        return torch.distributions.Cauchy(outputs, 1.0)


def model():
    return lb.convert(nn.Linear(3, 2), lb.MeanField(), lb.priors.Flat())


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        ((model, torch.randn(2, 4)), {}, "4"),
        ((model, torch.randn(0, 3)), {}, "x has no examples; give one or more"),
        ((model, torch.randn(2, 3)), {"samples": 0}, "samples is 0; it must be at least 1"),
        ((model, torch.randn(2, 3)), {"noise": "none"}, "noise 'none' is unknown"),
        ((model, torch.randn(2, 3)), {"quantiles": [1.5]}, "quantile 1.5 does not lie"),
        ((model, torch.randn(2, 3)), {"likelihood": NoMean()}, "neither classes nor a mean"),
    ],
)
def test_what_cannot_be_exported_is_said(arguments, options, sentence, tmp_path):
    make, x = arguments
    with pytest.raises(ValueError, match=sentence) as caught:
        lb.export_onnx(make(), x, tmp_path / "m.onnx", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "m.onnx").exists()


def test_mc_dropout_has_no_mean_network(tmp_path):
    dropping = lb.mc_dropout(nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2)))
    with pytest.raises(ValueError, match="the mean network still draws noise, as MC dropout does"):
        lb.export_onnx(dropping, torch.randn(2, 3), tmp_path / "m.onnx", samples=None)


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_a_missing_package_is_named_with_its_command(package, monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else find(name)
    )
    with pytest.raises(ImportError, match=r"run: pip install 'leanbayes\[onnx\]'") as caught:
        lb.export_onnx(model(), torch.randn(2, 3), tmp_path / "m.onnx")
    assert caught.value.name == package
