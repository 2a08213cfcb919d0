"""One line of progress for a long training, with the time that is left."""

import sys
import time


class ProgressLine:
    """A line on the terminal that is rewritten while work goes on.

    Args:
        total: number of steps of the whole work.
        done: number of steps that were done before.
        visible: whether to show it; by default on a terminal only.
    """

    _SECONDS = 0.2

    def __init__(self, total: int, done: int = 0, visible: bool | None = None) -> None:
        self.total, self.done, self._first = total, done, done
        self.visible = sys.stderr.isatty() if visible is None else visible
        self._started = time.monotonic()
        self._shown, self._width = 0.0, 0

    def step(self, text: str) -> None:
        """Count one step and show the text, a few times a second."""
        self.done += 1
        now = time.monotonic()
        if self.visible and (now - self._shown >= self._SECONDS or self.done == self.total):
            self._shown = now
            share = self.done / self.total
            left = (now - self._started) / (self.done - self._first) * (self.total - self.done)
            line = f"{100 * share:3.0f}% {text}, {_duration(left)} left"
            self._width = max(self._width, len(line))
            print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the line."""
        if self.visible and self._width:
            print(file=sys.stderr)


def _duration(seconds: float) -> str:
    """A duration as people say it.

    Example:
        >>> _duration(7.2), _duration(90), _duration(7300)
        ('7 s', '1:30 min', '2:01 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    unit, size = ("min", 60) if seconds < 3600 else ("h", 3600)
    whole, rest = divmod(int(seconds), size)
    return f"{whole}:{rest * 60 // size:02d} {unit}"
