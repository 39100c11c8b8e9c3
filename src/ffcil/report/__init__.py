"""Tables, figures and the page, made from the folders of runs alone: nothing here trains or needs torch."""

from ffcil.report.analyse.tables import Row, compare
from ffcil.report.read.records import RunRecord, load_run, load_runs
from ffcil.report.render.figures import plot_arrivals, plot_curves
from ffcil.report.render.folder import write_report
from ffcil.report.render.page import write_page

__all__ = [
    "Row",
    "RunRecord",
    "compare",
    "load_run",
    "load_runs",
    "plot_arrivals",
    "plot_curves",
    "write_page",
    "write_report",
]
