"""The report: statistics of a calibration, a verdict, and one HTML page that shows them.

`build_statistics` makes what summary.json holds, `judge` and its siblings the verdict,
`write_report` the page. `LoopbackServer` offers pages that talk to a program on this computer.
"""

from lifcal.report.expectation import PixelNoise
from lifcal.report.page import render_report, write_report
from lifcal.report.server import Channel, LoopbackServer, Reply
from lifcal.report.statistics import FrameEntry, build_statistics, list_units
from lifcal.report.verdict import FAILED, assess, examine, judge, judge_failure

__all__ = [
    "FAILED",
    "Channel",
    "FrameEntry",
    "LoopbackServer",
    "PixelNoise",
    "Reply",
    "assess",
    "build_statistics",
    "examine",
    "judge",
    "judge_failure",
    "list_units",
    "render_report",
    "write_report",
]
