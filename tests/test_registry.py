"""Registries: open to others, and each name belongs to one thing."""

import pytest

from leanbayes.errors import UnknownNameError, choose, nearest
from leanbayes.registry import Registry


def circle():
    """A thing."""


@pytest.fixture
def shapes():
    registry = Registry("shape")
    registry.register(circle)
    return registry


def test_it_is_a_mapping_by_name(shapes):
    assert dict(shapes) == {"circle": circle}
    assert shapes.get("square") is None
    assert "square" not in shapes
    assert repr(shapes) == "Registry('shape': circle)"


def test_decorators_return_what_they_decorate(shapes):
    @shapes.register
    class Square:
        pass

    @shapes.register(name="dot")
    def point():
        pass

    assert shapes["Square"] is Square
    assert shapes["dot"] is point


def test_an_unknown_name_gets_the_nearest_in_one_sentence(shapes):
    with pytest.raises(UnknownNameError) as caught:
        shapes["Cirle"]
    assert str(caught.value) == "shape 'Cirle' is unknown; did you mean 'circle'?"
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, KeyError)


def test_a_second_thing_under_one_name_is_refused(shapes):
    with pytest.raises(ValueError, match="there is a shape 'circle' already; give yours another"):
        shapes.register(lambda: None, name="circle")
    assert shapes["circle"] is circle


def test_a_definition_may_run_again(shapes):
    def define():
        @shapes.register
        class Square:
            pass

        return Square

    first, second = define(), define()
    assert first is not second
    assert shapes["Square"] is second
    shapes.register(circle)


def test_values_other_than_classes_and_functions_have_names_too(shapes):
    shapes.register(3, name="triangle")
    shapes.register(3, name="triangle")
    with pytest.raises(ValueError, match="already"):
        shapes.register(4, name="triangle")


def test_a_thing_can_be_forgotten(shapes):
    shapes.unregister("circle")
    assert not shapes
    with pytest.raises(UnknownNameError):
        shapes.unregister("circle")


def test_nearest_does_not_mind_capitals():
    assert nearest("ktied", ["KTied", "MeanField"]) == "; did you mean 'KTied'?"
    assert nearest("zzz", ["b", "a"]) == "; choose one of a, b"
    assert choose("letter", "a", {"a": 1}) == 1
