"""Signal-to-noise ratios of gradients, and the validation −ELBO, at chosen steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from leanbayes.lab.data import Batches
from leanbayes.lab.measurements.base import Measurement, Subject, register_measurement

if TYPE_CHECKING:
    from leanbayes.lab.measurements.result_callback import ResultCallback


@register_measurement("probe")
class Probe(Measurement):
    """Steps at which gradients' signal-to-noise ratios and the validation −ELBO are measured.

    The result has them as ``snr_STEP`` (of the scales of ``layer``) and ``negative_elbo_STEP``.
    """

    steps: tuple[int, ...] = Field(min_length=1)
    layer: str
    window: int = Field(default=10, ge=2)

    def callback(self, subject: Subject) -> ResultCallback:
        from research.papers.k_tied.probe_callback import MeasureSteps  # imports Lightning

        validation = subject.dataset.validation
        if validation is None:
            raise ValueError(
                "measurement 'probe' needs validation examples, and there are none; set some apart "
                "with data.options, or leave the measurement out"
            )
        batches = Batches(validation, subject.batch_size)
        return MeasureSteps(batches, at=self.steps, layer=self.layer, window=self.window)
