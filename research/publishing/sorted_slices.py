"""Numbers of the first test images of CIFAR-100, from when these were still sorted by class.

Studies record how the data were prepared since test images of sorted files are permuted; a study
without that record took them class by class.
"""

PER_CLASS, CLASSES = 100, 100
"""Test images of each class of CIFAR-100, and its classes."""


def classes_seen(images: int, preprocessing: str | None) -> int:
    """Return how many classes of CIFAR-100 the first test images of a study have.

    Args:
        images: how many were taken.
        preprocessing: what the study recorded about the preparation of its data, if it did.

    Example:
        >>> classes_seen(2000, None), classes_seen(2000, "files sorted by class, so permuted")
        (20, 100)
    """
    return CLASSES if preprocessing else min(CLASSES, -(-images // PER_CLASS))


def slice_note(rows: str, images: int, classes: int) -> str:
    """Return what stands below a table with such numbers."""
    return (
        f"**To be run again.** {rows} of the first {images} test images of CIFAR-100, which were "
        f"sorted by class at that time: {classes} of {CLASSES} classes. The loader permutes test "
        "images since."
    )
