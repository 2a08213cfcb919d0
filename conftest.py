"""Doctest names, one seed for every test (``--seed N``) and tests by item (``--checklist ID``)."""

import random
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Distribution

from leanbayes.kernels import kernels, without_native


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, default=42, help="seed of every test")
    parser.addoption("--checklist", metavar="ID", help="run the tests of an item, for example KT1")


def _seed_all(config):
    seed = config.getoption("--seed")
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def pytest_collectstart(collector):
    """Seed what a test module draws at import, so that no other module changes it."""
    _seed_all(collector.config)


@contextmanager
def _seeded_apart(config):
    """Seeded numbers, which leave the ones outside as they are."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    _seed_all(config)
    try:
        yield
    finally:
        for restore, state in zip(
            (torch.set_rng_state, np.random.set_state, random.setstate), before, strict=True
        ):
            restore(state)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """A fixture that tests share draws the same, whichever of them comes first."""
    if fixturedef.scope == "function":
        return (yield)
    with _seeded_apart(request.config):
        return (yield)


def pytest_collection_modifyitems(config, items):
    """Keep the tests of one item of docs/checklist.md."""
    if chosen := config.getoption("--checklist"):
        shown = [i for i in items if any(chosen in m.args for m in i.iter_markers("checklist"))]
        config.hook.pytest_deselected(items=[item for item in items if item not in shown])
        items[:] = shown


@pytest.fixture(autouse=True)
def _seed(request):
    _seed_all(request.config)


@pytest.fixture(autouse=True)
def _validated():
    """The compiler switches the validation of distributions off for good: each test begins anew."""
    Distribution.set_default_validate_args(__debug__)


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    doctest_namespace["torch"] = torch
    doctest_namespace["nn"] = nn


def pytest_configure(config):
    torch.set_num_threads(1)  # tensors are small, and the workers share the cores


@pytest.fixture
def torch_noise():
    """Noise of torch's own generator, whatever was built: the stream that compiled code has."""
    with without_native():
        yield


@pytest.fixture(params=["native", "torch"])
def branch(request):
    """Both branches of the fused functions, one after the other."""
    if request.param == "torch":
        request.getfixturevalue("torch_noise")
    elif not kernels().native:
        pytest.skip(kernels().reason)
    return request.param


@pytest.fixture
def registered(request):
    """Register something for the length of one test."""

    def register(registry, name, thing):
        registry.register(thing, name=name)
        request.addfinalizer(lambda: registry.unregister(name))

    return register
