"""Corruptions with noise, given the same noise, against loops, scipy, matplotlib and Pillow."""

import math
from importlib import resources

import matplotlib.colors
import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from research.corruptions import CORRUPTIONS, SEVERITIES, Noise, corrupt
from research.corruptions.blurs import moved
from research.corruptions.borders import filtered, padded, smoothed
from research.corruptions.weather import plasma

SEED = 3
BYTE = 1.0001 / 255


def noise_of(name, count):
    """The noise that ``corrupt`` gives to images 0, 1, 2 …"""
    return Noise(torch.arange(count), f"{SEED}/{name}", torch.empty(0, dtype=torch.float64))


def bytes_like(*shape):
    return torch.randint(256, shape).double() / 255


def damaged(images, name, severity):
    return corrupt(images, name, severity, seed=SEED, truncate=False).numpy()


@pytest.mark.parametrize(
    ("border", "theirs"), [("edge", "edge"), ("mirror", "reflect"), ("double", "symmetric")]
)
def test_borders_are_those_of_numpy(border, theirs):
    image = torch.rand(1, 1, 4, 3)
    expected = np.pad(image[0, 0].numpy(), ((7, 7), (5, 5)), mode=theirs)
    np.testing.assert_array_equal(padded(image, 7, 5, border)[0, 0].numpy(), expected)


@pytest.mark.parametrize(
    ("border", "theirs"), [("edge", "nearest"), ("mirror", "mirror"), ("double", "reflect")]
)
@pytest.mark.parametrize("scale", [0.05, 0.4, 1.3, 9.0])
def test_gaussian_filters_are_those_of_scipy(border, theirs, scale):
    image = torch.rand(2, 1, 9, 7, dtype=torch.float64)
    expected = ndimage.gaussian_filter(image.numpy(), (0, 0, scale, scale), mode=theirs)
    np.testing.assert_allclose(smoothed(image, scale, border).numpy(), expected, atol=1e-12)


def test_any_kernel_is_that_of_scipy():
    image, kernel = torch.rand(2, 3, 6, 5).double(), torch.rand(5, 3).double()
    kernel = kernel + kernel.flip(0, 1)
    expected = ndimage.convolve(image.numpy(), kernel[None, None].numpy(), mode="mirror")
    np.testing.assert_allclose(filtered(image, kernel, "mirror").numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("radius", [8, 10])
def test_large_disks_are_softened_on_their_grid(radius):
    """From a radius of 8 on, the published grid cuts the softened edge."""
    severity = 4 if radius == 8 else 5
    offsets = np.arange(-radius, radius + 1)
    disk = (np.hypot(*np.meshgrid(offsets, offsets)) <= radius).astype(float)
    soft = 1 if radius == 8 else 2
    disk = ndimage.gaussian_filter(disk / disk.sum(), 0.5, radius=soft, mode="mirror")
    images = torch.rand(1, 1, 66, 70, dtype=torch.float64)
    expected = ndimage.convolve(images.numpy(), disk[None, None], mode="mirror")
    found = corrupt(images, "defocus-blur", severity, truncate=False).numpy()
    np.testing.assert_allclose(found, expected.clip(0, 1), atol=1e-12)


def copied_neighbors(image, steps, reach):
    """The published loop: rows and columns from the last on, each a copy of a neighbor."""
    image = image.copy()
    height, width = image.shape[-2:]
    for row in range(height - reach, reach, -1):
        for column in range(width - reach, reach, -1):
            down, right = steps[:, row, column]
            image[:, row, column] = image[:, row + down, column + right]
    return image


@pytest.mark.parametrize(("sides", "severity"), [((32, 32), s) for s in SEVERITIES] + [((9, 7), 4)])
def test_glass_copies_neighbors_in_turn(sides, severity):
    check_glass(sides, severity, CORRUPTIONS["glass-blur"].strengths)


@pytest.mark.parametrize("severity", [2, 5])
def test_glass_of_large_images_follows_copies_of_copies(severity):
    check_glass((65, 66), severity, CORRUPTIONS["glass-blur"].large)


def check_glass(sides, severity, strengths):
    scale, reach, rounds = strengths[severity - 1]
    images, noise = bytes_like(2, 3, *sides), noise_of("glass-blur", 2)
    blurred = ndimage.gaussian_filter(images.numpy(), (0, 0, scale, scale), mode="nearest")
    current = np.floor(blurred * 255 + 1e-3) / 255
    for _ in range(rounds):
        steps = noise.whole(2 * reach, 2, *sides).numpy() - reach
        current = np.stack(
            [copied_neighbors(i, s, reach) for i, s in zip(current, steps, strict=True)]
        )
    expected = ndimage.gaussian_filter(current, (0, 0, scale, scale), mode="nearest")
    np.testing.assert_allclose(damaged(images, "glass-blur", severity), expected, atol=1e-9)


def moved_image(image, radius, scale, degrees):
    """A weighted sum of shifted images, whose border is repeated."""
    weights = np.exp(-0.5 * (np.arange(2 * radius + 1) / scale) ** 2)
    weights /= weights.sum()
    angle, total = math.radians(degrees), np.zeros_like(image)
    for step, weight in enumerate(weights):
        right, down = (-math.ceil(step * f(angle) - 0.5) for f in (math.cos, math.sin))
        total += weight * ndimage.shift(image, (0, down, right), order=0, mode="nearest")
    return np.rint(total * 255) / 255


@pytest.mark.parametrize("severity", SEVERITIES)
def test_motion_is_a_sum_of_shifts(severity):
    images = bytes_like(3, 3, 32, 20)
    degrees = noise_of("motion-blur", 3).uniform(low=-45.0, high=45.0)
    assert degrees.abs().max() < 45
    strength = CORRUPTIONS["motion-blur"].strengths[severity - 1]
    expected = [
        moved_image(image, *strength, angle)
        for image, angle in zip(images.numpy(), degrees.tolist(), strict=True)
    ]
    np.testing.assert_allclose(damaged(images, "motion-blur", severity), expected, atol=BYTE)


def test_motion_to_the_right_takes_from_the_right():
    image = torch.zeros(1, 1, 3, 8)
    image[..., 1, 4] = 1.0
    row = moved(image, 2, 1.0, torch.zeros(1))[0, 0, 1]
    assert row[4] > row[3] > row[2] > 0
    assert row[5:].sum() == 0


def middle_enlarged(layer, factor):
    side = len(layer)
    part = math.ceil(side / factor)
    start = (side - part) // 2
    large = ndimage.zoom(layer[start : start + part, start : start + part], factor, order=1)
    trim = (len(large) - side) // 2
    return large[trim : trim + side, trim : trim + side]


@pytest.mark.parametrize("severity", SEVERITIES)
def test_snow_is_a_blurred_layer_and_a_paler_image(severity):
    loc, scale, zoom, threshold, radius, spread, share = CORRUPTIONS["snow"].strengths[severity - 1]
    images, noise = bytes_like(2, 3, 32, 32), noise_of("snow", 2)
    flakes = noise.normal(1, 32, 32)[:, 0].numpy()
    directions = noise.uniform(low=-135.0, high=-45.0).tolist()
    for image, flake, angle, found in zip(
        images.numpy(), flakes, directions, damaged(images, "snow", severity), strict=True
    ):
        layer = middle_enlarged(loc + scale * flake, zoom)
        layer[layer < threshold] = 0
        layer = np.floor(layer.clip(0, 1) * 255 + 1e-3) / 255
        layer = moved_image(layer[None], radius, spread, angle)
        gray = np.tensordot([0.299, 0.587, 0.114], image, 1)
        x = share * image + (1 - share) * np.maximum(image, 1.5 * gray + 0.5)
        expected = (x + layer + np.rot90(layer, 2, (1, 2))).clip(0, 1)
        np.testing.assert_allclose(found, expected, atol=2 * BYTE)
        assert np.abs(found - expected).mean() < 1e-5


def test_frost_is_a_piece_of_a_photograph():
    """Small images lie below every fifth pixel of one of five photographs, as published."""
    images, noise = bytes_like(12, 3, 32, 32), noise_of("frost", 12)
    numbers, places = noise.whole(5).tolist(), noise.uniform(2)
    assert len(set(numbers)) > 1
    for image, number, place, found in zip(
        images.numpy(), numbers, places, damaged(images, "frost", 4), strict=True
    ):
        folder = resources.files("torch_uncertainty_assets.frost")
        with folder.joinpath(f"frost{number + 1}.jpg").open("rb") as file:
            photograph = np.asarray(Image.open(file)) / 255
        rows, columns = (round(0.2 * side) for side in photograph.shape[:2])
        small = photograph[2::5, 2::5]
        assert small.shape == (rows, columns, 3)  # what OpenCV makes of a factor of 0.2
        top, left = (int(p * (n - 32)) for p, n in zip(place, (rows, columns), strict=True))
        piece = np.moveaxis(small[top : top + 32, left : left + 32], -1, 0)
        np.testing.assert_allclose(found, (0.85 * image + 0.4 * piece).clip(0, 1), atol=1e-6)


@pytest.mark.parametrize("side", [28, 48, 64, 70, 340])
def test_frost_covers_images_of_every_size(side):
    gray = torch.full((3, 1, side, side), 0.2)
    frozen = corrupt(gray, "frost", 3)
    assert frozen.shape == gray.shape
    assert frozen.std() > 0.01


def one_cloud(wobble, decay):
    """Midpoint displacement, one point after another."""
    side = len(wobble)
    cloud, step, size = np.zeros((side, side)), side, 100.0
    while step > 1:
        half = step // 2
        for row in range(half, side, step):
            for column in range(half, side, step):
                around = [(a, b) for a in (-half, half) for b in (-half, half)]
                set_middle(cloud, wobble, row, column, around, size)
        for row in range(0, side, half):
            for column in range((row + half) % step, side, step):
                around = [(-half, 0), (half, 0), (0, -half), (0, half)]
                set_middle(cloud, wobble, row, column, around, size)
        step, size = half, size / decay
    cloud -= cloud.min()
    return cloud / cloud.max()


def set_middle(cloud, wobble, row, column, around, size):
    side = len(cloud)
    neighbors = [cloud[(row + a) % side, (column + b) % side] for a, b in around]
    cloud[row, column] = np.mean(neighbors) + size * size * wobble[row, column]


@pytest.mark.parametrize("side", [2, 8, 32])
def test_clouds_are_displaced_midpoints(side):
    wobble = 2 * torch.rand(2, side, side, dtype=torch.float64) - 1
    expected = [one_cloud(each, 1.75) for each in wobble.numpy()]
    np.testing.assert_allclose(plasma(wobble, 1.75).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_fog_is_a_cloud_as_bright_as_the_image(severity):
    thick, decay = CORRUPTIONS["fog"].strengths[severity - 1]
    images = 0.8 * bytes_like(2, 3, 28, 28)
    wobble = noise_of("fog", 2).uniform(32, 32, low=-1.0, high=1.0).numpy()
    for image, own, found in zip(
        images.numpy(), wobble, damaged(images, "fog", severity), strict=True
    ):
        foggy = image + thick * one_cloud(own, decay)[:28, :28]
        expected = (foggy * image.max() / (image.max() + thick)).clip(0, 1)
        np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_elastic_images_are_those_of_scipy(severity):
    amount, smooth, pull = (
        32 * c for c in CORRUPTIONS["elastic-transform"].strengths[severity - 1]
    )
    images, noise = bytes_like(2, 3, 32, 32), noise_of("elastic-transform", 2)
    pulls = noise.uniform(3, 2, low=-pull, high=pull).numpy()
    fields = (
        noise.uniform(2, 32, 32, low=-1.0, high=1.0).numpy() if amount else np.zeros((2, 2, 32, 32))
    )
    points = np.array([[26.0, 26.0], [26.0, 6.0], [6.0, 6.0]])  # the middle ± a third, as (x, y)
    grid = np.stack(np.meshgrid(np.arange(32.0), np.arange(32.0)), -1)  # (x, y) of every pixel
    for image, own, field, found in zip(
        images.numpy(), pulls, fields, damaged(images, "elastic-transform", severity), strict=True
    ):
        back = np.linalg.solve(np.c_[points + own, np.ones(3)], points)
        source = np.dstack([grid, np.ones((32, 32))]) @ back
        across, down = (
            amount * ndimage.gaussian_filter(f, smooth, mode="reflect", truncate=3) for f in field
        )
        for channel, result in zip(image, found, strict=True):
            pulled = ndimage.map_coordinates(
                channel, [source[..., 1], source[..., 0]], order=1, mode="mirror"
            )
            expected = ndimage.map_coordinates(
                pulled, [grid[..., 1] + down, grid[..., 0] + across], order=1, mode="reflect"
            )
            np.testing.assert_allclose(result, expected.clip(0, 1), atol=1e-9)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_saturation_is_that_of_matplotlib(severity):
    images = torch.rand(3, 3, 8, 8, dtype=torch.float64)
    images[0, :, 0] = 0.5  # gray has no hue, and black no color at all
    images[0, :, 1] = 0.0
    factor, shift = CORRUPTIONS["saturate"].strengths[severity - 1]
    hsv = matplotlib.colors.rgb_to_hsv(images.movedim(1, -1).numpy())
    hsv[..., 1] = (hsv[..., 1] * factor + shift).clip(0, 1)
    expected = np.moveaxis(matplotlib.colors.hsv_to_rgb(hsv), -1, 1)
    np.testing.assert_allclose(damaged(images, "saturate", severity), expected, atol=1e-12)


def test_without_photographs_of_frost_one_sentence(monkeypatch):
    from research.corruptions import weather

    def absent(*_):
        raise ImportError("the corruption frost needs torch-uncertainty-assets")

    monkeypatch.setattr("importlib.import_module", absent)
    weather._textures.cache_clear()
    with pytest.raises(ImportError, match=r"run: pip install 'leanbayes\[frost\]'"):
        corrupt(torch.rand(1, 3, 8, 8), "frost", 1)
