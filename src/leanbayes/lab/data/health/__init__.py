"""Health records: MIMIC-III tables, or a generated cohort of known risk, as days of events."""

from leanbayes.lab.data.health.cohort import Cohort, generate_cohort
from leanbayes.lab.data.health.tables import Tables, find_tables

from leanbayes.lab.data.health import mimic  # noqa: F401  # isort: skip

__all__ = ["Cohort", "Tables", "find_tables", "generate_cohort"]
