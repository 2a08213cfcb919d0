"""Pictures of auto-encoders: what they show, and sheets that can be read back."""

import io

import numpy as np
import pytest
import torch

from research.papers.matrix_normal.vae.network import Vae
from research.papers.matrix_normal.vae.pictures import (
    latent_walk,
    prior_samples,
    reconstructions,
    sheet,
)

torch.set_num_threads(1)
image = pytest.importorskip("PIL.Image")


@pytest.fixture
def model():
    return Vae("mn", (3, 2), inputs=20, hidden=(8,))


def test_reconstructions_are_decoded_means(model):
    x = torch.rand(4, 1, 4, 5).round()
    shown = reconstructions(model, x)
    assert torch.equal(shown[0], x.flatten(1))
    q = model.posterior(x)
    torch.testing.assert_close(shown[1], model.decoder(q.loc.flatten(-2)).sigmoid())


def test_samples_follow_the_prior_and_their_seed(model):
    one, same, other = (prior_samples(model, 3, 7, seed) for seed in (1, 1, 2))
    assert one.shape == (3, 7, 20)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_walk_goes_straight_from_one_image_to_the_other(model):
    x = torch.rand(4, 20).round()
    walks = latent_walk(model, x[::2], x[1::2], 5)
    assert walks.shape == (2, 5, 20)
    back = reconstructions(model, x)[1]
    torch.testing.assert_close(walks[:, 0], back[::2])
    torch.testing.assert_close(walks[:, -1], back[1::2])
    means = model.posterior(x).mean
    middle = model.decoder((means[::2] + means[1::2]) / 2).sigmoid()
    torch.testing.assert_close(walks[:, 2], middle)


def test_a_sheet_has_every_image_in_its_place():
    images = torch.randint(0, 2, (2, 3, 20)).float()
    shown = np.asarray(image.open(io.BytesIO(sheet(images, (4, 5)))))
    pixels = torch.tensor(shown)[::2, ::2]
    assert pixels.shape == (2 * 5 - 1, 3 * 6 - 1)
    for row in range(2):
        for column in range(3):
            top, left = 5 * row, 6 * column
            shown = 1 - pixels[top : top + 4, left : left + 5] / 255
            assert torch.equal(shown.flatten(), images[row, column])
    assert (pixels[4] == 255).all()
    assert (pixels[:, 5] == 255).all()
