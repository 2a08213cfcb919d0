"""The study of Bayesian LoRA: exact shortcuts, rows that differ, a page made of its numbers."""

import json

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")

from research.studies.lora import study as lora_study  # noqa: E402
from research.studies.lora.network import Upper, lower_activations  # noqa: E402
from research.studies.lora.page import PAGE, RESULTS, page_text, read_trials  # noqa: E402
from research.studies.lora.rows import ROWS, adapted, predicted, trained_tensors  # noqa: E402
from research.studies.lora.study import LoraSettings, study_lora  # noqa: E402
from research.studies.lora.texts import Sizes, Texts, docstrings, without_order  # noqa: E402

SIZES = Sizes(train=6, test=4, foreign=2)
SETTINGS = LoraSettings(SIZES, length=7, rank=2, epochs=1, batch=3, samples=4)


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=12,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=20,
        max_position_embeddings=9,
    )
    network = transformers.BertForSequenceClassification(config)
    return network.requires_grad_(False).eval()


def tokens(texts, length):
    rows = [[1 + len(text) % 7 + i for i in range(length)] for text in texts]
    mask = torch.ones(len(rows), length, dtype=torch.bool)
    mask[::2, -2:] = False
    return torch.tensor(rows), mask


@pytest.mark.parametrize("last", [1, 2])
def test_the_upper_part_gives_what_the_whole_network_gives(last):
    network, (indices, mask) = bert(), tokens(["a", "bb", "ccc"], 7)
    hidden = lower_activations(network, indices, mask, last)
    expected = network(input_ids=indices, attention_mask=mask.long()).logits
    torch.testing.assert_close(Upper(network, last)(hidden, mask), expected)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_trains_adapters_and_head_and_predicts(name):
    network, (indices, mask) = bert(), tokens(["a", "bb", "ccc"], 7)
    x = lower_activations(network, indices, mask, 2), mask
    row, upper = ROWS[name], Upper(network, 2)
    members = [adapted(upper, row, 2, seed) for seed in range(row.members)]
    trained = trained_tensors(members[0])
    assert all("lora" in n or "classifier" in n for n in trained)
    assert not any(p.requires_grad for p in upper.parameters())
    with torch.no_grad():  # products with factors that start at zero have no noise
        for member in members:
            for tensor in trained_tensors(member).values():
                tensor.add_(0.3 * torch.randn_like(tensor))
    expected = {"LoRA": 1, "ensemble of 3": 3}.get(name, 4)
    prediction = predicted(row, members, 4, seed=0)(x)
    assert prediction.samples.shape == (expected, 3, 2)
    if expected > 1:
        assert (prediction.samples.std(0) > 0).all()


@pytest.fixture
def small(monkeypatch, tmp_path):
    """The study on a random network and made-up texts."""
    reviews = [("x" * i, i % 2) for i in range(10)]
    texts = Texts(reviews[:6], reviews[6:], {"docstrings": ["d", "dd"], "shuffled": ["s", "ss"]})
    monkeypatch.setattr(lora_study, "pretrained", bert)
    monkeypatch.setattr(lora_study, "tokens", tokens)
    monkeypatch.setattr(lora_study, "read_texts", lambda sizes: texts)

    def run(**options):
        given = {"states": tmp_path / "states", "seeds": 1} | options
        return study_lora(SETTINGS, tmp_path / "out.json", **given)

    return run


def test_the_study_fills_a_file_goes_on_and_makes_a_page(small, tmp_path, monkeypatch):
    study = small()
    assert set(study["parts"]) == {f"{name}, seed 0" for name in ROWS}
    parts = {part["row"]: part for part in study["parts"].values()}
    assert parts["ensemble of 3"]["trained"] == 3 * parts["LoRA"]["trained"]
    for name in ("last layer", "mean field", "k-tied", "rank-1"):
        assert parts[name]["trained"] > parts["LoRA"]["trained"]
    assert {p.stem for p in (tmp_path / "states").iterdir()} == {
        *("plain-0", "plain-100", "plain-200", "last-0", "mean-field-0", "k-tied-0", "rank-1-0")
    }
    file = tmp_path / "out.json"
    stored = json.loads(file.read_text())
    del stored["parts"]["k-tied, seed 0"]
    file.write_text(json.dumps(stored))
    monkeypatch.setattr(lora_study._Bench, "_train", None)  # what was trained is read again
    again = small()
    same = ("accuracy", "nll", "ece", "trained", "auroc.docstrings.entropy")
    for name in same:
        assert again["parts"]["k-tied, seed 0"][name] == parts["k-tied"][name]
    page = page_text(again, read_trials())
    assert page.startswith("# Bayesian LoRA on a pretrained network\n\n- **Of the posteriors ")
    for name in ROWS:
        assert f"| {name} | " in page
    assert "all finished trials (LoRA 2, mean field 5, k-tied 1" in page


def test_adapters_of_other_settings_are_not_taken(small, tmp_path):
    small()
    (tmp_path / "out.json").unlink()
    other = LoraSettings(SIZES, length=7, rank=2, epochs=2, batch=3, samples=4)
    with pytest.raises(ValueError, match="was trained with other settings; delete it"):
        study_lora(other, tmp_path / "out.json", states=tmp_path / "states", seeds=1)


def test_a_page_of_an_unfinished_study_is_refused():
    with pytest.raises(ValueError, match="not finished; resume research studies lora"):
        page_text({"parts": {}, "settings": {}}, [])


def test_the_page_is_that_of_the_results():
    """Run ``python -m research page studies`` if this fails."""
    if not RESULTS.exists():
        pytest.skip("results/lora/minilm.json is not there; research studies lora makes it")
    study = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert PAGE.read_text(encoding="utf-8") == page_text(study, read_trials())


def test_foreign_texts():
    assert docstrings(5) == docstrings(5)
    assert len(set(docstrings(200))) == 200
    with pytest.raises(ValueError, match="ask for fewer OOD texts"):
        docstrings(10**6)
    (mixed,) = without_order(["one two three four five six"])
    assert sorted(mixed.split()) == sorted(["one", "two", "three", "four", "five", "six"])
