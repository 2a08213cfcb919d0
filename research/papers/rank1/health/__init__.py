"""Health records: MIMIC-III tables, or a generated cohort of known risk, as days of events."""

from research.papers.rank1.health.cohort import Cohort, generate_cohort
from research.papers.rank1.health.tables import Tables, find_tables

from research.papers.rank1.health import mimic, network  # noqa: F401  # isort: skip

__all__ = ["Cohort", "Tables", "find_tables", "generate_cohort"]
