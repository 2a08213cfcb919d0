"""A section on mixtures and ensembles: how often members disagree, and on which images."""

from __future__ import annotations

from collections import Counter

from torch import Tensor

from leanbayes.lab import plots
from leanbayes.lab.data import Dataset
from leanbayes.lab.evaluation import is_images
from leanbayes.lab.report.classes import class_name, shown_images
from leanbayes.lab.report.html import Html, element, figure, grid, section
from leanbayes.lab.report.numbers import number
from leanbayes.lab.report.study import Study, register_section
from leanbayes.lab.runs import Run
from leanbayes.metrics import disagreements, member_log_probs
from leanbayes.models.members import members

_IMAGES = 12


@register_section
def disagreeing_members(run: Run, study: Study) -> Html | None:
    """How often two members take an example for different classes, and which examples."""
    count = 1 if study.model is None else members(study.model)
    if count == 1 or study.test is None or study.dataset is None:
        return None
    if not study.test.has_classes or study.test.samples.ndim != 3:
        return None
    log_probs = member_log_probs(study.test.sample_log_probs, count)
    pairs, labels = disagreements(log_probs), log_probs.argmax(-1)
    united = float((pairs == 0).double().mean())
    told = element(
        "p",
        f"Two of the {count} members take {number(float(pairs.mean()))} of the test examples for "
        f"different classes, on average; on {number(united)} of them all agree.",
    )
    order = pairs.argsort(descending=True, stable=True)[:_IMAGES]
    order = order[pairs[order] > 0]
    if not len(order) or not is_images(study.dataset):
        return section("Members", told)
    return section("Members", told, grid([_images(study.dataset, labels, order)]))


def votes(labels: Tensor, dataset: Dataset) -> str:
    """What members say of one example, as ``3 coat, 1 shirt``."""
    counted = Counter(labels.tolist()).most_common()
    return ", ".join(f"{count} {class_name(dataset, label)}" for label, count in counted)


def _images(dataset: Dataset, labels: Tensor, index: Tensor) -> Html:
    truth = dataset.test[index].y.flatten()
    titles = [votes(labels[:, i], dataset) for i in index.tolist()]
    wrong = (labels[:, index] != truth).all(0).tolist()
    return figure(
        plots.image_grid(shown_images(dataset, index), titles, wrong),
        f"The {len(titles)} test images on which members disagree most, with their votes; those in "
        "bold no member has right.",
    )
