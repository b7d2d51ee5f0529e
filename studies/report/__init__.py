"""The report of a study: statistics, figures, a paragraph of conclusions, report.md and report.html."""

from studies.report.write import write_report

__all__ = ["write_report"]
