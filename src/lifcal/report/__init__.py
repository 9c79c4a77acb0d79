"""The report: statistics of a calibration, a verdict, and one HTML page that shows them.

`build_statistics` makes what summary.json holds, `judge` and its siblings the verdict,
`write_report` the page.
"""

from lifcal.report.expectation import PixelNoise
from lifcal.report.page import render_report, write_report
from lifcal.report.statistics import FrameEntry, build_statistics, list_units
from lifcal.report.verdict import FAILED, assess, examine, judge, judge_failure

__all__ = [
    "FAILED",
    "FrameEntry",
    "PixelNoise",
    "assess",
    "build_statistics",
    "examine",
    "judge",
    "judge_failure",
    "list_units",
    "render_report",
    "write_report",
]
