"""Tables, figures and the page, made from the folders of runs alone: nothing here trains or needs torch."""

from ffcil.report.figures import plot_arrivals, plot_curves
from ffcil.report.folder import write_report
from ffcil.report.page import write_page
from ffcil.report.records import RunRecord, load_run, load_runs
from ffcil.report.tables import Row, compare

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
