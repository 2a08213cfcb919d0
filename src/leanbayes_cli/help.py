"""Help pages whose flags show no type."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


def _without_types(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = " "
    return params


class Command(TyperCommand):
    """A command whose flags show no ``<bool>``."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands, likewise."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))
