"""Reports: tables, figures and the page, made from recorded runs. Nothing here trains or needs torch."""

from ffcil.report.analyse.contents import Contents
from ffcil.report.analyse.tables import Row, compare
from ffcil.report.read.records import RunRecord, load_run, load_runs
from ffcil.report.render.figures import plot_arrivals, plot_curves
from ffcil.report.render.folder import write_report
from ffcil.report.render.page import write_page
from ffcil.report.render.terminal import terminal_table

__all__ = [
    "Contents",
    "Row",
    "RunRecord",
    "compare",
    "load_run",
    "load_runs",
    "plot_arrivals",
    "plot_curves",
    "terminal_table",
    "write_page",
    "write_report",
]
