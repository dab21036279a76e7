"""The report: one HTML file about one or more fits that opens offline, on a laptop, a phone and paper."""

from .document import write_report

__all__ = ["write_report"]
