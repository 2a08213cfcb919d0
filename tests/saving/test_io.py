"""Saving and loading: exact, strict, whole or not at all, and without pickle."""

import ast
import json
import pathlib
import resource
import time
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from registry import ESTIMATORS, POSTERIORS, PRIORS, suitable_prior
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch_layers import LAYERS, POSTERIOR, PRIOR, Net, assert_unchanged, first, mlp, snapshot

import leanbayes as lb
from leanbayes.errors import LoadError
from leanbayes.ops import Linear
from leanbayes.saving import header, io

SOURCE = pathlib.Path(lb.__file__).parent


def shaken(model: nn.Module) -> nn.Module:
    """The model with numbers that no initialization would give."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def assert_same_model(a: nn.Module, b: nn.Module) -> None:
    maps_a, maps_b = dict(lb.extend.random_maps(a)), dict(lb.extend.random_maps(b))
    assert list(maps_a) == list(maps_b)
    for name, layer in maps_a.items():
        other = maps_b[name]
        assert layer.posterior.spec == other.posterior.spec, name
        assert layer.prior.spec == other.prior.spec, name
        assert layer.estimator is other.estimator, name
        assert layer.op == other.op, name
    assert a.state_dict().keys() == b.state_dict().keys()
    assert all(torch.equal(v, b.state_dict()[n]) for n, v in a.state_dict().items())


def round_trip(model: nn.Module, net: nn.Module, folder: pathlib.Path) -> nn.Module:
    path = lb.save(model, folder / "m")
    assert path == folder / "m.safetensors"
    assert [p.name for p in folder.iterdir()] == ["m.safetensors"]
    again = lb.load(net, folder / "m")
    assert_same_model(again, model)
    return again


@pytest.mark.parametrize("name", POSTERIORS)
def test_every_posterior(name, tmp_path):
    recipe = POSTERIORS[name]
    model = shaken(lb.convert(mlp(), recipe, suitable_prior(recipe)))
    again = round_trip(model, mlp(), tmp_path)
    x = torch.randn(6, 3, dtype=torch.float64)
    torch.manual_seed(0)
    y, kl = model(x), lb.kl(model)
    torch.manual_seed(0)
    assert torch.equal(again(x), y)
    assert torch.equal(lb.kl(again), kl)


@pytest.mark.parametrize("name", PRIORS)
def test_every_prior(name, tmp_path):
    prior = PRIORS[name]
    positive = isinstance(prior, lb.priors.HalfCauchy | lb.priors.LogNormal)
    posterior = lb.Rank1(2, factors="lognormal") if positive else POSTERIOR
    model = shaken(lb.convert(mlp(), posterior, prior))
    again = round_trip(model, mlp(), tmp_path)
    for seed in range(2):
        torch.manual_seed(seed)
        kl = lb.kl(model)
        torch.manual_seed(seed)
        assert torch.equal(lb.kl(again), kl)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator(name, tmp_path):
    overrides = {"2": {"estimator": ESTIMATORS[name]}}
    round_trip(lb.convert(mlp(), POSTERIOR, PRIOR, overrides=overrides), mlp(), tmp_path)


@pytest.mark.parametrize("bias", [None, lb.MeanField(0.3)], ids=["plain_bias", "random_bias"])
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer(name, bias, tmp_path):
    net, x = LAYERS[name].module(), LAYERS[name].input()
    bias_prior = None if bias is None else lb.priors.Laplace(2.0)
    model = shaken(lb.convert(net, lb.KTied(2), PRIOR, bias=bias, bias_prior=bias_prior))
    again = round_trip(model, LAYERS[name].module(), tmp_path)
    with lb.using(model, lb.estimators.mean), lb.using(again, lb.estimators.mean):
        assert torch.equal(first(again(*x)), first(model(*x)))


def test_a_prior_shared_by_the_model_stays_shared(tmp_path):
    model = shaken(
        lb.convert(mlp(), POSTERIOR, lb.priors.Normal(0.5, learn="model"), bias=POSTERIOR)
    )
    again = round_trip(model, mlp(), tmp_path)
    assert len({id(layer.prior) for _, layer in lb.extend.random_maps(again)}) == 1
    assert sum(n.endswith("prior.scale") for n in load_file(tmp_path / "m.safetensors")) == 1


def test_shared_layers_and_mixed_choices(tmp_path):
    overrides = {
        "stem": {"posterior": lb.posteriors.MatrixNormal(rank=1), "prior": lb.priors.ARD()},
        "body.**": {
            "posterior": lb.posteriors.VariationalDropout("weight"),
            "prior": lb.priors.LogUniform(),
        },
        "head": {"bias": lb.MeanField(), "estimator": lb.estimators.weights},
    }
    model = shaken(
        lb.convert(Net(), lb.KTied(3), lb.priors.He(), exclude=["again"], overrides=overrides)
    )
    assert isinstance(round_trip(model, Net(), tmp_path).again, nn.Linear)
    model = shaken(lb.convert(Net(), lb.KTied(3), lb.priors.He()))
    again = round_trip(model, Net(), tmp_path)
    assert again.again is again.stem_twin


def test_single_maps_that_differ_from_their_layer(tmp_path):
    def other(name, learned):
        return lb.MeanField(0.2)(learned().mean.detach(), Linear()) if "hh" in name else learned

    model = lb.convert(nn.LSTM(3, 4), lb.KTied(2), PRIOR, bias=POSTERIOR)
    changed = shaken(lb.extend.map_posteriors(model, other))
    assert len({m.posterior.spec for _, m in lb.extend.random_maps(changed)}) == 3
    round_trip(changed, nn.LSTM(3, 4), tmp_path)


def test_plain_parameters_and_buffers_are_saved_too(tmp_path):
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    model = shaken(lb.convert(net(), POSTERIOR, PRIOR, include=["0"]))
    model(torch.randn(5, 3))
    again = round_trip(model, net(), tmp_path)
    assert torch.equal(again[1].running_mean, model[1].running_mean)


def test_the_network_that_load_is_given_stays_as_it_was(tmp_path):
    lb.save(lb.convert(mlp(), POSTERIOR, PRIOR), tmp_path / "m")
    net = mlp()
    before = snapshot(net)
    lb.load(net, tmp_path / "m")
    assert_unchanged(net, before)


@pytest.mark.parametrize("name", ["m", "m.safetensors", "m.v2"])
def test_the_suffix_is_added_where_it_is_missing(name, tmp_path):
    path = lb.save(lb.convert(mlp(), POSTERIOR, PRIOR), str(tmp_path / name))
    assert path.name == f"{name.removesuffix('.safetensors')}.safetensors"
    assert lb.load(mlp(), str(tmp_path / name))


def test_the_file_is_plain_safetensors_with_a_format_version(tmp_path):
    model = lb.convert(mlp(), POSTERIOR, PRIOR)
    path = lb.save(model, tmp_path / "m")
    assert load_file(path).keys() == model.state_dict().keys()
    header = path.read_bytes()
    length = int.from_bytes(header[:8], "little")
    recipe = json.loads(json.loads(header[8 : 8 + length])["__metadata__"]["leanbayes"])
    assert recipe["format"] == io.FORMAT
    assert set(recipe["layers"]) == {"0", "2"}


def _truncate(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def _cut_header(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def _empty(path: pathlib.Path) -> None:
    path.write_bytes(b"")


def _text(path: pathlib.Path) -> None:
    path.write_text("weights?")


def _pickle(path: pathlib.Path) -> None:
    torch.save(mlp().state_dict(), path)


def _foreign(path: pathlib.Path) -> None:
    save_file(mlp().state_dict(), path)


def _rewrite(path: pathlib.Path, recipe: str) -> None:
    save_file(load_file(path), path, metadata={"leanbayes": recipe})


def _newer(path: pathlib.Path) -> None:
    _rewrite(path, json.dumps({"format": io.ADAPTER_FORMAT + 1, "layers": {}}))


def _broken_json(path: pathlib.Path) -> None:
    _rewrite(path, '{"format": 1')


def _unknown_posterior(path: pathlib.Path) -> None:
    model = lb.convert(mlp(), POSTERIOR, PRIOR)
    layers = io._describe(model)
    layers["0"][""]["posterior"]["kind"] = "KTyed"
    _rewrite(path, json.dumps({"format": 1, "layers": layers}))


def _unknown_estimator(path: pathlib.Path) -> None:
    layers = io._describe(lb.convert(mlp(), POSTERIOR, PRIOR))
    layers["0"][""]["estimator"] = "locall"
    _rewrite(path, json.dumps({"format": 1, "layers": layers}))


DAMAGE = {
    "truncated": (_truncate, "damaged"),
    "cut header": (_cut_header, "damaged"),
    "empty": (_empty, "damaged"),
    "text": (_text, "damaged"),
    "pickle": (_pickle, "damaged"),
    "foreign": (_foreign, "not written by leanbayes"),
    "newer format": (_newer, "upgrade leanbayes"),
    "broken recipe": (_broken_json, "m.safetensors"),
    "unknown posterior": (_unknown_posterior, "did you mean 'KTied'"),
    "unknown estimator": (_unknown_estimator, "did you mean 'local'"),
    "missing": (pathlib.Path.unlink, "does not exist"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_bad_file_gives_one_sentence_and_changes_nothing(case, tmp_path):
    damage, phrase = DAMAGE[case]
    damage(lb.save(lb.convert(mlp(), POSTERIOR, PRIOR), tmp_path / "m"))
    net = mlp()
    before = snapshot(net)
    kind = FileNotFoundError if case == "missing" else ValueError
    with pytest.raises(kind) as caught:
        lb.load(net, tmp_path / "m")
    assert phrase in str(caught.value)
    assert "\n" not in str(caught.value)
    assert_unchanged(net, before)


def _described(path: pathlib.Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["leanbayes"])


def _unsealed(path: pathlib.Path, **changes: Any) -> None:
    """The file with changes in its description and no checksum, as the first versions wrote it."""
    description = _described(path) | changes
    description.pop("checksum", None)
    _rewrite(path, json.dumps(description))


@pytest.mark.tried(
    "Files",
    what="a file whose description asks for rank 300,000, or for 10^30 members",
    holds="refused in milliseconds: no more is made than the file and the network hold",
)
@pytest.mark.parametrize(
    ("posterior", "option", "count"),
    [
        (lb.KTied(2), "rank", 300_000),
        (lb.posteriors.MatrixNormal(rank=2), "rank", 300_000),
        (lb.Rank1(2), "members", 10**30),
        (lb.KTied(2), "rank", 3),
    ],
)
def test_a_description_that_asks_for_too_much(posterior, option, count, tmp_path):
    net = nn.Linear(500, 50)
    path = lb.save(lb.convert(net, posterior, lb.priors.Normal(0.1, loc=1.0)), tmp_path / "m")
    layers = _described(path)["layers"]
    layers[""][""]["posterior"][option] = count
    _unsealed(path, layers=layers)
    start = time.process_time()
    with pytest.raises(LoadError, match=r"elements are requested|another architecture"):
        lb.load(net, path)
    assert time.process_time() - start < 0.5


@pytest.mark.tried(
    "Files",
    what="a file whose F32 numbers are relabeled I32 or stored in another precision",
    holds="refused: the sentence names the tensor and both dtypes",
)
def test_another_dtype_is_refused(tmp_path):
    net = nn.Linear(3, 2)
    path = lb.save(lb.convert(net, POSTERIOR, PRIOR), tmp_path / "m")
    with pytest.raises(LoadError, match=r"F32 in the file and F64 in the given network.*net\.to"):
        lb.load(nn.Linear(3, 2).double(), path)
    _unsealed(path)
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"I32"'))
    with pytest.raises(LoadError, match="I32 in the file and F32"):
        lb.load(net, path)


@pytest.mark.tried(
    "Files",
    what="a single flipped bit anywhere in a saved model",
    holds="refused: every byte counts in the checksum; files without one load as before",
)
def test_a_flipped_bit_is_noticed(tmp_path):
    path = lb.save(lb.convert(mlp(), POSTERIOR, PRIOR), tmp_path / "m")
    content = path.read_bytes()
    for place in range(0, len(content), 7):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(LoadError, match=r"m\.safetensors"):
            lb.load(mlp(), path)
    path.write_bytes(content)
    _unsealed(path)
    assert lb.load(mlp(), path)


def test_the_same_model_is_saved_in_the_same_bytes(tmp_path):
    model = lb.convert(mlp(), POSTERIOR, PRIOR)
    assert (
        lb.save(model, tmp_path / "a").read_bytes() == lb.save(model, tmp_path / "b").read_bytes()
    )


def test_two_names_of_one_layer_cannot_be_two_layers(tmp_path):
    path = lb.save(lb.convert(Net(), lb.KTied(3), lb.priors.He()), tmp_path / "m")
    layers = _described(path)["layers"]
    layers["again"][""]["posterior"]["scale"] = 0.5
    _unsealed(path, layers=layers)
    with pytest.raises(LoadError, match="'again' and 'stem_twin' are one layer"):
        lb.load(Net(), path)


def test_a_header_beyond_the_limit_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(header, "LIMIT", 500)
    with pytest.raises(ValueError, match="500 are the limit"):
        lb.save(lb.convert(mlp(), POSTERIOR, PRIOR), tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_a_likelihood_that_is_none(tmp_path):
    model = lb.convert(nn.Linear(3, 1), POSTERIOR, PRIOR)
    path = lb.save(model, tmp_path / "m", lb.likelihoods.Gaussian(0.5, "learned"))
    for bad in ([], {}, {"kind": "gausian"}, {"kind": "gaussian", "scale": 10**400}, None):
        _unsealed(path, likelihood=bad)
        with pytest.raises(LoadError, match="likelihood is not one of this version"):
            lb.saving.load_likelihood(path)


def test_files_with_the_earlier_spelling_of_learned_load(tmp_path):
    model = lb.convert(nn.Linear(3, 1), POSTERIOR, PRIOR)
    path = lb.save(model, tmp_path / "m", lb.likelihoods.Gaussian(0.5, "learned"))
    _unsealed(path, likelihood={"kind": "gaussian", "scale": 0.5, "noise": "learnt"})
    loaded = lb.saving.load_likelihood(path)
    assert loaded.noise == "learned"
    assert float(loaded.log_scale.detach().exp()) == pytest.approx(0.5)


OTHER_ARCHITECTURES = {
    "narrower": nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)),
    "shorter": nn.Sequential(nn.Linear(3, 4)),
    "longer": nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.Linear(2, 2)),
    "no bias": nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2)),
    "other layer": nn.Sequential(nn.Conv1d(3, 4, 1), nn.ReLU(), nn.Linear(4, 2)),
    "none": nn.Sequential(nn.ReLU()),
}


@pytest.mark.parametrize("case", OTHER_ARCHITECTURES)
def test_another_architecture_gives_one_sentence_and_changes_nothing(case, tmp_path):
    lb.save(lb.convert(mlp(), lb.KTied(2), PRIOR), tmp_path / "m")
    net = OTHER_ARCHITECTURES[case]
    before = snapshot(net)
    with pytest.raises(ValueError, match="saved from another architecture") as caught:
        lb.load(net, tmp_path / "m")
    assert "\n" not in str(caught.value)
    assert_unchanged(net, before)


@contextmanager
def largest_file(size: int):
    """Files cannot grow beyond a size: what a full disk does to a writer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_failing_save_leaves_the_old_file_whole(tmp_path):
    old = lb.convert(mlp(), POSTERIOR, PRIOR)
    lb.save(old, tmp_path / "m")
    too_large = lb.convert(nn.Linear(100, 100), POSTERIOR, PRIOR)
    with largest_file(10_000), pytest.raises((OSError, SafetensorError)):
        lb.save(too_large, tmp_path / "m")
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]
    assert_same_model(lb.load(mlp(), tmp_path / "m"), old)


def test_what_a_file_cannot_hold_is_said(tmp_path):
    def own(q, op, usage):
        return lb.estimators.mean(q, op, usage)

    with pytest.raises(ValueError, match=r"save under using\(model, lb\.estimators\.auto\)"):
        lb.save(lb.convert(mlp(), POSTERIOR, PRIOR, own), tmp_path / "m")
    with pytest.raises(ValueError, match=r"call lb\.convert"):
        lb.save(mlp(), tmp_path / "m")
    model = lb.convert(mlp(), POSTERIOR, PRIOR)
    unnamed = lb.extend.map_posteriors(
        model,
        lambda name, learned: lb.extend.Learned(
            lb.distributions.LocationScale, loc=learned().mean, scale=learned().mean.exp()
        ),
    )
    with pytest.raises(ValueError, match="without a spec"):
        lb.save(unnamed, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named(tmp_path):
    folder = tmp_path / "not" / "there"
    with pytest.raises(FileNotFoundError, match="not/there"):
        lb.save(lb.convert(mlp(), POSTERIOR, PRIOR), folder / "m")


CHECKPOINTS = ("launch.py", "fit.py")
"""Write checkpoints in torch's format; they are read with ``weights_only``."""


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE))
)
def test_no_pickle_anywhere(path):
    tree = ast.parse(path.read_text())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [*(alias.name for alias in node.names), getattr(node, "module", None) or ""]
    }
    assert not imported & {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "torch.save"):
            if ast.unparse(node.func) == "torch.save":
                assert path.name in CHECKPOINTS
                continue
            keywords = {k.arg: ast.unparse(k.value) for k in node.keywords}
            assert keywords.get("weights_only") == "True"
