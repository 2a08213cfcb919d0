"""The recipe of docs/beyond_one_process.md in two processes, and saving with transformers."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import leanbayes as lb

PAGE = Path(__file__).parents[2] / "docs" / "beyond_one_process.md"
AFTERWARDS = """
import json, sys
from torch.distributed import all_gather_object

def everywhere(value):
    found = [None] * accelerator.num_processes
    all_gather_object(found, value)
    return found

weights = torch.cat([p.detach().flatten() for p in model.parameters()])
batches = torch.cat([inputs[:, 0] for inputs, _ in loader]).tolist()
found = {
    "weights": everywhere(weights.tolist()),
    "noise": everywhere(model(x[:3]).flatten().tolist()),
    "rows": everywhere(batches),
    "accuracy": lb.predict(model, x, samples=20, seed=0).metrics(data.tensors[1])["accuracy"].value,
}
if accelerator.is_main_process:
    open("found.json", "w").write(json.dumps(found))
accelerator.end_training()
"""


def test_accelerate_trains_one_model_with_separate_noise_in_two_processes(tmp_path):
    pytest.importorskip("accelerate")
    block = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    (tmp_path / "train.py").write_text(block + AFTERWARDS, encoding="utf-8")
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    done = subprocess.run(
        [*launch, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (tmp_path / "found.json").exists(), done.stderr[-2000:]
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    first, second = found["weights"]
    assert first == second
    assert found["noise"][0] != found["noise"][1]
    seen = [set(rows) for rows in found["rows"]]
    assert seen[0].isdisjoint(seen[1])
    assert len(seen[0] | seen[1]) == 240
    assert found["accuracy"] > 0.9
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    loaded = lb.load(net, tmp_path / "classifier")
    saved = torch.cat([p.detach().flatten() for p in loaded.parameters()])
    torch.testing.assert_close(saved, torch.tensor(first))


@pytest.fixture
def bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, num_labels=2,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def test_a_saved_pretrained_model_is_read_back_or_refused_but_never_random(bert, tmp_path):
    model = lb.convert(bert)
    model.save_pretrained(tmp_path)
    with pytest.raises(OSError, match="no file named"):
        type(bert).from_pretrained(tmp_path)
    again = lb.load(type(bert)(bert.config), tmp_path / "leanbayes")
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_a_copy_saves_itself_and_a_plain_network_saves_as_before(bert, tmp_path):
    model = lb.convert(bert)
    other = lb.convert(bert)
    with torch.no_grad():
        other.classifier.posterior.get_parameter("loc").zero_()
    other.save_pretrained(tmp_path / "other")
    again = lb.load(type(bert)(bert.config), tmp_path / "other" / "leanbayes")
    assert not again.classifier.posterior.get_parameter("loc").any()
    assert model.classifier.posterior.get_parameter("loc").any()
    plain = lb.deterministic(model)
    plain.save_pretrained(tmp_path / "plain")
    loaded = type(bert).from_pretrained(tmp_path / "plain")
    assert torch.equal(loaded.classifier.weight, plain.classifier.weight)
    bert.save_pretrained(tmp_path / "given")
    assert type(bert).from_pretrained(tmp_path / "given").classifier.weight.any()
