"""Run folders in, one HTML page out: it works offline, on a phone and on paper."""

from leanbayes.lab.report.study import register_section
from leanbayes.lab.report.write import write_report

__all__ = ["register_section", "write_report"]
