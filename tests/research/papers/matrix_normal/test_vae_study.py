"""Table 3 of the matrix-normal paper: a tiny version of the study, from end to end."""

import json

import pytest
import torch
from typer.testing import CliRunner

from leanbayes.lab.data import Dataset, Examples
from leanbayes.lab.data.dataset import Scaling
from leanbayes.lab.files import write_json
from research.__main__ import app
from research.papers import PAPERS
from research.papers.matrix_normal.vae import judge, train
from research.papers.matrix_normal.vae.blocks import PUBLISHED
from research.papers.matrix_normal.vae.folder import VaeFolder
from research.papers.matrix_normal.vae.judge import file_name, judge_vae, judged, unpacked
from research.papers.matrix_normal.vae.latent_use import study_latent_use
from research.papers.matrix_normal.vae.settings import VaeSettings
from research.publishing.blocks import Blocks
from research.publishing.filled_claims import filled

pytest.importorskip("matplotlib")
torch.set_num_threads(1)


def images(count, seed):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(count, 1, 4, 5, generator=generator) < torch.linspace(0.1, 0.9, 20).view(
        4, 5
    )
    return Examples(drawn.to(torch.uint8), None, Scaling())


def noise(count):
    """Patterns that differ in every pixel, so that what a weight reads moves."""
    return Examples(torch.randint(2, (count, 1, 4, 5), dtype=torch.uint8), None, Scaling())


@pytest.fixture(autouse=True)
def patterns(monkeypatch):
    """Random patterns of 4 × 5 pixels stand for binarized MNIST."""
    dataset = Dataset("patterns", "density", images(60, 1), images(24, 2), validation=images(30, 3))
    for module in (train, judge):
        monkeypatch.setattr(module, "load_images", lambda settings: dataset)
    return dataset


@pytest.fixture
def run(tmp_path):
    settings = VaeSettings("mn", (3, 2), epochs=2, annealing=1, hidden=(6,), batch_size=20)
    train.train_vae(settings, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.checklist("MN12")
def test_a_study_holds_all_that_it_depends_on_and_a_bound_below_the_likelihood(
    run, tmp_path, patterns
):
    study = judge_vae(run, tmp_path, samples=40)
    file = tmp_path / "6-mn-3x2-seed42.json"
    assert json.loads(file.read_text()) == study
    assert (study["settings"]["samples"], study["settings"]["images"]) == (40, 24)
    assert study["parts"]["training"]["settings"] == VaeFolder(run).settings.to_json()
    assert {"versions", "threads", "revision", "seed"} <= study["parts"]["images from 0"].keys()
    result = judged(study)
    assert result.images == 24
    assert result.bound.value < result.score.value < 0
    bound = train.evidence_bound(VaeFolder(run).load(), patterns.test, draws=200).bound
    assert result.bound.value == pytest.approx(bound, abs=0.5)
    pictures = study["parts"]["pictures"]
    assert unpacked(pictures["samples"]).shape == (5, 10, 20)
    walk, back = (unpacked(pictures[name]) for name in ("walk", "reconstructions"))
    assert walk.shape == (3, 10, 20)
    assert set(back[0].unique().tolist()) == {0.0, 1.0}


def test_a_stopped_study_goes_on_and_ends_with_the_same_numbers(run, tmp_path, monkeypatch):
    monkeypatch.setattr(judge, "_PART", 10)
    whole = judge_vae(run, tmp_path / "whole", samples=6)

    def stop(so_far):
        if so_far.images == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge_vae(run, tmp_path / "cut", samples=6, tell=stop)
    assert judged(judge_vae(run, tmp_path / "cut", samples=6)) == judged(whole)
    with pytest.raises(ValueError, match="another samples: it was 6 and is now 7"):
        judge_vae(run, tmp_path / "cut", samples=7)


def test_some_images_are_a_random_part_and_the_result_says_how_many(run, tmp_path):
    study = judge_vae(run, tmp_path, samples=3, images=7)
    assert judged(study).images == study["settings"]["images"] == 7


def test_what_is_not_trained_or_damaged_is_told(run, tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no trained auto-encoder; train it with"):
        judge_vae(tmp_path / "nothing", tmp_path)
    (run / "model.pt").write_bytes((run / "model.pt").read_bytes()[:200])
    with pytest.raises(ValueError, match=r"model\.pt is damaged"):
        judge_vae(run, tmp_path)


def study(name, likelihood, bound, **settings):
    encoder = name.split("-")[1]
    trained = {
        "settings": {"encoder": encoder, "latent": [40], "seed": 42, "epochs": 5, **settings},
        "encoder_outputs": 80,
        "epochs": 5,
        "best_epoch": 4,
        "curve": {
            "epoch": [0, 1, 2],
            "kl_weight": [0.1, 1.0, 1.0],
            "validation_bound": [-500.0, -101.0, -100.0],
        },
    }
    part = {"score": [likelihood, 0.3], "bound": [bound, 0.3], "sampling_error": 0.01}
    part |= {"effective": 9.0, "images": 100, "samples": 50}
    blank = judge._packed(torch.zeros(2, 3, 20))
    pictures = {"shape": [4, 5], "samples": blank, "walk": blank, "reconstructions": blank}
    parts = {"training": trained, "pictures": pictures, "images from 0": part}
    return {"settings": {}, "parts": parts}


def blocks_of(folder):
    paper = PAPERS["matrix_normal"]
    blocks = Blocks(paper, folder)
    return blocks, blocks.makers(paper.folder / "vae.md")


@pytest.mark.checklist("MN12")
def test_the_table_stands_beside_the_printed_one_and_says_the_order(tmp_path):
    values = {"40-diag": (-90.0, -95.0), "40-mn-20x2": (-89.5, -94.0), "40-mv": (-88.0, -93.5)}
    for name, (likelihood, bound) in values.items():
        write_json(tmp_path / "vae" / f"{name}-seed42.json", study(name, likelihood, bound))
    blocks, makers = blocks_of(tmp_path)
    lines = makers["vae"]("all").splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 2 + len(PUBLISHED)
    assert "papers vae --encoder mn --latent 40 --epochs 5 --out runs/vae-mn-40-42" in "".join(
        lines
    )
    assert lines[3].startswith("| 40 | MN 20 × 2 | 80 | −89.50 (−88.80) | −94.00 (−94.03) | 0.01 |")
    assert "100 × 50 | seed 42, 5 epochs, best after 4" in lines[3]
    assert rows[-1].endswith("| not run |")
    says = makers["vae-says"]("all").splitlines()
    assert "ELBO in the paper's order: DIAG −95.00, MN 20 × 2 −94.00, MV −93.50" in says[0]
    assert "not run yet" in says[1]
    assert filled("{value: vae/40-mv bound}", blocks.cell) == "−93.5"
    assert filled("{printed value: vae/40-mv bound}", blocks.cell) == "-93.01"
    assert "vae-curves-40.png" in makers["vae-curves"]("40 | Curves.")
    assert makers["vae-curves"]("9 | Curves.") == ""
    assert "vae-40-mv-walk.png" in makers["vae-sheets"]("40-mv walk | A walk.")
    assert makers["vae-sheets"]("9-mv walk | A walk.") == ""
    assert all(png.startswith(b"\x89PNG") for png in blocks.pictures.values())
    with pytest.raises(ValueError, match="picture 'walks' is unknown; did you mean 'walk'"):
        makers["vae-sheets"]("40-mv walks | A walk.")


def test_another_order_and_other_settings_are_said(tmp_path):
    for name in ("40-diag", "40-mn-20x2", "40-mv"):
        write_json(tmp_path / "vae" / f"{name}-seed42.json", study(name, -90.0, -95.0))
    _, makers = blocks_of(tmp_path)
    assert "ELBO not in the paper's order" in makers["vae-says"]("all")
    write_json(tmp_path / "vae" / "40-mv-seed42.json", study("40-mv", -9.0, -9.5, epochs=9))
    assert "different settings; no comparison" in makers["vae-says"]("all")


def test_seeds_are_averaged(tmp_path):
    for seed, bound in ((1, -94.0), (2, -96.0)):
        write_json(tmp_path / "vae" / f"40-mv-seed{seed}.json", study("40-mv", -90, bound))
    _, makers = blocks_of(tmp_path)
    assert "−95.00 (−93.01)" in makers["vae"]("all")
    assert "2 seeds, 5 and 5 epochs" in makers["vae"]("all")


def test_every_published_row_has_a_name_of_its_own_settings():
    rows = {"diag": (40,), "mv": (40,), "mn": (20, 2)}
    names = {file_name(VaeSettings(family, shape)) for family, shape in rows.items()}
    names |= {
        file_name(VaeSettings(f, s)) for f, s in (("diag", (9,)), ("mv", (9,)), ("mn", (3, 3)))
    }
    assert names == {f"{name}-seed42" for name in PUBLISHED}


def test_the_study_is_two_commands(tmp_path):
    run, out = tmp_path / "run", tmp_path / "out"
    options = ["--encoder", "mv", "--latent", "4", "--epochs", "2", "--annealing", "1"]
    done = CliRunner().invoke(app, ["papers", "vae", "--out", str(run), *options, "--images", "50"])
    assert done.exit_code == 0, done.output
    assert "epoch    1: KL × 1.000" in done.output
    assert "ELBO of test images" in done.output
    done = CliRunner().invoke(
        app, ["papers", "judge-vae", str(run), "--out", str(out), "--samples", "4"]
    )
    assert done.exit_code == 0, done.output
    assert "24 images: log likelihood" in done.output
    assert (out / "4-mv-seed42.json").is_file()
    wrong = CliRunner().invoke(
        app, ["papers", "vae", "--out", str(run), "--encoder", "mn", "--latent", "4"]
    )
    assert "family 'mn' needs 2 positive numbers" in str(wrong.exception)


@pytest.mark.checklist("MN19")
def test_latent_numbers_whose_mean_never_moves_are_not_used(tmp_path):
    settings = VaeSettings("diag", (4,), epochs=2, annealing=1, hidden=(6,), batch_size=20)
    run = tmp_path / "run"
    train.train_vae(settings, run)
    weights = torch.load(run / "model.pt", weights_only=True)
    state = weights["state_dict"]
    last = state[[name for name in state if name.startswith("encoder") and "weight" in name][-1]]
    last[:3] = torch.tensor([[5.0], [0.0], [0.0]])
    torch.save(weights, run / "model.pt")
    images = Dataset("patterns", "density", noise(40), noise(40))
    file = tmp_path / "studies" / "latent_use.json"
    part = study_latent_use([run], file, dataset=images)["parts"]["4-diag-seed42"]
    expected = VaeFolder(run).load().posterior(images.test.x).mean.var(0)
    assert part["variances"] == pytest.approx(sorted(expected.tolist(), reverse=True), rel=1e-3)
    assert part["variances"][-1] == 0
    assert part["used"] == int((expected > 0.01).sum()) <= 2
    blocks, makers = blocks_of(tmp_path)
    assert blocks.cell("latent/4-diag used").ours == part["used"]
    assert blocks.cell("latent/4-diag share").ours == part["used"] / 4
    assert f"| 4-diag | seed 42, 2 epochs | 4 | {part['used']} | 0 and " in makers["latent-use"](
        "all"
    )
