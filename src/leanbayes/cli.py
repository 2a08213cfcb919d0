"""The application of the ``leanbayes`` command, for those who have the package already."""

from leanbayes_cli import app, main

__all__ = ["app", "main"]
