"""What an auto-encoder makes of images: reconstructions, samples and walks, and sheets of them."""

import io

import torch
from torch import Tensor

from leanbayes.lab.data.extras import extra
from research.papers.matrix_normal.vae.network import Vae

_GAP = 1
_PAPER = 255


@torch.no_grad()
def _decoded(model: Vae, z: Tensor) -> Tensor:
    """Return the probabilities of pixels, ``[…, pixels]``, of latent vectors ``[…, |z|]``."""
    logits: Tensor = model.decoder(z.flatten(0, -2))
    return logits.sigmoid().unflatten(0, z.shape[:-1])


@torch.no_grad()
def reconstructions(model: Vae, x: Tensor) -> Tensor:
    """Return images and what comes back of them by the means of their latent vectors.

    Returns:
        The images and the probabilities of their pixels, ``[2, images, pixels]``.
    """
    return torch.stack([x.flatten(1), _decoded(model, model.posterior(x).mean)])


def prior_samples(model: Vae, rows: int, columns: int, seed: int = 0) -> Tensor:
    """Probabilities of pixels, ``[rows, columns, pixels]``, of latent vectors from the prior."""
    generator = torch.Generator().manual_seed(seed)
    return _decoded(model, torch.randn(rows, columns, model.latent.size, generator=generator))


@torch.no_grad()
def latent_walk(model: Vae, starts: Tensor, ends: Tensor, steps: int) -> Tensor:
    """Straight walks through the latent space, from the mean of one image to that of another.

    Returns:
        Probabilities of pixels, ``[walks, steps, pixels]``.
    """
    first, last = (model.posterior(x).mean.unsqueeze(1) for x in (starts, ends))
    share = torch.linspace(0, 1, steps).unsqueeze(-1)
    return _decoded(model, first + share * (last - first))


def sheet(images: Tensor, shape: tuple[int, int], *, zoom: int = 2) -> bytes:
    r"""Return images in rows and columns as one gray PNG file, ink on white, with small gaps.

    Example:
        >>> sheet(torch.rand(2, 3, 20), (4, 5))[:4]
        b'\x89PNG'
    """
    height, width = shape
    rows, columns = images.shape[:2]
    paper = torch.full((rows, height + _GAP, columns, width + _GAP), _PAPER, dtype=torch.uint8)
    ink = _PAPER - (images.clamp(0, 1) * _PAPER).round().to(torch.uint8)
    paper[:, :height, :, :width] = ink.unflatten(-1, shape).transpose(1, 2)
    flat = paper.flatten(2).flatten(0, 1)[:-_GAP, :-_GAP]
    pixels = flat.repeat_interleave(zoom, 0).repeat_interleave(zoom, 1)
    image = extra("PIL.Image", "pillow", "pictures of auto-encoders")
    buffer = io.BytesIO()
    image.fromarray(pixels.numpy()).save(buffer, "png", optimize=True)
    return buffer.getvalue()
