"""Data sets by name, checked and in memory; batches of them without Python per example.

``load_dataset("mnist")`` searches the folders in ``LEANBAYES_DATA``, then the data folders of
system packages, then the cache. It downloads files that are in none of them.
"""

from leanbayes.lab.data.batches import Augmentation, Batches, Flip, PadCropFlip, augmentation
from leanbayes.lab.data.catalogue import Entry, check, fetch, listing, load_dataset, names
from leanbayes.lab.data.dataset import Dataset, Examples, Scaling, Task
from leanbayes.lab.data.search import cache_folder
from leanbayes.lab.data.sources import register_dataset

__all__ = [
    "Augmentation",
    "Batches",
    "Dataset",
    "Entry",
    "Examples",
    "Flip",
    "PadCropFlip",
    "Scaling",
    "Task",
    "augmentation",
    "cache_folder",
    "check",
    "fetch",
    "listing",
    "load_dataset",
    "names",
    "register_dataset",
]
