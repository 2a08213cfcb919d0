"""A run folder: what is in it, and that a killed run ends as an uninterrupted one."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import time

import numpy
import pytest
import torch

import leanbayes as lb
from leanbayes.lab.evaluation import evaluate_run
from leanbayes.lab.files import write_json
from leanbayes.lab.from_recipe import build_model
from leanbayes.lab.launch import WholeCheckpoints
from leanbayes.lab.recipe import check_recipe
from leanbayes.lab.recipe_files import parse_yaml, read_recipe
from leanbayes.lab.runs import Run
from leanbayes.lab.train import train
from research import extensions  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")


def recipe(**changes):
    values = {
        "name": "digits-small",
        "data": {"name": "digits"},
        "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [16]}},
        "posterior": {"kind": "KTied", "rank": 2},
        "prior": {"kind": "Normal", "scale": 0.3},
        "optimizer": {"lr": 0.01},
        "learning_rate": {"kind": "linear"},
        "kl": {"kind": "linear", "options": {"steps": 60}},
        "training": {"epochs": 6, "batch_size": 200},
        "evaluation": {"samples": 5},
    }
    return check_recipe({**values, **changes})


def comparable(result):
    """What must not depend on how often a run was stopped."""
    return {key: result[key] for key in ("metrics", "epochs", "parameters", "seed")}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    return folder, train(recipe(), folder, progress=False)


def test_a_run_folder_holds_everything(reference):
    folder, result = reference
    assert read_recipe(folder / "recipe.yaml") == recipe()
    lines = (folder / "metrics.csv").read_text().splitlines()
    assert len(lines) == 7
    for name in ("train/negative_elbo", "validation/negative_elbo", "kl_weight", "kl/model.dense1"):
        assert name in lines[0]
    assert json.loads((folder / "result.json").read_text()) == result
    assert result["metrics"]["accuracy"]["value"] > 0.8
    assert result["metrics"]["nll"]["error"] > 0
    assert len(list((folder / "checkpoints").iterdir())) == 2
    assert set(result["versions"]) == {"leanbayes", "torch", "lightning"}
    assert result["threads"] == torch.get_num_threads()


def test_the_saved_model_is_the_trained_one(reference):
    folder, result = reference
    net = build_model(recipe(posterior=None, prior=None))
    model = lb.load(net, folder / "model")
    assert lb.count_parameters(model)._asdict() == result["parameters"]
    kl_per_example = float(lb.kl(model).detach()) / 1000
    assert kl_per_example > 0


def test_the_same_recipe_gives_the_same_bits(reference, tmp_path):
    assert comparable(train(recipe(), tmp_path, progress=False)) == comparable(reference[1])


def test_another_seed_gives_another_model(reference, tmp_path):
    other = train(recipe(seed=1), tmp_path, progress=False)
    assert other["metrics"] != reference[1]["metrics"]


def test_a_finished_run_is_not_run_again(reference):
    folder, result = reference
    before = (folder / "result.json").stat().st_mtime_ns
    assert train(recipe(), folder, resume=True, progress=False) == result
    assert (folder / "result.json").stat().st_mtime_ns == before


def test_a_folder_in_use_needs_resume(reference):
    with pytest.raises(FileExistsError, match="--resume"):
        train(recipe(), reference[0], progress=False)


def test_a_changed_recipe_is_refused_by_key(reference):
    with pytest.raises(ValueError, match=r"'optimizer\.lr' was 0\.01 and is now 0\.02"):
        train(recipe(optimizer={"lr": 0.02}), reference[0], resume=True, progress=False)


def test_a_folder_from_before_a_key_existed_can_be_resumed(reference, tmp_path, monkeypatch):
    """What a recipe leaves out has its default, then and now."""
    stopped_after(tmp_path, 2, monkeypatch)
    values = parse_yaml(recipe().to_yaml())
    del values["data"]["augment"], values["data"]["pad"]
    write_json(tmp_path / "recipe.yaml", values)  # which is YAML, too
    result = train(recipe(), tmp_path, resume=True, progress=False)
    assert comparable(result) == comparable(reference[1])


def test_a_recipe_that_cannot_be_built_leaves_no_folder_behind(tmp_path):
    broken = recipe(architecture={"name": "mlp", "options": {"inputs": 64, "hiden": [16]}})
    with pytest.raises((TypeError, ValueError), match="hiden"):
        train(broken, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def stopped_after(folder, epochs, monkeypatch):
    """A run that dies at the start of an epoch."""
    from leanbayes.lightning import BayesianModule

    original = BayesianModule.on_train_epoch_start

    def dies(self):
        if self.current_epoch == epochs:
            raise KeyboardInterrupt
        original(self)

    with monkeypatch.context() as patch:
        patch.setattr(BayesianModule, "on_train_epoch_start", dies)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            train(recipe(), folder, progress=False)


def test_a_truncated_checkpoint_costs_one_epoch_and_is_said(reference, tmp_path, monkeypatch):
    stopped_after(tmp_path, 4, monkeypatch)
    newest = sorted((tmp_path / "checkpoints").glob("*.ckpt"))[-1]
    newest.write_bytes(newest.read_bytes()[:-2000])
    with pytest.warns(UserWarning, match="is damaged .* going on from epoch-00002.ckpt"):
        result = train(recipe(), tmp_path, resume=True, progress=False)
    assert comparable(result) == comparable(reference[1])


def test_a_nan_stops_the_run_and_keeps_the_last_good_state(tmp_path, monkeypatch):
    from leanbayes.lightning import BayesianModule, NonFiniteLossError

    original = BayesianModule.on_train_epoch_start

    def poisons(self):
        original(self)
        if self.current_epoch == 2:
            with torch.no_grad():
                self.model.dense1.posterior.loc[0, 0] = float("nan")

    monkeypatch.setattr(BayesianModule, "on_train_epoch_start", poisons)
    with pytest.raises(NonFiniteLossError, match=r"model\.dense1\.posterior\.loc"):
        train(recipe(), tmp_path, progress=False)
    last = sorted((tmp_path / "checkpoints").glob("*.ckpt"))[-1]
    state = torch.load(last, weights_only=True)["state_dict"]
    assert last.name == "epoch-00001.ckpt"
    assert all(value.isfinite().all() for value in state.values())


def test_batches_follow_the_epoch_of_lightning_and_not_the_record(reference, tmp_path, monkeypatch):
    stopped_after(tmp_path, 3, monkeypatch)
    last = Run(tmp_path).checkpoints.paths()[-1]
    state = torch.load(last, weights_only=True)
    assert len(state["callbacks"]["Record"]["rows"]) == 3
    state["callbacks"]["Record"]["rows"] = []
    WholeCheckpoints().save_checkpoint(state, last)
    result = train(recipe(), tmp_path, resume=True, progress=False)
    assert comparable(result) == comparable(reference[1])


def test_a_damaged_result_is_written_again(reference, tmp_path):
    folder = shutil.copytree(reference[0], tmp_path / "run")
    (folder / "result.json").write_text('{"metrics": {"nll"')
    again = train(recipe(), folder, resume=True, progress=False)
    assert comparable(again) == comparable(reference[1])
    assert Run(folder).result == again


@pytest.mark.parametrize(
    ("limit", "size"), [(None, 1257), (100, 100), (10**6, 1257)], ids=["none", "few", "too many"]
)
def test_a_run_knows_how_many_examples_it_learns_from(tmp_path, limit, size):
    training = {"epochs": 1, "limit": limit}
    run = Run(tmp_path, recipe(training=training))
    assert run.data_size == len(run.training_examples) == size


def run_with_learned_noise(folder, **changes):
    """A run whose likelihood learns, and its metrics."""
    folder.mkdir()
    table = folder / "table.csv"
    table.write_text("\n".join(f"{i},{i % 7},{3 * i + i % 5}" for i in range(60)))
    values = {
        "data": {"name": str(table), "options": {"task": "regression"}},
        "architecture": {"name": "mlp", "options": {"inputs": 2, "hidden": [4], "outputs": 1}},
        "likelihood": {"kind": "gaussian", "noise": "learned"},
        "training": {"epochs": 2, "batch_size": 20},
    }
    result = train(recipe(**{**values, **changes}), folder / "run", progress=False)
    return folder / "run", result["metrics"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run of a network that was not converted."""
    folder = tmp_path_factory.mktemp("runs") / "plain"
    return run_with_learned_noise(folder, posterior=None, prior=None)


@pytest.mark.parametrize("removed", ["checkpoints", "model.safetensors"])
def test_a_plain_network_loads_from_its_file_or_its_checkpoint(plain, tmp_path, removed):
    """Folders of the first runs have no file for a network that was not converted."""
    folder = shutil.copytree(plain[0], tmp_path / "run")
    path = folder / removed
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert evaluate_run(folder, samples=5) == plain[1]


def test_a_likelihood_loads_from_the_file_of_its_model_or_from_its_checkpoint(tmp_path):
    """The files of the first runs hold no likelihood."""
    folder, metrics = run_with_learned_noise(tmp_path / "converted")
    model, _ = Run(folder).load()
    shutil.move(folder / "checkpoints", tmp_path)
    assert evaluate_run(folder, samples=5) == metrics
    lb.save(model, folder / "model")
    with pytest.raises(FileNotFoundError, match="has no checkpoint any more"):
        evaluate_run(folder, samples=5)
    shutil.move(tmp_path / "checkpoints", folder)
    assert evaluate_run(folder, samples=5) == metrics


def test_a_plain_network_whose_file_is_damaged_is_one_sentence(plain, tmp_path):
    folder = shutil.copytree(plain[0], tmp_path / "run")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged \("):
        Run(folder).load()


def _train_in_child(folder):
    torch.set_num_threads(1)
    train(recipe(), folder, resume=True, progress=False)
    os._exit(0)


def test_twenty_kills_at_random_moments_change_nothing(reference, tmp_path, request):
    """Forked children spare the imports, so that kills fall into training and writing."""
    moments = random.Random(request.config.getoption("--seed"))
    fork = multiprocessing.get_context("fork")
    kills, runs, longest = 0, 0, 3.0
    while kills < 20:
        folder = tmp_path / f"run{runs}"
        runs += 1
        while not (folder / "result.json").exists():
            child = fork.Process(target=_train_in_child, args=(folder,))
            started = time.monotonic()
            child.start()
            if kills < 20:
                child.join(moments.uniform(0.0, longest))
            else:
                child.join(120)
            if child.is_alive():
                os.kill(child.pid, signal.SIGKILL)
                child.join()
                kills += 1
            else:
                assert child.exitcode == 0
                longest = 0.9 * (time.monotonic() - started) + 0.1
        result = json.loads((folder / "result.json").read_text())
        assert comparable(result) == comparable(reference[1])
    assert kills == 20


def test_words_about_a_recipe_may_change_before_it_is_resumed(reference):
    folder, result = reference
    assert train(recipe(cut="said in other words"), folder, resume=True, progress=False) == result
    with pytest.raises(ValueError, match="another recipe: 'seed' was 42 and is now 1"):
        train(recipe(seed=1), folder, resume=True, progress=False)


@pytest.mark.parametrize("posterior", [None, "MeanField"])
def test_filters_lie_with_channels_last_and_files_as_torch_has_them(posterior, tmp_path):
    """The first is faster on a CPU; whoever reads the second need not know."""
    images = tmp_path / "images.npz"
    numpy.savez(images, x=numpy.random.default_rng(0).random((40, 3, 32, 32)), y=[0, 1] * 20)
    spec = recipe(
        data={"name": str(images)},
        architecture={"name": "vgg-small", "options": {"outputs": 2}},
        posterior=posterior,
        prior=posterior and "He",
        training={"epochs": 1, "batch_size": 10},
    )
    built = build_model(spec)
    filters = built.conv2.weight if posterior is None else built.conv2.posterior.loc
    assert filters.is_contiguous(memory_format=torch.channels_last)
    assert not filters.is_contiguous()
    result = train(spec, tmp_path / "run", progress=False)
    loaded, _ = Run(tmp_path / "run").load()
    kept = loaded.conv2.weight if posterior is None else loaded.conv2.posterior.loc
    assert kept.shape == filters.shape
    assert evaluate_run(tmp_path / "run", samples=5)["nll"] == pytest.approx(
        result["metrics"]["nll"], abs=1e-5
    )
