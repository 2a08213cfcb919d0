"""Doctest names, and one seed for every test: ``--seed N`` varies it."""

import pytest
import torch
from torch import nn


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, default=42, help="seed of every test")


@pytest.fixture(autouse=True)
def _seed(request):
    torch.manual_seed(request.config.getoption("--seed"))


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    doctest_namespace["torch"] = torch
    doctest_namespace["nn"] = nn


def pytest_configure(config):
    torch.set_num_threads(1)  # tensors are small, and the workers share the cores


@pytest.fixture
def registered(request):
    """Register something for the length of one test."""

    def register(registry, name, thing):
        registry.register(thing, name=name)
        request.addfinalizer(lambda: registry.unregister(name))

    return register
