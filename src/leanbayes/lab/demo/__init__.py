"""The demo: several methods on the digits of scikit-learn, in one table and on one page."""

__all__: list[str] = []
