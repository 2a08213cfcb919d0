"""Checks before a run begins, so that it does not fail after hours of training."""

import copy

import torch
from torch import Tensor, nn

from leanbayes.errors import require
from leanbayes.lab.runs import Run
from leanbayes.likelihoods import Likelihood
from leanbayes.models.random_maps import members, tile
from leanbayes.prediction.predict import predict


def check_run(run: Run, model: nn.Module, likelihood: Likelihood, ranks: int = 1) -> None:
    """Raise if the data of a run cannot be learned by its model."""
    dataset, train = run.dataset, run.training_examples
    x, y = train.take(torch.arange(1))
    outputs = predict(model, x, samples=1, seed=run.recipe.seed).samples
    likelihood.log_prob(outputs, y)
    for part in (train, dataset.validation, dataset.test):
        if part is not None and part.targets is not None:
            likelihood.check(outputs, part.targets)
    classes = likelihood.has_classes(outputs)
    for measurement in run.recipe.measurements:
        measurement.check(model, classes=classes)
    require(
        run.recipe.training.keep == "last" or dataset.validation is not None,
        "training.keep is best, and there are no validation examples; hold some out "
        "with data.options, or leave it out",
    )
    if classes:
        _check_classes(train.targets, dataset.classes)
    _check_last_batch(run, model, x, ranks)


def _check_classes(targets: Tensor | None, names: tuple[str, ...]) -> None:
    if targets is None or targets.numel() != len(targets):
        return
    kinds = targets.unique().tolist()
    if len(kinds) == 1:
        label = int(kinds[0])
        name = names[label] if label < len(names) else str(label)
        raise ValueError(
            f"all {len(targets)} training examples have the class {name!r}, and there is nothing "
            "to learn; give examples of two or more"
        )


def _check_last_batch(run: Run, model: nn.Module, x: Tensor, ranks: int) -> None:
    """Statistics over a batch need two examples where a layer has one position only."""
    size, count = run.recipe.training.batch_size, run.data_size // ranks * ranks
    last = (count % size or size) // ranks
    if last != 1 or not any(_normalizes(module) for module in model.modules()):
        return
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            copy.deepcopy(model).train()(tile(x, members(model)))
    except ValueError as error:
        require("more than 1 value per channel" not in str(error), _last_batch_told(count, size))
        raise


def _normalizes(module: nn.Module) -> bool:
    return isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)


def _last_batch_told(count: int, size: int) -> str:
    if size == 1:
        return "training.batch_size is 1, and BatchNorm needs two examples; set it to 2 or more"
    return (
        f"{count} training examples in batches of {size} leave one for the last batch, and "
        f"BatchNorm needs two; set training.batch_size: {_better(count, size)} or training.limit: "
        f"{count - 1}"
    )


def _better(count: int, size: int) -> int:
    """Return the nearest size below, or else above, that leaves no last batch of one."""
    below = (smaller for smaller in range(size - 1, 1, -1) if count % smaller != 1)
    return next(below, size + 1)
