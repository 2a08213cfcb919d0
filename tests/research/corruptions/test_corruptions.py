"""Damaged images against scipy, matplotlib, Pillow and closed forms of the noise."""

import itertools
import json
import os
from pathlib import Path

import matplotlib.colors
import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage
from scipy.ndimage import gaussian_filter

from leanbayes.lab.data import Examples, load_dataset
from leanbayes.testing import assert_mean
from research.benchmarks import corruptions
from research.corruptions import (
    CORRUPTIONS,
    PUBLISHED,
    SEVERITIES,
    corrupt,
    corrupt_examples,
    register_corruption,
)
from research.data.formats import read_column_of_images

GRAY = 0.5
FIXED = {"defocus-blur", "zoom-blur", "brightness", "contrast", "pixelate", "jpeg"}
FIXED |= {"blur", "saturate"}
UNEVEN = {"glass-blur", "frost", "elastic-transform", "saturate"}
"""Published strengths whose squared error does not grow: their numbers go up and down."""


def smooth_images(shape=(6, 3, 32, 32)):
    """Colors that change slowly, as in photographs."""
    images = torch.nn.functional.avg_pool2d(torch.rand(*shape[:2], 40, 40), 9, 1)
    return (2 * images - 0.5).clamp(0, 1)


def damage(images, name):
    return [
        float((corrupt(images, name, severity, seed=1) - images).square().mean())
        for severity in SEVERITIES
    ]


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("channels", [1, 3])
def test_damaged_images_are_images_of_bytes(name, channels):
    images = smooth_images((6, channels, 32, 32))
    for severity in SEVERITIES:
        x = corrupt(images, name, severity, seed=1)
        assert x.shape == images.shape
        assert x.dtype == images.dtype
        assert x.min() >= 0
        assert x.max() <= 1
        torch.testing.assert_close(255 * x, (255 * x).round(), atol=1e-4, rtol=0)
        assert name == "saturate" or not torch.equal(x, images)


def test_published_strengths():
    """One row of every table of CIFAR-10-C and ImageNet-C, by their size."""
    small, large = torch.zeros(1, 3, 32, 32), torch.zeros(1, 3, 224, 224)
    for name, severity, cifar, imagenet in (
        ("gaussian-noise", 4, 0.09, 0.26),
        ("shot-noise", 2, 250, 25),
        ("impulse-noise", 3, 0.03, 0.09),
        ("defocus-blur", 5, (1.5, 0.1), (10, 0.5)),
        ("glass-blur", 4, (0.25, 1, 2), (1.1, 3, 2)),
        ("motion-blur", 1, (6, 1), (10, 3)),
        ("zoom-blur", 3, (1.16, 0.01), (1.21, 0.02)),
        ("snow", 3, (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9), (0.55, 0.3, 4, 0.9, 12, 8, 0.7)),
        ("frost", 5, (0.75, 0.45), (0.6, 0.75)),
        ("fog", 5, (1.5, 1.75), (3, 1.4)),
        ("brightness", 5, 0.3, 0.5),
        ("contrast", 1, 0.75, 0.4),
        ("elastic-transform", 4, (0.1, 0.04, 0.05), (244 * 0.07 / 224, 2.44 / 224, 4.88 / 224)),
        ("pixelate", 2, 0.9, 0.5),
        ("jpeg", 3, 58, 15),
    ):
        assert CORRUPTIONS[name].strength(severity, small) == cifar
        assert CORRUPTIONS[name].strength(severity, large) == pytest.approx(imagenet)
    assert len(PUBLISHED) == 15
    assert set(PUBLISHED) < set(CORRUPTIONS)


@pytest.fixture(scope="module")
def photographs():
    path = Path(os.environ.get("LEANBAYES_DATA", ""), "cifar-10", "test", "000.webp")
    if not path.is_file():
        pytest.skip("needs CIFAR-10 in LEANBAYES_DATA")
    return torch.from_numpy(read_column_of_images(path)[:200]).float() / 255


@pytest.mark.parametrize("name", PUBLISHED)
def test_photographs_suffer_more_at_higher_severities(photographs, name):
    images = photographs
    suffered = damage(images, name)
    assert min(suffered) > 0
    assert max(suffered) < 0.1
    grows = all(later >= 0.999 * before for before, later in itertools.pairwise(suffered))
    assert grows == (name not in UNEVEN)  # motion blur of severities 3 and 4 is all but the same


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_seed_alone_decides(name):
    images = smooth_images((2, 3, 16, 16))
    torch.manual_seed(0)
    first = corrupt(images, name, 3, seed=1)
    torch.manual_seed(1)
    assert torch.equal(first, corrupt(images, name, 3, seed=1))
    assert torch.equal(first, corrupt(images, name, 3, seed=2)) == (name in FIXED)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_an_image_is_damaged_alike_in_every_batch(name):
    images = smooth_images((7, 3, 20, 24))
    whole = corrupt(images, name, 4, seed=5)
    some = torch.tensor([5, 0, 2])
    torch.testing.assert_close(corrupt(images[some], name, 4, seed=5, index=some), whole[some])
    alike = corrupt(images[:1].expand(2, -1, -1, -1), name, 4, seed=5)
    assert torch.equal(alike[0], alike[1]) == (name in FIXED)  # two images, two draws


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_other_types_are_damaged_alike(name):
    images = smooth_images((2, 3, 16, 16)).bfloat16().float()
    wide = corrupt(images.double(), name, 2, seed=5)
    assert (corrupt(images, name, 2, seed=5) - wide).abs().mean() < 2e-3
    half = corrupt(images.bfloat16(), name, 2, seed=5)
    assert half.dtype == torch.bfloat16
    assert (half.float() - wide).abs().mean() < 2e-2


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_no_images_are_no_images(name):
    assert corrupt(torch.rand(0, 3, 8, 8), name, 1).shape == (0, 3, 8, 8)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_large_images_can_be_damaged(name):
    images = smooth_images((1, 3, 32, 32)).repeat_interleave(3, -1).repeat_interleave(3, -2)
    images = images[..., :80, :72]
    for severity in (1, 5):
        x = corrupt(images, name, severity)
        assert x.isfinite().all()
        assert not torch.equal(x, images)


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize(
    ("name", "variance"),
    [
        ("gaussian-noise", lambda c: c**2),
        ("speckle-noise", lambda c: (GRAY * c) ** 2),
        ("shot-noise", lambda c: GRAY / c),  # a Poisson variable over its unit
        ("impulse-noise", lambda c: GRAY**2 * c),  # half a step up or down, so often
    ],
)
def test_noise_has_its_mean_and_variance(name, variance, severity):
    strength = CORRUPTIONS[name].strengths[severity - 1]
    gray = torch.full((8, 1, 60, 60), GRAY, dtype=torch.float64)
    noise = (
        corrupt(gray, name, severity, seed=torch.initial_seed(), truncate=False) - GRAY
    ).flatten()
    assert_mean(noise, 0.0, f"mean of {name}")
    assert_mean(noise.square(), variance(strength), f"variance of {name}")


@pytest.mark.parametrize("severity", SEVERITIES)
def test_defocus_is_a_soft_disk_by_scipy(severity):
    radius, softness = CORRUPTIONS["defocus-blur"].strengths[severity - 1]
    offsets = np.arange(-8, 9)
    disk = (np.hypot(*np.meshgrid(offsets, offsets)) <= radius).astype(float)
    disk = ndimage.gaussian_filter(disk / disk.sum(), softness, radius=1)
    images = torch.rand(2, 3, 20, 24, dtype=torch.float64)
    expected = ndimage.convolve(images.numpy(), disk[None, None], mode="mirror")
    found = corrupt(images, "defocus-blur", severity, truncate=False)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_zoom_averages_enlarged_images_by_scipy(severity):
    stops = (1.06, 1.11, 1.16, 1.21, 1.26)
    factors = np.arange(1, stops[severity - 1], 0.01)
    image = np.random.default_rng(torch.initial_seed()).uniform(size=(32, 32))
    total = image.copy()
    for factor in factors:
        part = int(np.ceil(32 / factor))
        start = (32 - part) // 2
        large = ndimage.zoom(image[start : start + part, start : start + part], factor, order=1)
        trim = (len(large) - 32) // 2
        total += large[trim : trim + 32, trim : trim + 32]
    found = corrupt(torch.from_numpy(image)[None, None], "zoom-blur", severity, truncate=False)
    np.testing.assert_allclose(found[0, 0].numpy(), total / (len(factors) + 1), atol=1e-9)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_brightness_is_added_to_the_value_of_a_color(severity):
    images = torch.rand(3, 3, 8, 8, dtype=torch.float64)
    images[0, :, 0, 0] = 0.0  # black has no hue
    hsv = matplotlib.colors.rgb_to_hsv(images.movedim(1, -1).numpy())
    hsv[..., 2] = np.minimum(hsv[..., 2] + CORRUPTIONS["brightness"].strengths[severity - 1], 1)
    expected = np.moveaxis(matplotlib.colors.hsv_to_rgb(hsv), -1, 1)
    found = corrupt(images, "brightness", severity, truncate=False)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def as_pillow(images):
    bytes_ = (255 * images).round().byte().movedim(1, -1).numpy()
    return [Image.fromarray(image) for image in bytes_]


def as_tensor(pictures):
    stacked = np.stack([np.asarray(picture) for picture in pictures])
    return torch.from_numpy(stacked).movedim(-1, 1) / 255


@pytest.mark.parametrize("severity", SEVERITIES)
def test_pixels_are_merged_as_pillow_does(severity):
    images = torch.rand(3, 3, 32, 32).mul(255).round() / 255
    side = int(32 * CORRUPTIONS["pixelate"].strengths[severity - 1])
    small = [p.resize((side, side), Image.Resampling.BOX) for p in as_pillow(images)]
    expected = as_tensor([p.resize((32, 32), Image.Resampling.BOX) for p in small])
    torch.testing.assert_close(corrupt(images, "pixelate", severity), expected)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_jpeg_is_that_of_pillow(severity, tmp_path):
    images = torch.rand(2, 3, 16, 24).mul(255).round() / 255
    read = []
    for number, picture in enumerate(as_pillow(images)):
        path = tmp_path / f"{number}.jpg"
        picture.save(path, quality=CORRUPTIONS["jpeg"].strengths[severity - 1])
        read.append(Image.open(path))
    torch.testing.assert_close(corrupt(images, "jpeg", severity), as_tensor(read))


def test_jpeg_needs_gray_or_color():
    with pytest.raises(ValueError, match="1 or 3 channels, and images have 2"):
        corrupt(torch.rand(1, 2, 8, 8), "jpeg", 1)


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_small_images_can_be_damaged(name, severity):
    """The embedded digits have 8 pixels a side."""
    assert corrupt(torch.rand(2, 1, 8, 8), name, severity).isfinite().all()


def test_a_corruption_is_one_function():
    @register_corruption("dark", (0.9, 0.8, 0.7, 0.6, 0.5))
    def dark(x, share, noise):
        return share * x

    try:
        torch.testing.assert_close(corrupt(torch.ones(1, 1, 2, 2), "dark", 2).mean().item(), 0.8)
        with pytest.raises(ValueError, match="there is a corruption 'dark' already"):
            register_corruption("dark", (1, 2, 3, 4, 5))(dark)
    finally:
        CORRUPTIONS.unregister("dark")
    with pytest.raises(ValueError, match="corruption 'dark' is unknown"):
        corrupt(torch.ones(1, 1, 2, 2), "dark", 2)
    with pytest.raises(ValueError, match="has 2 strengths; give five"):
        register_corruption("dark", (0.1, 0.2))


def test_the_page_has_what_was_measured():
    result = json.loads(corruptions.RESULTS.read_text(encoding="utf-8"))
    assert set(result["corruptions"]) == set(CORRUPTIONS)
    page = corruptions.PAGE.read_text(encoding="utf-8")
    assert f"{corruptions.BEGIN}\n{corruptions.table(result)}\n{corruptions.END}" in page
    growing = {
        n for n, r in result["corruptions"].items() if corruptions.is_growing(r["squared_error"])
    }
    assert set(PUBLISHED) - growing == UNEVEN - {"saturate"}


IMAGES = torch.rand(3, 1, 8, 8)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: corrupt(IMAGES, "fog", 6), "severity is 6; it is a whole number from 1 to 5"),
        (lambda: corrupt(IMAGES, "fogg", 1), "corruption 'fogg' is unknown; did you mean 'fog'"),
        (lambda: corrupt(torch.rand(5), "fog", 1), r"images have shape \(5,\)"),
        (lambda: corrupt(IMAGES.byte(), "fog", 1), "give floats"),
        (lambda: corrupt(255 * IMAGES, "fog", 1), "images must be from 0 to 1, got .* to 25"),
        (lambda: corrupt(IMAGES - 1, "blur", 1), "got -.*. Undo their scaling first"),
        (lambda: corrupt(IMAGES * torch.nan, "fog", 1), "got nan to nan"),
        (lambda: corrupt(IMAGES, "fog", 1, index=torch.arange(2)), "for each of 3 images"),
        (lambda: corrupt(IMAGES, "fog", 1, index=torch.rand(3)), "one whole number"),
    ],
)
def test_mistakes_get_one_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_noise_has_its_scale_and_depends_on_the_seed():
    gray = torch.full((16, 1, 64, 64), 0.5)
    noise = corrupt(gray, "gaussian-noise", 5, seed=1) - 0.5
    assert float(noise.std()) == pytest.approx(0.10, rel=0.02)
    assert not torch.equal(noise, corrupt(gray, "gaussian-noise", 5, seed=2) - 0.5)


def test_blur_is_that_of_scipy():
    images = torch.rand(2, 1, 12, 12, dtype=torch.float64)
    expected = gaussian_filter(images.numpy(), (0, 0, 1.0, 1.0), mode="nearest", truncate=4.0)
    np.testing.assert_allclose(
        corrupt(images, "blur", 5, truncate=False).numpy(), expected, atol=1e-9
    )


def test_contrast_keeps_the_mean_and_brightness_adds():
    images = 0.4 + 0.2 * torch.rand(2, 3, 8, 8)
    low = corrupt(images, "contrast", 4, truncate=False)
    torch.testing.assert_close(low.mean((-2, -1)), images.mean((-2, -1)))
    torch.testing.assert_close(low.std((-2, -1)), 0.3 * images.std((-2, -1)))
    gray = images[:, :1]
    torch.testing.assert_close(corrupt(gray, "brightness", 3, truncate=False), gray + 0.15)


def test_pictures_of_a_data_set_are_damaged_before_scaling():
    test = load_dataset("digits", scaling="symmetric").test[:10]
    damaged = corrupt_examples(test, "brightness", 5)
    bytes_ = ((test.stored / 16 + 0.3).clamp(0, 1) * 255 + 1e-3).floor()
    expected = bytes_ / 255 * 2 - 1
    torch.testing.assert_close(damaged.x, expected)
    assert torch.equal(damaged.y, test.y)


@pytest.mark.parametrize(
    ("name", "severity", "sentence"),
    [("blurr", 1, "did you mean 'blur'"), ("blur", 0, "from 1 to 5"), ("blur", 6, "from 1 to 5")],
)
def test_unknown_damage_is_refused(name, severity, sentence):
    with pytest.raises(ValueError, match=sentence):
        corrupt(torch.rand(1, 1, 4, 4), name, severity)
    with pytest.raises(ValueError, match="only images can be corrupted"):
        corrupt_examples(Examples(torch.rand(3, 2)), "blur", 1)
