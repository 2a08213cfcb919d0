"""Study: a trained model with its predictions, as sections of a report take it; their registry."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from torch import nn

from leanbayes.lab.data import Dataset
from leanbayes.lab.evaluation import foreign_images, is_images
from leanbayes.lab.from_recipe import load_data
from leanbayes.lab.report.html import Html
from leanbayes.lab.runs import Run
from leanbayes.likelihoods import Likelihood
from leanbayes.prediction.predict import Prediction, predict
from leanbayes.registry import Registry

MOST_EXAMPLES = 10_000
MOST_OUTSIDE = 2_000


@dataclass(frozen=True)
class Study:
    """The parts of a run that its model and its data give; None where they give none."""

    model: nn.Module | None
    dataset: Dataset | None
    test: Prediction | None
    outside: dict[str, Prediction]
    problems: tuple[str, ...]


Section = TypeVar("Section", bound=Callable[[Run, Study], Html | None])

SECTIONS = Registry[Callable[[Run, Study], Html | None]]("section")
"""Every section by the name of its function, in the order of the page."""


def register_section(section: Section) -> Section:
    """Add a section to the report of a run, after the existing ones.

    It decorates a function of the run folder and of what its model and data give; the function
    returns HTML, or None where it has nothing to say.

    ``docs/extending/section.py`` is one to copy.
    """
    return SECTIONS.register(section)


def study(run: Run) -> Study:
    """Load what can be loaded, predict what can be predicted; never download anything."""
    problems: list[str] = []
    trained, dataset = _trained(run, problems), _dataset(run, problems)
    if trained is None or dataset is None:
        return Study(trained and trained[0], dataset, None, {}, tuple(problems))
    model, likelihood = trained
    examples = dataset.test[:MOST_EXAMPLES]
    predicted = partial(predict, model, likelihood=likelihood, **run.drawing())
    if examples.y.numel() != len(examples) and predicted(examples[:1].x).has_classes:
        problems.append(
            "This model predicts many yes or no at once, such as the pixels of an image, so there "
            "is no diagram of its calibration."
        )
        return Study(model, dataset, None, {}, tuple(problems))
    test, outside = predicted(examples.x), {}
    if is_images(dataset) and test.has_classes:
        foreign = foreign_images(examples[:MOST_OUTSIDE].x, dataset, run.recipe.seed)
        outside = {name: predicted(x) for name, x in foreign.items()}
    return Study(model, dataset, test, outside, tuple(problems))


def _trained(run: Run, problems: list[str]) -> tuple[nn.Module, Likelihood] | None:
    try:
        model, likelihood = run.load()
    except (OSError, ValueError, RuntimeError) as error:
        problems.append(f"The trained model could not be read: {error}.")
        return None
    return model, likelihood.requires_grad_(False)


def _dataset(run: Run, problems: list[str]) -> Dataset | None:
    try:
        return load_data(run.recipe, download=False)
    except (OSError, ValueError, ImportError) as error:
        problems.append(f"The data set could not be read, so what needs it is left out: {error}.")
        return None
