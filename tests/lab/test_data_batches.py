"""Batches: their order, resuming, ranks; and augmentation of whole batches."""

import pytest
import torch

from leanbayes.lab.data import Batches, Examples, Flip, PadCropFlip, Scaling
from leanbayes.testing import assert_mean


@pytest.fixture
def seed(request):
    return request.config.getoption("--seed")


@pytest.fixture
def images():
    """23 byte images, each with its number as target."""
    pixels = torch.randint(0, 256, (23, 3, 8, 8), dtype=torch.uint8)
    return Examples(pixels, torch.arange(23), Scaling(scale=255.0))


def generator(seed):
    return torch.Generator().manual_seed(seed)


def test_an_epoch_has_every_example_once(images, seed):
    batches = Batches(images, 5, seed=seed)
    drawn = list(batches.epoch(2))
    assert [len(x) for x, _ in drawn] == [5, 5, 5, 5, 3]
    assert len(batches) == 5
    numbers = torch.cat([y for _, y in drawn])
    assert len(set(numbers.tolist())) == 23
    assert torch.equal(torch.cat([x for x, _ in drawn]), images.x[numbers])


def test_the_order_depends_on_seed_and_epoch_alone(images, seed):
    state = torch.get_rng_state()
    first = Batches(images, 5, seed=seed).order(3)
    torch.rand(10)
    list(Batches(images, 7, seed=seed).epoch(1))
    assert torch.equal(Batches(images, 4, seed=seed).order(3), first)
    orders = [Batches(images, 5, seed=s).order(e) for s in range(3) for e in range(3)]
    assert len({tuple(order.tolist()) for order in orders}) == 9
    torch.set_rng_state(state)
    list(Batches(images, 5, seed=seed, augment=Flip()).epoch(0))
    assert torch.equal(torch.get_rng_state(), state)  # the global generator was not touched


def test_neighboring_epochs_are_unrelated():
    numbers = Examples(torch.arange(2000))
    epochs = torch.stack([Batches(numbers, 10, seed=0).order(e) for e in range(200)]).double()
    centered = epochs - 999.5
    products = (centered[1:] * centered[:-1]).mean(1) / (2000**2 / 12)
    assert_mean(products, 0.0, "correlation of neighboring epochs")


def test_the_first_example_is_uniform():
    numbers = Examples(torch.arange(8))
    first = torch.stack([Batches(numbers, 8, seed=e).order(0)[0] for e in range(4000)])
    assert_mean(torch.nn.functional.one_hot(first, 8).double(), 1 / 8, "share of the first place")


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_each_batch(images, seed, ranks):
    alone = Batches(images, 6, seed=seed)
    parts = [Batches(images, 6, seed=seed, rank=r, ranks=ranks) for r in range(ranks)]
    assert len({len(part) for part in parts}) == 1
    for one, *split in zip(alone.epoch(1), *(part.epoch(1) for part in parts), strict=True):
        sizes = {len(y) for _, y in split}
        assert len(sizes) == 1  # every rank has the same number of examples
        together = sorted(torch.cat([y for _, y in split]).tolist())
        left_out = len(one[1]) % ranks
        assert set(together) <= set(one[1].tolist())
        assert len(together) == len(set(together)) == len(one[1]) - left_out


def test_ranks_are_augmented_differently(images, seed):
    same = Examples(images.stored[:1].expand(8, -1, -1, -1), torch.zeros(8), images.scaling)
    drawn = [
        next(iter(Batches(same, 8, seed=seed, augment=PadCropFlip(3), rank=r, ranks=2).epoch(0)))[0]
        for r in range(2)
    ]
    assert not torch.equal(drawn[0], drawn[1])


def test_evaluation_goes_in_order(images):
    drawn = list(Batches(images, 5, augment=Flip()).in_order())
    assert torch.equal(torch.cat([x for x, _ in drawn]), images.x)
    assert torch.equal(torch.cat([y for _, y in drawn]), torch.arange(23))


def test_inputs_that_are_their_own_targets_stay_so(images, seed):
    density = Examples(images.stored, None, images.scaling)
    batches = Batches(density, 5, seed=seed, augment=PadCropFlip(2))
    assert all(torch.equal(x, y) for x, y in batches.epoch(0))
    assert all(torch.equal(x, y) for x, y in batches.in_order())


def test_batches_do_not_share_memory_with_the_data(images):
    before = images.stored.clone()
    finished = Examples(images.x, images.targets)
    kept = finished.x.clone()
    for examples in (images, finished):
        for x, _ in Batches(examples, 5).epoch(0):
            x.zero_()
    assert torch.equal(images.stored, before)
    assert torch.equal(finished.x, kept)


@pytest.mark.parametrize("options", [{"size": 0}, {"size": 4, "ranks": 3}, {"size": 4, "rank": 1}])
def test_impossible_batches_are_refused(images, options):
    with pytest.raises(ValueError, match="positive multiple of the number of ranks"):
        Batches(images, **options)


def test_too_few_examples_are_refused(images):
    with pytest.raises(ValueError, match="0 examples do not fill"):
        Batches(images[:0], 24)


# augmentation


def explicit_crops(x, pad, fill):
    """Every crop and its mirror image, one by one: [offset, batch, channels, height, width]."""
    batch, channels, height, width = x.shape
    fill = torch.as_tensor(fill, dtype=x.dtype).expand(channels)
    padded = fill.view(1, -1, 1, 1).repeat(batch, 1, height + 2 * pad, width + 2 * pad)
    padded[:, :, pad : pad + height, pad : pad + width] = x
    crops = [
        padded[:, :, i : i + height, j : j + width]
        for i in range(2 * pad + 1)
        for j in range(2 * pad + 1)
    ]
    return torch.stack([*crops, *(crop.flip(-1) for crop in crops)])


def which(crops, drawn):
    """For each image, which of the crops was drawn."""
    equal = (crops == drawn).flatten(2).all(2)
    assert (equal.sum(0) == 1).all(), "a drawn image is none of the possible ones"
    return equal.int().argmax(0)


@pytest.mark.parametrize("fill", [0.0, -1.5, (0.5, -0.25, 2.0)])
@pytest.mark.parametrize("pad", [1, 2, 4])
def test_each_image_is_one_of_its_crops(seed, pad, fill):
    x = torch.randn(64, 3, 6, 5)
    drawn = PadCropFlip(pad, fill)(x, generator(seed))
    assert len(set(which(explicit_crops(x, pad, fill), drawn).tolist())) > 5


def test_crops_and_flips_are_uniform(seed):
    x = torch.randn(1, 1, 5, 5)
    drawn = PadCropFlip(1)(x.expand(9000, -1, -1, -1), generator(seed))
    places = which(explicit_crops(x, 1, 0.0), drawn)
    assert_mean(torch.nn.functional.one_hot(places, 18).double(), 1 / 18, "share of a crop")


def test_a_shared_draw_changes_all_images_alike(seed):
    x = torch.randn(16, 3, 6, 6)
    drawn = [PadCropFlip(4, shared=True)(x, generator(seed + i)) for i in range(8)]
    places = [which(explicit_crops(x, 4, 0.0), batch).unique().tolist() for batch in drawn]
    assert all(len(place) == 1 for place in places)
    assert len({place[0] for place in places}) > 1


def test_flips(seed):
    x = torch.randn(200, 3, 4, 4)
    drawn = Flip()(x, generator(seed))
    mirrored = (drawn == x.flip(-1)).flatten(1).all(1)
    kept = (drawn == x).flatten(1).all(1)
    assert torch.equal(mirrored, ~kept)
    assert_mean(mirrored.double(), 0.5, "share of mirrored images")
    assert torch.equal(PadCropFlip(0, flip=False)(x, generator(seed)), x)
