"""A measurement: numbers of every epoch, beside the curves in ``metrics.csv``."""

from leanbayes.lab.measurements import Measurement, Subject, register_measurement


@register_measurement("mean_norm")
class MeanNorm(Measurement):
    """The norms of all means; fields are options of the recipe."""

    order: float = 2.0

    def after_epoch(self, subject: Subject) -> dict[str, float]:
        """One column of ``metrics.csv`` per layer."""
        means = subject.model.named_parameters()
        return {
            f"norm/{name.removesuffix('.posterior.loc')}": float(mean.norm(self.order))
            for name, mean in means
            if name.endswith(".posterior.loc")
        }
