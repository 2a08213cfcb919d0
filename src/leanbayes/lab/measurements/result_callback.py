"""Lightning callbacks whose numbers go into the result of a run."""

from typing import Any

import lightning as L


class ResultCallback(L.Callback):
    """Callback that measures during training; its state is in every checkpoint."""

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return values with their errors, beside the test metrics."""
        return {}

    def details(self) -> dict[str, Any]:
        """More keys of ``result.json``."""
        return {}
