"""Damaged images against scipy, matplotlib, Pillow and closed forms of the noise."""

import matplotlib.colors
import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from leanbayes.lab.corrupt import CORRUPTIONS, SEVERITIES, corrupt, register_corruption
from leanbayes.testing import assert_mean

GREY = 0.5
RANDOM = ["gaussian-noise", "shot-noise", "impulse-noise", "speckle-noise"]


def smooth_images(shape=(6, 3, 32, 32)):
    """Colours that change slowly, as in photographs."""
    images = torch.nn.functional.avg_pool2d(torch.rand(*shape[:2], 40, 40), 9, 1)
    return (2 * images - 0.5).clamp(0, 1)


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("channels", [1, 3])
def test_damage_grows_with_its_severity(name, channels):
    images = smooth_images((6, channels, 32, 32))
    damaged = [corrupt(images, name, severity, seed=1) for severity in SEVERITIES]
    for x in damaged:
        assert x.shape == images.shape
        assert x.dtype == images.dtype
        assert x.min() >= 0
        assert x.max() <= 1
    damage = [float((x - images).square().mean()) for x in damaged]
    if name == "pixelate":
        del damage[1:3]  # 30, 28 and 27 pixels instead of 32 damage about as much
    assert damage == sorted(damage)
    assert 0 < damage[0] < damage[-1] < 0.2


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_seed_alone_decides(name):
    images = smooth_images((2, 3, 16, 16))
    torch.manual_seed(0)
    first = corrupt(images, name, 3, seed=1)
    torch.manual_seed(1)
    assert torch.equal(first, corrupt(images, name, 3, seed=1))
    assert torch.equal(first, corrupt(images, name, 3, seed=2)) == (name not in RANDOM)


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize(
    ("name", "variance"),
    [
        ("gaussian-noise", lambda c: c**2),
        ("speckle-noise", lambda c: (GREY * c) ** 2),
        ("shot-noise", lambda c: GREY / c),  # a Poisson variable over its unit
        ("impulse-noise", lambda c: GREY**2 * c),  # half a step up or down, so often
    ],
)
def test_noise_has_its_mean_and_variance(name, variance, severity):
    strength = CORRUPTIONS[name].strengths[severity - 1]
    grey = torch.full((8, 1, 64, 64), GREY, dtype=torch.float64)
    noise = (corrupt(grey, name, severity, seed=torch.initial_seed()) - GREY).flatten()
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
    found = corrupt(images, "defocus-blur", severity)
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
    found = corrupt(torch.from_numpy(image)[None, None], "zoom-blur", severity)
    np.testing.assert_allclose(found[0, 0].numpy(), total / (len(factors) + 1), atol=1e-9)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_brightness_is_added_to_the_value_of_a_colour(severity):
    images = torch.rand(3, 3, 8, 8, dtype=torch.float64)
    images[0, :, 0, 0] = 0.0  # black has no hue
    hsv = matplotlib.colors.rgb_to_hsv(images.movedim(1, -1).numpy())
    hsv[..., 2] = np.minimum(hsv[..., 2] + CORRUPTIONS["brightness"].strengths[severity - 1], 1)
    expected = np.moveaxis(matplotlib.colors.hsv_to_rgb(hsv), -1, 1)
    found = corrupt(images, "brightness", severity)
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
    found = corrupt(images, "pixelate", severity)
    assert float((found - expected).abs().max()) < 1.001 / 255  # Pillow rounds to bytes twice


@pytest.mark.parametrize("severity", SEVERITIES)
def test_jpeg_is_that_of_pillow(severity, tmp_path):
    images = torch.rand(2, 3, 16, 24).mul(255).round() / 255
    read = []
    for number, picture in enumerate(as_pillow(images)):
        path = tmp_path / f"{number}.jpg"
        picture.save(path, quality=CORRUPTIONS["jpeg"].strengths[severity - 1])
        read.append(Image.open(path))
    torch.testing.assert_close(corrupt(images, "jpeg", severity), as_tensor(read))


def test_jpeg_needs_grey_or_colour():
    with pytest.raises(ValueError, match="1 or 3 channels, and images have 2"):
        corrupt(torch.rand(1, 2, 8, 8), "jpeg", 1)


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_small_images_can_be_damaged(name, severity):
    """The embedded digits have 8 pixels a side."""
    assert corrupt(torch.rand(2, 1, 8, 8), name, severity).isfinite().all()


def test_a_corruption_is_one_function():
    @register_corruption("dark", (0.9, 0.8, 0.7, 0.6, 0.5))
    def dark(x, share, generator):
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
