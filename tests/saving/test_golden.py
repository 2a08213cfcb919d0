"""Files saved by earlier versions load and answer as they did."""

import json
from functools import partial

import pytest
import torch
from golden_models import FOLDER, MODELS, mean_output

import leanbayes as lb


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_answers_as_it_did(name):
    golden = MODELS[name]
    answers = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    model = lb.load(golden.network(), FOLDER / name)
    dtype = torch.long if golden.entries else golden.dtype
    inputs = [torch.tensor(x, dtype=dtype) for x in answers["inputs"]]
    tolerance = 1e-6 if golden.dtype == torch.float32 else 1e-12
    close = {"rtol": tolerance, "atol": tolerance}
    expected = torch.tensor(answers["mean"], dtype=golden.dtype)
    torch.testing.assert_close(mean_output(model, inputs), expected, **close)
    kl = torch.tensor(answers["kl"], dtype=golden.dtype)
    torch.testing.assert_close(lb.kl(model).detach(), kl, **close)
    specs = {n: layer.posterior.spec for n, layer in lb.extend.random_maps(model)}
    assert specs == {name: as_written(text) for name, text in answers["layers"].items()}


def as_written(text):
    """The spec that a text describes, by the names of the version that wrote it."""
    names = vars(lb.posteriors) | {
        "Dropout": lb.posteriors.VariationalDropout,
        "Rank1": partial(lb.Rank1, batch="tile"),
    }
    return eval(text, names)


def test_every_golden_file_is_tested_and_small():
    files = {path.stem: path for path in FOLDER.glob("*.safetensors")}
    assert files.keys() == MODELS.keys()
    assert max(path.stat().st_size for path in files.values()) < 10_000
