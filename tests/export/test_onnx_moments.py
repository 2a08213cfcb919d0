"""A one-pass network as an ONNX file: what it returns is what torch returns."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.distributions.gauss_hermite import quadrature

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

PRIOR = lb.priors.Normal(1.0)
CNN = (
    *(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(3, 4, 3), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(9, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.layer(self.tokens(x)).mean(1))


MODELS = {
    "rank-1": (nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), lb.Rank1(2), (4,)),
    "cnn": (nn.Sequential(*CNN), lb.KTied(2, 0.1), (1, 8, 8)),
    "transformer": (Encoder(), lb.KTied(2, 0.1), None),
}


def outputs(path, x):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return dict(
        zip(
            (o.name for o in session.get_outputs()),
            session.run(None, {"x": x.numpy()}),
            strict=True,
        )
    )


@pytest.mark.parametrize("name", MODELS)
def test_classes_are_those_of_torch(name, tmp_path):
    torch.manual_seed(0)
    net, posterior, shape = MODELS[name]
    model = lb.convert(net, posterior, None if name == "rank-1" else PRIOR)
    x = torch.randint(9, (5, 6)) if shape is None else torch.randn(5, *shape)
    path = lb.export_onnx(model, x[:1], tmp_path / "m.onnx", method="moments", samples=16)
    found = outputs(path, x)
    p = lb.predict(model, x, method="moments", samples=16)
    assert torch.allclose(torch.from_numpy(found["probabilities"]), p.probs, atol=1e-5)
    assert torch.allclose(torch.from_numpy(found["entropy"]), p.entropy, atol=1e-4)
    assert all(
        (a == b).all() for a, b in zip(found.values(), outputs(path, x).values(), strict=True)
    )
    kinds = {node.op_type for node in pytest.importorskip("onnx").load(path).graph.node}
    assert not {kind for kind in kinds if "Random" in kind or kind == "Scan"}


def test_numbers_are_those_of_torch(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    model = lb.convert(net, lb.MeanField(0.3), PRIOR)
    likelihood = lb.likelihoods.Gaussian(0.5, "predicted")
    x = torch.randn(7, 4)
    options = {"method": "moments", "likelihood": likelihood, "samples": 16}
    quadrature.cache_clear()  # as in a process that has predicted nothing yet
    found = outputs(lb.export_onnx(model, x[:2], tmp_path / "m.onnx", **options), x)
    p = lb.predict(model, x, **options)
    assert torch.allclose(torch.from_numpy(found["mean"]), p.mean, atol=1e-5)
    assert torch.allclose(torch.from_numpy(found["standard_deviation"]), p.std, atol=1e-5)
    levels = p.quantiles([0.05, 0.5, 0.95])
    assert torch.allclose(torch.from_numpy(found["quantiles"]), levels, atol=1e-4)


def test_a_part_without_a_rule_is_refused(tmp_path):
    net = nn.Sequential(nn.Linear(4, 8), nn.Softmin(-1))
    model = lb.convert(net, lb.KTied(), PRIOR)
    with pytest.raises(ValueError, match="softmin"):
        lb.export_onnx(model, torch.randn(1, 4), tmp_path / "m.onnx", method="moments")


def test_the_traced_pass_can_be_compiled():
    """``torch.compile`` of the exported program: moments without Python in between."""
    torch.manual_seed(0)
    from leanbayes.prediction.inputs import Inputs
    from leanbayes.prediction.one_pass.propagate import moments_of

    class Moments(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            y = moments_of(self.model, Inputs((x,), (0,)))
            return y.loc, y.variance

    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    model, x = lb.convert(net, lb.KTied(2, 0.3), PRIOR), torch.randn(5, 4)
    with torch.no_grad():
        program = torch.export.export(Moments(model), (x,), strict=False).module()
        loc, variance = torch.compile(program, backend="aot_eager")(x)
    p = lb.predict(model, x, method="moments")
    assert torch.allclose(loc, p.moments.loc, atol=1e-6)
    assert torch.allclose(variance, p.moments.variance, rtol=1e-4)
