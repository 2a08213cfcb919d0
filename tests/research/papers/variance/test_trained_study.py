"""Studies of trained variance networks from a run to a page."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import leanbayes as lb
from leanbayes.lab.data import Examples
from leanbayes.lab.files import write_json
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.runs import Run
from leanbayes.lab.train import train
from leanbayes.models.baselines import mc_dropout
from leanbayes.models.random_maps import named_kl
from research.__main__ import app
from research.networks import build
from research.papers import PAPERS
from research.papers.variance import measures
from research.papers.variance.densities import densities
from research.papers.variance.split_at_noise import cut, cut_at, with_batch_statistics
from research.papers.variance.trained import Trained
from research.papers.variance.trained_blocks import read_trained
from research.papers.variance.trained_study import study_run
from research.publishing.blocks import Blocks
from research.publishing.filled_claims import filled

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

NAME = "mnist-lenet5-zero-mean"
PAGE = PAPERS["variance"].folder / "page.md"


def recipe(**changes):
    return check_recipe(
        {
            "name": NAME,
            "data": {"name": "digits"},
            "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [32, 32]}},
            "posterior": "ZeroMean",
            "prior": "LogUniform",
            "include": ["dense2"],
            "optimizer": {"lr": 0.01},
            "training": {"epochs": 25, "batch_size": 200},
            "evaluation": {"samples": 2},
            **changes,
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("variance") / "run"
    train(recipe(), folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def results(folder, tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    out = results / "after" / f"{NAME}-seed42.json"
    done = CliRunner().invoke(
        app, ["papers", "variance", str(folder), "--draws", "40", "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    return results


@pytest.fixture(scope="module")
def study(results):
    return read_trained(results / "after" / f"{NAME}-seed42.json")


@pytest.fixture(scope="module")
def trained(folder):
    run = Run(folder)
    return Trained.of(*of_run(run), samples=20, seed=1)


def of_run(run):
    model, likelihood = run.load()
    return model, run.dataset.test, likelihood


def lenet(posterior=None, estimator=lb.estimators.auto, **options):
    torch.manual_seed(3)
    net = build("lenet5-caffe", **options)
    if posterior is None:
        return net
    return lb.convert(net, posterior, lb.priors.LogUniform(), estimator, include=("dense1",))


def images(number=12):
    torch.manual_seed(5)
    return torch.rand(number, 1, 28, 28)


# The cut


def test_a_network_that_is_cut_is_the_network():
    model, x = lenet(lb.posteriors.ZeroMean()).eval(), images()
    before, after = cut(model)
    assert next(iter(dict(after.named_children()))) == "dense1"
    assert list(lb.named_kl(after)) == ["dense1"]
    a, b = (lb.predict(m, x, samples=3, seed=7) for m in (model, nn.Sequential(before, after)))
    assert torch.equal(a.samples, b.samples)
    drawn = lb.predict(after, lb.predict(before, x, samples=1).samples[0], samples=3, seed=7)
    assert torch.equal(a.samples, drawn.samples)


def test_what_draws_nothing_is_cut_at_its_end_or_its_dropout():
    net = lenet()
    assert list(cut(net).after.children()) == []
    assert torch.equal(cut(net.eval()).before(images()), net(images()))
    points = lb.convert(lenet(dropout=0.5), lb.posteriors.Point(), lb.priors.Flat())
    assert next(iter(dict(cut(points).after.named_children()))) == "dropout"
    with pytest.raises(ValueError, match="layer 'dens1' is unknown"):
        cut_at(net, "dens1")


def test_a_network_that_is_no_chain_stays_whole():
    block = lb.convert(nn.Sequential(nn.Linear(3, 2)), lb.MeanField(), lb.priors.Normal(1.0))
    assert cut(block).after is block


def test_mc_dropout_draws_and_normalization_stays_in_eval_mode():
    model = lb.convert(lenet(dropout=0.5), lb.posteriors.Point(), lb.priors.Flat())
    test = Examples(images(), torch.arange(12) % 10)
    known = Trained.of(model, test, lb.likelihoods.Categorical(), samples=6, seed=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    drawn = known.predict().samples
    assert not torch.allclose(drawn[0], drawn[1])
    with torch.no_grad():
        plain = model.eval()(test.x)
    many = mc_dropout(known.rest).eval()
    assert not any(m.training for m in many.modules())
    torch.testing.assert_close(known.predict(known.rest, 1).samples[0], plain)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert {*measures.accuracies(known)} == {"mean", "sample", "ensemble"}
    histograms = measures.histograms(known, draws=5)
    assert histograms["weights"] == histograms["images"]
    assert histograms["images"]["std"] > 0


def test_batch_statistics_are_those_of_training_mode():
    model, x = lenet(), images()
    changed = with_batch_statistics(model)
    with torch.no_grad():
        torch.testing.assert_close(changed.eval()(x), model.train()(x))
        assert not torch.allclose(changed(x), model.eval()(x))
    assert with_batch_statistics(build("mlp")) is None


# What is measured


@pytest.mark.checklist("VN14")
@pytest.mark.parametrize("alpha", ["layer", "neuron", "weight", "additive"])
@pytest.mark.parametrize(
    "prior", [lb.priors.LogUniform(), lb.priors.ARD()], ids=["log-uniform", "ARD"]
)
def test_kl_is_what_log_alpha_says_layer_by_layer(alpha, prior):
    net = nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 10)).double()
    model = lb.convert(net, lb.posteriors.VariationalDropout(alpha=alpha, log_alpha=0.7), prior)
    rows = measures.alphas(lb.analysis.alpha_report(model), model)
    kls = {name: float(kl.detach()) for name, kl in named_kl(model).items()}
    assert list(rows) == ["0", "1"]
    for name, row in rows.items():
        assert row["kl"] == pytest.approx(kls[name], rel=1e-5)
        assert row["kl_of_log_alpha"] == pytest.approx(kls[name], rel=1e-4)
        assert row["log_alpha"] == pytest.approx([0.7] * 3, abs=1e-4)
        assert not row["variance_layer"]
    assert (
        measures.kl_of_log_alpha(lb.convert(net[0], lb.MeanField(), lb.priors.Normal(1.0))) is None
    )


@pytest.mark.checklist("VN12")
def test_elbo_is_summed_over_the_training_set_less_the_kl():
    torch.manual_seed(1)
    model = lb.convert(
        build("mlp", inputs=6, hidden=(8,), outputs=3),
        *(lb.posteriors.VariationalDropout(log_alpha=-2.0), lb.priors.LogUniform()),
        include=("dense2",),
    )
    known = Examples(torch.randn(40, 6), torch.randint(3, (40,)))
    trained = Trained.of(model, known, lb.likelihoods.Categorical(), samples=2, seed=0)
    values = measures.elbo(trained, cut(model).before, known)
    many = lb.predict(model, known.x, samples=500, seed=1).samples
    expected = -nn.functional.cross_entropy(
        many.flatten(0, 1), known.y.repeat(500), reduction="sum"
    )
    assert values["data"] == pytest.approx(float(expected) / 500, rel=0.05)
    assert values["kl"] == pytest.approx(float(lb.kl(model).detach()), rel=1e-5)
    assert values["elbo"] == pytest.approx(values["data"] - values["kl"], rel=1e-5)


@pytest.mark.checklist("VN16")
def test_draws_are_counted_and_their_average_is_better(study):
    for drawn in study["histogram"].values():
        assert sum(drawn["counts"]) == drawn["draws"] == 40
        assert drawn["low"] <= drawn["mean"] <= drawn["high"]
        assert drawn["ensemble"]["value"] > drawn["mean"] + 0.02
        end = drawn["start"] + drawn["width"] * len(drawn["counts"])
        assert drawn["start"] < drawn["low"] <= drawn["high"] < end
    weights, own = (study["histogram"][kind]["std"] for kind in ("weights", "images"))
    assert weights > own  # images share the draw of the weights


@pytest.mark.checklist("VN15", "VN22")
def test_scales_can_be_pruned_and_ratios_say_nothing(study):
    pruning, whole = study["pruning"], study["accuracy"]["ensemble"]["value"]
    assert pruning["layers"] == ["dense2"]
    assert pruning["snr_at_random"]
    by = {
        kind: {round(p["kept"], 2): p["value"] for p in pruning[kind]} for kind in ("scale", "snr")
    }
    assert by["scale"][1.0] == by["snr"][1.0] == whole
    assert by["scale"][0.2] > whole - 0.03
    assert by["snr"][0.2] < by["scale"][0.2] - 0.1
    assert pruning["sparse"]["kept"] == 0
    assert pruning["sparse"]["value"] == study["accuracy"]["mean"]["value"] < 0.2


def test_ratios_that_differ_rank_weights():
    torch.manual_seed(2)
    model = lb.convert(
        build("mlp", inputs=6, hidden=(8,), outputs=3), lb.MeanField(), lb.priors.Normal(1.0)
    )
    known = Examples(torch.randn(20, 6), torch.randint(3, (20,)))
    trained = Trained.of(model, known, lb.likelihoods.Categorical(), samples=2, seed=0)
    assert not measures.pruning(trained, ["dense1"])["snr_at_random"]


@pytest.mark.checklist("VN18")
def test_classes_differ_in_the_spread_of_a_neuron(trained):
    shown = densities(trained, "dense2", neurons=2)
    assert shown["contrast"][1] > 3
    assert 0.3 < shown["explained"][1] <= 1
    layer = dict(trained.rest.named_children())["dense2"]
    outputs = lb.predict(layer, trained.x, samples=400, seed=3).samples
    for number, neuron in shown["neurons"].items():
        at = torch.tensor(neuron["at"])
        for c, (std, line) in enumerate(zip(neuron["std"], neuron["density"], strict=True)):
            measured = outputs[:, trained.y == c, int(number)].std()
            if std > 0.01 * max(neuron["std"]):  # less counts as a thousandth of the typical noise
                assert std == pytest.approx(float(measured), rel=0.1)
            if std > 0.2 * max(neuron["std"]):
                assert 0.8 < float(torch.trapezoid(torch.tensor(line), at)) < 1.2


@pytest.mark.checklist("VN19")
def test_permuted_scales_are_chance_and_means_do_not_matter(study):
    whole = study["accuracy"]["ensemble"]["value"]
    assert study["controls"]["zero_means"]["value"] == whole > 0.85
    permuted = study["controls"]["permuted"]
    assert permuted["least"] <= permuted["value"] <= permuted["most"] < 0.4


def odd_network(running_mean, **options):
    torch.manual_seed(11)
    model = lb.convert(
        build("lenet5-caffe-tanh", **options),
        lb.posteriors.ZeroMean(),
        lb.priors.LogUniform(),
        include=("dense1",),
    )
    norm = dict(model.named_children())["dense1_norm"]
    norm.running_mean.copy_(running_mean * torch.randn(500))
    norm.running_var.copy_(0.01 + torch.rand(500))
    if norm.bias is not None:
        nn.init.normal_(norm.bias)
    x = images(40)
    known = Trained.of(
        model, Examples(x, x[:, 0, 0, 0]), lb.likelihoods.Categorical(), samples=200, seed=4
    )
    return replace(known, y=known.predict().labels, samples=20)


@pytest.mark.checklist("VN17")
@pytest.mark.parametrize("seed", range(3))
def test_tanh_lenet_without_biases_is_never_right_at_a_draw_and_its_mirror_image(seed):
    """Whatever the labels, here those that suit the weights best."""
    trained = odd_network(0.0)
    torch.manual_seed(seed)
    dense2 = dict(trained.rest.named_children())["dense2"]
    nn.init.normal_(dense2.weight, std=3.0)
    shares = measures.antithetic(trained)
    assert shares["both"] == shares["centered"]["both"] == 0
    single = shares["both"] + 0.5 * shares["one"]
    assert single <= 0.5


@pytest.mark.checklist("VN17")
@pytest.mark.parametrize(
    ("running_mean", "options"), [(3.0, {}), (0.0, {"affine": True})], ids=["mean", "shift"]
)
def test_a_running_mean_or_a_shift_is_not_odd(running_mean, options):
    shares = measures.antithetic(odd_network(running_mean, **options))
    assert shares["both"] > 0.2
    assert sum(shares[kind] for kind in ("both", "one", "none")) == pytest.approx(1.0)
    if not options:
        assert shares["centered"]["both"] == 0


@pytest.mark.checklist("VN17")
def test_a_bias_of_the_last_layer_alone_helps_one_class():
    trained = odd_network(0.0, bias=True)
    layers = dict(trained.rest.named_children())
    nn.init.zeros_(layers["dense1"].bias)
    nn.init.normal_(layers["dense2"].bias, std=0.3)
    favorite = int(layers["dense2"].bias.argmax())
    for c in range(10):
        shares = measures.antithetic(replace(trained, y=torch.full_like(trained.y, c)))
        assert (shares["both"] > 0) is (c == favorite)


def test_mirror_images_need_one_layer_that_draws():
    both = lb.convert(build("mlp"), lb.posteriors.ZeroMean(), lb.priors.LogUniform())
    known = Examples(torch.randn(4, 784), torch.arange(4))
    assert (
        measures.antithetic(
            Trained.of(both, known, lb.likelihoods.Categorical(), samples=2, seed=0)
        )
        is None
    )


# Files, tables and pages


def test_a_study_says_where_it_is_from_and_is_compact(study, results):
    assert {"seed", "versions", "revision", "recipe", "seconds", "epochs"} <= study.keys()
    assert (study["noise"], study["images"], study["samples"]) == ("weights", 360, 20)
    assert study["batch_statistics"] is None
    assert (results / "after" / f"{NAME}-seed42.json").stat().st_size < 100_000


def test_a_study_is_made_once_unless_it_is_to_be_replaced(folder, results, tmp_path):
    out = results / "after" / f"{NAME}-seed42.json"
    before = out.read_bytes()
    again = CliRunner().invoke(app, ["papers", "variance", str(folder), "--out", str(out)])
    assert isinstance(again.exception, FileExistsError)
    assert "--overwrite" in str(again.exception)
    assert out.read_bytes() == before
    other = tmp_path / "other.json"
    other.write_text("{}")
    few = ["--draws", "2", "--samples", "2", "--images", "50", "--out", str(other), "--overwrite"]
    assert CliRunner().invoke(app, ["papers", "variance", str(folder), *few]).exit_code == 0
    assert read_trained(other)["images"] == 50


def test_a_run_without_noise_has_accuracies_and_nothing_about_scales(tmp_path):
    plain = {"name": "mnist-lenet5-dropout", "posterior": None, "prior": None, "include": ["**"]}
    run = tmp_path / "plain"
    train(recipe(**plain, training={"epochs": 1, "batch_size": 200}), run, progress=False)
    study = study_run(run, draws=3)
    assert study["noise"] == "none"
    assert study["accuracy"]["mean"] == study["accuracy"]["ensemble"]
    assert "kl" not in study["elbo"]
    assert "pruning" not in study
    write_json(tmp_path / "after" / "mnist-lenet5-dropout-seed42.json", study)
    makers = Blocks(PAPERS["variance"], tmp_path).makers(PAGE)
    captions = {"alphas": "", "pruned": "", "pruning": " | A.", "densities": " | A."}
    for kind, caption in captions.items():
        with pytest.raises(ValueError, match=r"mnist-lenet5-dropout has no [\w σα]+: .* layer"):
            makers[kind](f"mnist-lenet5-dropout{caption}")
    assert "| mnist-lenet5-dropout | 1 epochs, seed 42 |" in makers["variance-table-2"]("all")


def test_a_run_that_is_not_finished_or_tells_no_classes_is_refused(folder, tmp_path, monkeypatch):
    (tmp_path / "recipe.yaml").write_text((folder / "recipe.yaml").read_text())
    with pytest.raises(FileNotFoundError, match="holds no finished run; train or resume it first"):
        study_run(tmp_path)
    monkeypatch.setattr(Run, "dataset", replace(Run(folder).dataset, task="regression"))
    with pytest.raises(ValueError, match="is a run of regression"):
        study_run(folder)


def test_tables_have_our_numbers_next_to_the_printed_ones(results, study):
    makers = Blocks(PAPERS["variance"], results).makers(PAGE)
    one, two, three = (makers[f"variance-table-{i}"]("all") for i in (1, 2, 3))
    assert f"| {NAME} | 25 epochs, seed 42 | −" in one
    assert "(−4) | 0 (0) |" in one
    assert "| mnist-lenet5-weight | not run | – (−602.6) | – (−33.8) | – (568.8) |" in one
    assert "| mnist-lenet5-all-layers | not run | – (98.2) | – (11.3) | – (99.3) |" in two
    assert "| mnist-lenet5-tanh-both | not run | – (93.2) | – (97.5) |" in three
    assert "| dense2 | 1,024 | ∞ / ∞ / ∞ | yes | 0 | 0 | 0.0 | 0.0 |" in makers["alphas"](NAME)
    assert "all alike, so at random" in makers["pruned"](NAME)
    assert "0% kept: " in makers["pruned"](NAME)
    assert makers["controls"](NAME).count(" ± ") == 3
    assert "*± is a standard error over test examples.*" in makers["controls"](NAME)
    assert "± is" not in makers["alphas"](NAME)
    assert "running means set to zero" in makers["antithetic"](NAME)
    assert "| not-there | not run | – | – | – | – |" in makers["antithetic"]("not-there")
    with pytest.raises(ValueError, match="has no batch normalization"):
        makers["batch-statistics"](NAME)
    assert "| not-there | not run | – | – | – |" in makers["controls"]("not-there")


def test_both_modes_of_normalization_stand_side_by_side(results, study):
    known = {**study, "batch_statistics": {"batch_size": 200, **study["accuracy"]}}
    file = results / "after" / "mnist-lenet5-layer-seed42.json"
    write_json(file, {**known, "name": "mnist-lenet5-layer"})
    shown = Blocks(PAPERS["variance"], results).makers(PAGE)["batch-statistics"](
        "mnist-lenet5-layer"
    )
    file.unlink()
    first, second = shown.splitlines()[2:4]
    assert "| running averages |" in first
    assert first.split("|")[4:] == second.split("|")[4:]


def test_pictures_are_drawn_from_the_file_alone(results):
    pytest.importorskip("matplotlib")
    blocks = Blocks(PAPERS["variance"], results)
    makers = blocks.makers(PAGE)
    for kind in ("histogram", "pruning", "densities"):
        assert f"![Caption.]({kind}-{NAME}.png)" in makers[kind](f"{NAME} | Caption.")
        assert blocks.pictures[f"{kind}-{NAME}.png"].startswith(b"\x89PNG")


def test_phases_are_drawn_from_the_curves_of_an_archived_run(tmp_path):
    pytest.importorskip("matplotlib")
    blocks = Blocks(PAPERS["variance"], tmp_path)
    phases = blocks.makers(PAGE)["phases"]
    assert phases("layer | Caption.") == ""
    history = {"epoch": [0, 1, 2], "loss": [3.0, 2.0, 1.0]}
    for kind in ("mean", "sample", "ensemble", "zero_mean"):
        history[f"accuracy/{kind}"] = [0.1, None, 0.9]
    history["log_alpha/dense1"] = [-5.0, 0.0, 5.0]
    write_json(tmp_path / "layer-seed42.json", {"history": history})
    assert phases("layer | Caption.") == "![Caption.](phases-layer.png)\n\n*Caption.*"
    assert blocks.pictures["phases-layer.png"].startswith(b"\x89PNG")


def test_claims_name_numbers_of_studies(results, study):
    blocks = Blocks(PAPERS["variance"], results)
    value = study["accuracy"]["ensemble"]["value"]
    said = filled(f"{{percent: after/{NAME} accuracy.ensemble}}", blocks.cell)
    assert said == f"{100 * value:.4g}%"
    assert filled(f"{{printed value: after/{NAME} elbo.elbo}}", blocks.cell) == "-4"
    names = (
        *("histogram.weights", "histogram.images.ensemble", "pruning.scale.2", "pruning.sparse"),
        *("controls.permuted", "antithetic.both", "alphas.dense2.kl", "densities.contrast"),
    )
    for column in names:
        assert blocks.cell(f"after/{NAME} {column}").ours is not None
    with pytest.raises(ValueError, match=r"number 'accuracy\.means' is unknown"):
        blocks.cell(f"after/{NAME} accuracy.means")


def test_seeds_are_averaged_with_errors_over_seeds(results, study, tmp_path):
    other = json.loads(json.dumps({**study, "seed": 1}))
    value = study["accuracy"]["ensemble"]["value"]
    other["accuracy"]["ensemble"]["value"] = value - 0.02
    for each in (study, other):
        write_json(tmp_path / "after" / f"{NAME}-seed{each['seed']}.json", each)
    blocks = Blocks(PAPERS["variance"], tmp_path)
    cell = blocks.cell(f"after/{NAME} accuracy.ensemble")
    assert (cell.seeds, cell.ours) == (2, pytest.approx(value - 0.01))
    assert cell.error == pytest.approx(0.01)
    table = blocks.makers(PAGE)["variance-table-1"]("all")
    assert f"| {NAME} | 25 epochs, 2 seeds |" in table
    assert Blocks(PAPERS["variance"], results).cell(f"after/{NAME} accuracy.ensemble").seeds == 1


def test_a_damaged_study_is_named(tmp_path):
    path = tmp_path / "after" / f"{NAME}-seed42.json"
    path.parent.mkdir()
    for content in ('{"na', json.dumps({"name": NAME})):
        path.write_text(content)
        with pytest.raises(ValueError, match=rf"{NAME}-seed42\.json is .*; study its run again"):
            Blocks(PAPERS["variance"], tmp_path).makers(PAGE)["variance-table-1"]("all")
