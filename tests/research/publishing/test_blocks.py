"""Blocks of pages, made from files of results, with prose left alone; the command."""

import json

import pytest
from typer.testing import CliRunner

from leanbayes.lab.files import write_json
from research.__main__ import app
from research.papers import PAPERS
from research.publishing.blocks import Blocks
from research.publishing.filled_claims import filled
from research.publishing.pages import refresh, refreshed
from research.publishing.results import compressed_runs, truncations

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

K_TIED = PAPERS["k_tied"]
PAGE = K_TIED.folder.with_suffix(".md")
CALIBRATED = {
    name: {"value": 0.05, "error": 0.004}
    for name in ("negative_elbo", "nll", "accuracy", "brier", "ece", "kl")
}


def test_the_command_prints_what_was_compressed(results):
    shown = CliRunner().invoke(app, ["table", "k_tied", "--runs", str(results)])
    assert shown.exit_code == 0, shown.output
    ours = shown.output.split("mnist-mlp-full after training")[1].split("after training")[0]
    assert "| truncated 2 | seed 1 |" in ours
    assert "| full | not run | – (0.835) |" in shown.output


@pytest.mark.parametrize(
    ("content", "sentence"),
    [('{"name": "mni', "is damaged"), ("[]", "is not what python")],
)
def test_a_damaged_file_is_named(content, sentence, tmp_path):
    path = tmp_path / "post_training" / "mnist-mlp-full.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"mnist-mlp-full\.json {sentence}"):
        compressed_runs(tmp_path)


def test_seeds_that_were_probed_at_several_steps_are_not_averaged(tmp_path):
    later = probed(2, 22.0, 2000.0)
    later["probe"] = {"5000": later["probe"]["1000"]}
    for run in (probed(1, 20.0, 1000.0), later):
        write_json(tmp_path / f"mnist-mlp-snr-k2-seed{run['seed']}.json", run)
    with pytest.raises(ValueError, match="probed at several steps"):
        Blocks(K_TIED, tmp_path).probes("mnist-mlp-snr-k2")


def test_blocks_are_made_anew_and_prose_is_left_alone(results, tmp_path):
    page = tmp_path / "k_tied.md"
    page.write_text(
        "# Words\n<!-- table: MLP on MNIST -->\nold\n<!-- end -->\nmore words\n"
        "<!-- rows: mnist-mlp-k1, mnist-mlp-full -->\n<!-- end -->\n"
        "<!-- post-training: mnist-mlp-full | ece -->\n<!-- end -->\n"
        "<!-- spectra: mnist-mlp-full | Shares. -->\n<!-- end -->\n"
        "<!-- heat-maps: mnist-mlp-full/dense1 | Standard deviations -->\n<!-- end -->\n"
        "<!-- curves: scale/model.dense1 of mnist-mlp-full | Mean σ. -->\n<!-- end -->\nlast\n",
        encoding="utf-8",
    )
    blocks = Blocks(K_TIED, results)
    refresh(page, blocks.makers(PAGE))
    text = page.read_text(encoding="utf-8")
    assert "old" not in text
    assert "more words" in text
    assert text.endswith("last\n")
    assert text.count("| MLP on MNIST, full | other, 2 seeds |") == 2
    assert text.count("| MLP on MNIST, k = 1 | not run |") == 2
    assert "| truncated 1 | seed 1 |" in text
    assert "(3.41)" in text
    assert "| kl | ece | parameters |" in text
    for name in ("spectra-mnist-mlp-full.png", "mnist-mlp-full-dense1-rank-2.png"):
        assert blocks.pictures[name].startswith(b"\x89PNG")
        assert f"](k_tied/{name})" in text
    again = page.read_bytes()
    refresh(page, blocks.makers(PAGE))
    assert page.read_bytes() == again


def test_pages_behind_the_first_have_their_pictures_beside_them(results):
    makers = Blocks(K_TIED, results).makers(K_TIED.folder / "truncation.md")
    assert "](spectra-mnist-mlp-full.png)" in makers["spectra"]("mnist-mlp-full | Shares.")


def test_sentences_take_their_numbers_from_results(results):
    blocks = Blocks(K_TIED, results)
    rows = json.loads((results / "post_training" / "mnist-mlp-full.json").read_text())["rows"]
    after = [rows[name]["metrics"]["nll"]["value"] for name in ("truncated 1", "full")]
    terms = "mnist-mlp-full/truncated 1 nll / mnist-mlp-full/full nll"
    assert filled(f"{{ratio: {terms}}}", blocks.cell) == f"{after[0] / after[1]:.2g}"
    assert filled(f"{{printed ratio: {terms}}}", blocks.cell) == "6.8"
    assert filled("{printed value: mnist-mlp-k2 nll}", blocks.cell) == "0.129"
    whole = filled("{value: mnist-mlp-full parameters}", blocks.cell)
    assert whole.replace(",", "") == str(rows["full"]["parameters"])
    share = filled("{percent: mnist-mlp-full/spectra dense1.scale}", blocks.cell)
    assert 50 < float(share.removesuffix("%")) <= 100


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("{value: mnist-mlp-k2 nll}", "'mnist-mlp-k2 nll' has no measured number"),
        ("{printed value: mnist-mlp-k2-decay nll}", "has no published number"),
        ("{value: mnist-mlp-k9 nll}", "recipe 'mnist-mlp-k9' is unknown"),
        ("{value: mnist-mlp-full/tied 9 nll}", "row 'tied 9' is unknown"),
        ("{value: mnist-mlp-full nil}", "metric 'nil' is unknown"),
        ("{valeu: mnist-mlp-full nll}", "kind of number 'valeu' is unknown; did you mean 'value'"),
    ],
)
def test_a_number_that_cannot_be_made_says_why(sentence, message, results):
    with pytest.raises(ValueError, match=message):
        filled(sentence, Blocks(K_TIED, results).cell)


def probed(seed, elbo, pooled, *, former=False):
    layers = {"pooled": pooled, "median": 9.0, "gradient": 8.0, "square": None}
    snr = {kind: {"dense2": ratio} for kind, ratio in layers.items()}
    measured = {"probe": {"layer": "dense2"}}
    if not former:
        measured = {"measurements": [{"kind": "probe", "layer": "dense2"}]}
    return {
        "name": "mnist-mlp-snr-k2",
        "seed": seed,
        "metrics": {},
        "recipe": {
            **measured,
            "published": {"values": {"snr_1000": 7500.0, "negative_elbo_1000": 42.74}},
        },
        "probe": {"1000": {"negative_elbo": elbo, "snr": snr}},
    }


@pytest.mark.parametrize("former", [False, True])
def test_probes_are_averaged_over_seeds_next_to_what_is_printed(tmp_path, former):
    for seed, elbo, pooled in ((1, 20.0, 1000.0), (2, 22.0, 2000.0)):
        name = f"mnist-mlp-snr-k2-seed{seed}.json"
        write_json(tmp_path / name, probed(seed, elbo, pooled, former=former))
    block = Blocks(K_TIED, tmp_path).probes("mnist-mlp-snr-k2, other")
    *_, line, missing = block.splitlines()
    assert line == "| mnist-mlp-snr-k2, 2 seeds | 1000 | 21 (42.74) | 1500 (7500) | 9 | 8 | – |"
    assert missing.startswith("| other | not run |")


def test_runs_of_several_lengths_are_not_in_one_picture(results, tmp_path):
    longer = json.loads((results / "mnist-mlp-full-seed1.json").read_text())
    longer["history"] = {name: column * 2 for name, column in longer["history"].items()}
    write_json(tmp_path / "mnist-mlp-full-seed1.json", longer)
    write_json(
        tmp_path / "mnist-mlp-k2-seed1.json",
        json.loads((results / "mnist-mlp-full-seed1.json").read_text()),
    )
    made = Blocks(K_TIED, tmp_path)
    with pytest.raises(ValueError, match="mnist-mlp-k2 has other epochs"):
        list(made.curves("train/nll of mnist-mlp-full, mnist-mlp-k2"))


def test_an_unknown_block_is_named():
    with pytest.raises(ValueError, match="block 'tabel' is unknown; did you mean 'table'"):
        refreshed("<!-- tabel: x -->\n<!-- end -->", {"table": str})


def test_every_truncated_row_has_a_recipe():
    for paper in PAPERS.values():
        for name in paper.truncated:
            assert (paper.recipes / f"{name}.yaml").is_file()


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ("table: MLP on MNST", "experiment 'MLP on MNST' is unknown; did you mean 'MLP on MNIST'"),
        (
            "post-training: mnist-mlp-ful",
            "'mnist-mlp-ful' is unknown.*'mnist-mlp-full'",
        ),
        ("heat-maps: mnist-mlp-full/dense9 | x", "layer 'dense9' is unknown"),
        ("spectra: nothing | x", "nothing.json does not exist; compress its run"),
        ("curves: train/nll of nothing | x", "has no run of nothing"),
        ("curves: train/nil of mnist-mlp-full | x", "column 'train/nil' is unknown.*'train/nll'"),
    ],
)
def test_a_block_that_cannot_be_made_says_why(block, sentence, results):
    made = Blocks(K_TIED, results).makers(PAGE)
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        refreshed(f"<!-- {block} -->\n<!-- end -->\n", made)


def test_a_page_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"k\.md does not exist"):
        refresh(tmp_path / "k.md", {})


def test_costs_of_a_step_are_those_of_the_benchmark(tmp_path):
    methods = {"mean field, weights": {"median": 3.0}, "k-tied 2, auto": {"median": 2.5}}
    path = tmp_path / "bench" / "step.json"
    write_json(path, {"branches": {"native": {"setups": {"mlp_1024": methods}}}})
    cell = Blocks(K_TIED, tmp_path / "k_tied").cell
    assert str(cell("step/mean field, weights mlp_1024")) == "3 (3.585)"
    assert str(cell("step/k-tied 2, auto mlp_1024")) == "2.5"
    with pytest.raises(ValueError, match="mlp_1024"):
        cell("step/k-tied 2, auto mlp_2048")
    path.write_text("[]")
    with pytest.raises(ValueError, match=r"is not a benchmark; run python -m research bench"):
        cell("step/k-tied 2, auto mlp_1024")
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"does not exist; run python -m research bench"):
        cell("step/k-tied 2, auto mlp_1024")


def test_a_sentence_of_a_page_has_its_numbers(tmp_path):
    methods = {"mean field, weights": {"median": 3.0}}
    write_json(
        tmp_path / "bench" / "step.json",
        {"branches": {"native": {"setups": {"mlp_1024": methods}}}},
    )
    made = Blocks(K_TIED, tmp_path / "k_tied").makers(tmp_path / "k.md")
    page = "<!-- says: It takes {value: step/mean field, weights mlp_1024}. -->\nold\n<!-- end -->"
    assert "\nIt takes 3.00.\n" in refreshed(page, made)


def test_metrics_that_are_not_published_are_shown_if_asked_for():
    compressed = {"rows": {"full": {"metrics": CALIBRATED, "parameters": 5}}, "seed": 1}
    (row,) = truncations(K_TIED, "cifar10-resnet-he-full", compressed, ["brier", "ece"])
    assert str(row.cells["ece"]) == "0.0500 ± 0.0040"
    assert row.cells["nll"].published == 0.6384
    (row,) = truncations(K_TIED, "mnist-mlp-full", compressed)
    assert "ece" not in row.cells


def test_the_command_says_what_is_wrong(tmp_path):
    unknown = CliRunner().invoke(app, ["table", "ktied"])
    assert "paper 'ktied' is unknown; did you mean 'k_tied'" in str(unknown.exception)
    missing = CliRunner().invoke(app, ["archive", str(tmp_path), "--out", str(tmp_path)])
    assert "is not a run folder" in str(missing.exception)
