"""The demo: ordinary runs of ordinary recipes, one for every family, in one table and one page."""

__all__: list[str] = []
