"""Random crops and flips that a recipe asks for reach training, and nothing else."""

import itertools

import data_files as files
import numpy as np
import pytest
import torch

from leanbayes.lab import train as training
from leanbayes.lab.data import PadCropFlip, augmentation, load_dataset
from leanbayes.lab.recipe import check_recipe
from leanbayes.lightning import BayesianModule
from leanbayes.testing import assert_mean
from research import extensions  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore::Warning:lightning", "ignore::Warning:torch")

PAD, LIMIT = 2, 60
CROPS = ["crop-flip", "crop-flip-shared"]


def recipe(data, **training):
    return check_recipe(
        {
            "name": "augmented",
            "data": {"name": "digits", "options": {"scaling": "symmetric"}, **data},
            "architecture": {"name": "mlp", "options": {"inputs": 64, "hidden": [8]}},
            "posterior": {"kind": "KTied", "rank": 1},
            "prior": {"kind": "Normal", "scale": 0.3},
            "training": {"epochs": 2, "batch_size": 20, **training},
            "evaluation": {"samples": 2, "batch_size": 100},
        }
    )


class Seen:
    """The inputs of every training batch by epoch, of validation, and of the test."""

    def __init__(self, monkeypatch):
        self.train, self.validation, self.test = {}, [], None
        self.stop_at = None
        objective, validate = BayesianModule.objective, BayesianModule.validation_step
        evaluate = training.evaluate

        def watched_objective(module, batch):
            if module.current_epoch == self.stop_at:
                raise KeyboardInterrupt
            self.train.setdefault(module.current_epoch, []).append(batch[0].clone())
            return objective(module, batch)

        def watched_validation(module, batch, number):
            self.validation.append(batch[0].clone())
            return validate(module, batch, number)

        def watched_evaluation(model, examples, *args, **kwargs):
            self.test = examples.x
            return evaluate(model, examples, *args, **kwargs)

        monkeypatch.setattr(BayesianModule, "objective", watched_objective)
        monkeypatch.setattr(BayesianModule, "validation_step", watched_validation)
        monkeypatch.setattr(training, "evaluate", watched_evaluation)


@pytest.fixture
def seen(monkeypatch):
    return Seen(monkeypatch)


def digits():
    return load_dataset("digits", scaling="symmetric")


def keys(images):
    """Images as values that can be looked up."""
    return [image.tobytes() for image in np.ascontiguousarray(images)]


def crops(images):
    """Every window of the padded images and its mirror image, by offset and coin."""
    edge = ((0, 0), (0, 0), (PAD, PAD), (PAD, PAD))
    wide = np.pad(images, edge, constant_values=-1)  # black, after scaling
    side = images.shape[-1]
    for down, right in itertools.product(range(2 * PAD + 1), repeat=2):
        window = wide[:, :, down : down + side, right : right + side]
        yield (down, right, False), set(keys(window))
        yield (down, right, True), set(keys(window[..., ::-1]))


def test_half_of_the_training_images_are_mirrored(seen, tmp_path):
    training.train(recipe({"augment": "flip"}), tmp_path, progress=False)
    raw = digits().train.x.numpy()
    originals = set(keys(raw))
    batches = np.concatenate([torch.cat(epoch).numpy() for epoch in seen.train.values()])
    lopsided = np.array(
        [a != b for a, b in zip(keys(batches), keys(batches[..., ::-1]), strict=True)]
    )
    straight = np.array([key in originals for key in keys(batches)])
    mirrored = np.array([key in originals for key in keys(batches[..., ::-1])])
    assert (straight | mirrored).all()
    assert lopsided.mean() > 0.9
    assert_mean(torch.tensor(mirrored[lopsided]).double(), 0.5, "share of mirrored images")


@pytest.mark.parametrize("augment", CROPS)
def test_training_images_are_windows_of_padded_ones(seen, tmp_path, augment):
    """Each image has an offset and a coin of its own, or the whole batch has one."""
    spec = {"augment": augment, "pad": PAD}
    training.train(recipe(spec, limit=LIMIT), tmp_path, progress=False)
    windows = dict(crops(digits().train.x[:LIMIT].numpy()))
    anywhere = set().union(*windows.values())
    used = set()
    for batch in itertools.chain(*seen.train.values()):
        found = keys(batch.numpy())
        assert set(found) <= anywhere
        common = [where for where, images in windows.items() if set(found) <= images]
        assert bool(common) == (augment == "crop-flip-shared")
        used.update(common)
    assert len(used) > 1 or augment == "crop-flip"


@pytest.mark.parametrize("spec", [{"augment": "flip"}, {"augment": CROPS[0], "pad": PAD}])
def test_validation_and_test_images_stay_as_they_are(seen, tmp_path, spec):
    training.train(recipe(spec, limit=LIMIT, epochs=1), tmp_path, progress=False)
    data = digits()
    assert torch.equal(torch.cat(seen.validation), data.validation.x)
    assert torch.equal(seen.test, data.test.x)


@pytest.mark.parametrize("augment", CROPS)
def test_a_resumed_run_sees_the_same_images(seen, tmp_path, augment):
    spec = recipe({"augment": augment, "pad": PAD}, limit=LIMIT, epochs=3)
    whole = training.train(spec, tmp_path / "whole", progress=False)
    uninterrupted, seen.train, seen.stop_at = seen.train, {}, 1
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        training.train(spec, tmp_path / "parts", progress=False)
    seen.train, seen.stop_at = {}, None
    again = training.train(spec, tmp_path / "parts", resume=True, progress=False)
    assert set(seen.train) == {1, 2}
    for epoch, batches in seen.train.items():
        assert torch.equal(torch.cat(batches), torch.cat(uninterrupted[epoch]))
    assert again["metrics"] == whole["metrics"]
    first, last = (torch.cat(uninterrupted[epoch]) for epoch in (0, 2))
    assert not torch.equal(first, last)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"augment": "crop-flip"}, "data: augment 'crop-flip' crops nothing without pad"),
        ({"augment": "crop-flip-shared", "pad": 0}, "crops nothing without pad"),
        ({"augment": "flip", "pad": 2}, "data: pad is 2, and augment 'flip' does not crop"),
        ({"pad": 4}, "data: pad is 4, and augment 'none' does not crop"),
        ({"augment": "crop-flip", "pad": -1}, "data.pad: Input should be greater than or equal"),
        ({"augment": "crop"}, "data.augment: Input should be 'none', 'flip'"),
        ({"augmnet": "flip"}, "did you mean 'augment'?"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(spec, sentence):
    with pytest.raises(ValueError, match="recipe: ") as caught:
        recipe(spec)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_image_cannot_be_augmented(tmp_path):
    rows = tmp_path / "rows.npz"
    np.savez(rows, x=np.random.default_rng(0).normal(size=(40, 3)), y=np.arange(40) % 2)
    spec = recipe({"name": str(rows), "options": {}, "augment": "flip"})
    out = tmp_path / "run"
    with pytest.raises(ValueError, match=r"'flip', and .* has no images; leave it out") as caught:
        training.train(spec, out, progress=False)
    assert "\n" not in str(caught.value)
    assert not (out / "recipe.yaml").exists()  # nothing to resume, and nothing in the way


@pytest.fixture
def cifar(tmp_path, monkeypatch, request):
    rng = np.random.default_rng(request.config.getoption("--seed"))
    images = rng.integers(0, 256, (120, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, 120)
    parts = images[:100], labels[:100], images[100:], labels[100:]
    files.write_cifar_10(tmp_path, "binary folder", *parts)
    files.write_sums(tmp_path)
    monkeypatch.setenv("LEANBAYES_DATA", str(tmp_path))


@pytest.mark.usefixtures("cifar")
@pytest.mark.parametrize(
    ("name", "scaling", "pad", "black"),
    [
        ("crop-flip", "cifar-2020", 2, (-0.4914 / 0.2023, -0.4822 / 0.1994, -0.4465 / 0.2010)),
        ("crop-flip-shared", "raw", 4, (0.0, 0.0, 0.0)),
    ],
)
def test_borders_are_black(name, scaling, pad, black):
    dataset = load_dataset("cifar10", scaling=scaling, validation=0)
    augment = augmentation(name, dataset, pad)
    assert isinstance(augment, PadCropFlip)
    assert (augment.pad, augment.shared) == (pad, name.endswith("shared"))
    assert augment.fill == pytest.approx(black)
    white = torch.full((500, 3, 32, 32), 255, dtype=torch.uint8)
    x = augment(dataset.scaling(white), torch.Generator().manual_seed(0))
    drawn = dataset.scaling.inverse(x).round()
    assert set(drawn.unique().abs().tolist()) <= {0.0, 255.0}


@pytest.mark.usefixtures("cifar")
def test_a_mean_per_pixel_has_no_black():
    dataset = load_dataset("cifar10", scaling="pixel-mean", validation=0)
    assert augmentation("none", dataset) is None
    assert torch.allclose(dataset.train.x.mean(0), torch.zeros(3, 32, 32), atol=1e-6)
    with pytest.raises(ValueError, match=r"no one value for a border; pad by 0\.0"):
        augmentation("crop-flip", dataset)


def test_an_unknown_augmentation_is_named():
    with pytest.raises(ValueError, match="augmentation 'flop' is unknown; did you mean 'flip'"):
        augmentation("flop", load_dataset("digits"))
