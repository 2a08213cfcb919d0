"""Run folders in, one HTML page out: it works offline, on a phone and on paper."""

from leanbayes.lab.report.write import write_report

__all__ = ["write_report"]
