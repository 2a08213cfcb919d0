"""Scores of several seeds on the same test images, and their standard errors."""

from __future__ import annotations

import math

from torch import Tensor

from leanbayes.metrics import Score, average, placements


def over_seeds(values: Tensor) -> Score:
    """The average of ``values [seeds, images]``, with a standard error for seeds and images alike.

    ``error² = var(means of seeds) / seeds + var(means of images) / images``: what another draw of
    seeds would change, and another draw of test images. Noise that belongs to single pairs of both
    is in either term, which errs on the safe side. One seed leaves the second term alone.

    Args:
        values: a score of every test image after training with each seed, or the difference of two
            families in it: what they have in common then cancels.

    Example:
        >>> over_seeds(torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
        1.5 ± 1.1
    """
    by_image = average(values.double().mean(0))
    by_seed = values.double().mean(1)
    spread = float(by_seed.var()) / len(by_seed) if len(by_seed) > 1 else 0.0
    return Score(by_image.value, math.sqrt(by_image.error**2 + spread))


def is_apart(difference: Score) -> bool:
    """Whether a difference is larger than two standard errors."""
    return abs(difference.value) > 2 * difference.error


def auroc_by_image(familiar: Tensor, foreign: Tensor) -> Tensor:
    """What each image adds to an AUROC; their average is the AUROC.

    An image counts as itself (how many foreign ones score above it) and as the foreign one made
    from it (how many familiar ones score below that), less the AUROC. The standard error of the
    average is then that of the AUROC over images [DeLong et al. 1988], and a paired one for the
    difference of two networks.

    Example:
        >>> auroc_by_image(torch.tensor([0.1, 0.2]), torch.tensor([0.3, 0.15]))
        tensor([1.2500, 0.2500], dtype=torch.float64)
    """
    above, below = placements(foreign, familiar), placements(-familiar, -foreign)
    return below + above - above.mean()
