"""ONNX files say what torch says, from the same noise, for batches of any size."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.export.tracing import sized, traced_pass

np = pytest.importorskip("numpy")
pytest.importorskip("onnxscript")
ort = pytest.importorskip("onnxruntime")


class Sequence(nn.Module):
    """An LSTM, of which the last output counts."""

    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1])


def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(24, 3),
    )  # fmt: skip


def transformer():
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.Sequential(block, nn.Flatten(), nn.Linear(48, 3))


NETWORKS = {
    "mlp": (mlp, (4,)),
    "cnn": (cnn, (1, 8, 8)),
    "lstm": (Sequence, (7, 4)),
    "transformer": (transformer, (6, 8)),
}
FAMILIES = {
    "mean field": lb.MeanField(0.2),
    "k-tied": lb.KTied(2, scale=0.2),
    "matrix normal": lb.posteriors.MatrixNormal(scale=0.2),
    "variance": lb.posteriors.ZeroMean(),
    "low rank": lb.posteriors.LowRank(scale=0.2),
    "rank-1": lb.Rank1(members=3, rate=0.1),
}


def converted(network, family, **options):
    make, shape = NETWORKS[network]
    model = lb.convert(make(), FAMILIES[family], lb.priors.Flat(), **options)
    return model, torch.randn(5, *shape)


def session(path):
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"])


def answers(running, batch, **inputs):
    """What a session says of random inputs of a batch size, with these inputs, and of the rest."""
    given = {name: value.numpy() for name, value in inputs.items()}
    for value in running.get_inputs():
        shape = [batch if isinstance(size, str) else size for size in value.shape]
        given.setdefault(value.name, torch.randn(shape).numpy())
    said = running.run(None, given)
    names = [value.name for value in running.get_outputs()]
    return {n: torch.tensor(v) for n, v in zip(names, said, strict=True)}, given


def by_torch(one, x, given, likelihood=None):
    """The prediction of the very samples that this noise makes, pass after pass."""
    noise = [torch.tensor(given[name]) for name in ("noise", "weight_noise") if name in given]
    count = len(noise[0]) if noise else 1
    with torch.no_grad():
        drawn = [one.module(x, *(part[i] for part in noise))[0] for i in range(count)]
    return lb.Prediction(torch.cat(drawn), likelihood or lb.likelihoods.Categorical())


def assert_parity(said, prediction):
    wanted = {
        "probabilities": prediction.probs,
        "entropy": prediction.entropy,
        "mutual_information": prediction.mutual_information,
    }
    assert list(said) == list(wanted)
    for name, value in wanted.items():
        assert said[name].shape == value.shape, name
        assert torch.allclose(said[name], value, atol=1e-4), name


PAIRS = [
    ("mlp", "low rank"), ("mlp", "rank-1"), ("cnn", "k-tied"), ("cnn", "rank-1"),
    ("lstm", "mean field"), ("transformer", "matrix normal"), ("transformer", "variance"),
]  # fmt: skip


@pytest.mark.parametrize(("network", "family"), PAIRS)
def test_samples_are_those_of_torch(network, family, tmp_path):
    model, x = converted(network, family)
    file = lb.export_onnx(model, x, tmp_path / "m.onnx", samples=4, noise="input")
    one = traced_pass(model, sized((x,), (0,)), (0,), noisy=True)
    for batch in (1, 9):
        said, given = answers(session(file), batch)
        assert_parity(said, by_torch(one, torch.tensor(given["x"]), given))
        assert said["mutual_information"].max() > 1e-4


def test_the_mean_network_averages_the_means_of_members(tmp_path):
    model, x = converted("lstm", "rank-1")
    said, given = answers(session(lb.export_onnx(model, x, tmp_path / "m.onnx", samples=None)), 3)
    assert list(given) == ["x"]
    members = [lb.deterministic(model, member=i) for i in range(3)]
    with torch.no_grad():
        outputs = torch.stack([member(torch.tensor(given["x"])) for member in members])
    assert_parity(said, lb.Prediction(outputs))


@pytest.fixture(scope="module")
def drawing(tmp_path_factory):
    """A model, its file that draws noise in the graph, and a session of it."""
    torch.manual_seed(0)
    model, x = converted("mlp", "mean field")
    file = lb.export_onnx(model, x, tmp_path_factory.mktemp("onnx") / "m.onnx", samples=400)
    return model, file, session(file)


def test_noise_in_the_graph_has_the_law_of_predictions(drawing):
    model, _, running = drawing
    x = torch.randn(6, 4)
    said = [answers(running, 6, x=x)[0] for _ in range(10)]
    assert not torch.equal(said[0]["probabilities"], said[1]["probabilities"])
    prediction = lb.predict(model, x, samples=4000)
    probs = prediction.sample_log_probs.exp()
    means = torch.stack([each["probabilities"] for each in said]).mean(0)
    error = probs.std(0) * (2 / 4000) ** 0.5
    assert ((means - prediction.probs).abs() / error).max() < lb.testing.threshold(18)
    spread = torch.stack([each["mutual_information"] for each in said]).mean(0)
    assert torch.allclose(spread, prediction.mutual_information, rtol=0.15)


def test_two_examples_have_noise_of_their_own(drawing):
    """The same input twice: with shared noise both rows would be equal."""
    x = torch.randn(1, 4).expand(2, 4).contiguous()
    first, second = answers(drawing[2], 2, x=x)[0]["probabilities"]
    assert not torch.equal(first, second)


WITHOUT_TORCH = """
import sys
import numpy as np
import onnxruntime as ort

running = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
x = np.random.default_rng(0).standard_normal((5, 4), dtype=np.float32)
probabilities, entropy, information = running.run(None, {"x": x})
assert probabilities.shape == (5, 3) and np.allclose(probabilities.sum(1), 1, atol=1e-5)
assert (information > 0).all() and (information < entropy).all()
assert running.get_modelmeta().custom_metadata_map["samples"] == "400"
assert not {"torch", "leanbayes", "onnx"} & {name.partition(".")[0] for name in sys.modules}
print("served")
"""


def test_deployment_needs_no_torch(drawing):
    command = [sys.executable, "-I", "-c", WITHOUT_TORCH, str(drawing[1])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "served\n", done.stderr
