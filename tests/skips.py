"""A plugin of pytest that prints at the end of a session which tests were skipped, and how to run them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

MARKERS = {"slow": "they take minutes", "gpu": "they need a CUDA device", "faults": "they inject faults for minutes"}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Iterator[None]:
    """Print after pytest's own summary. Under xdist this runs in the controlling process."""
    yield
    reports = terminalreporter.stats.get("skipped", [])
    lines = list(explain_skips(report.longrepr[2] for report in reports if isinstance(report.longrepr, tuple)))
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        left_out = [marker for marker in MARKERS if f"not {marker}" in config.option.markexpr]
        lines += [f"tests marked {name} were not run ({MARKERS[name]}): pytest -m {name}" for name in left_out]
    if lines:
        terminalreporter.section("tests that were not run", sep="-")
    for line in lines:
        terminalreporter.line(line)


def explain_skips(reasons: Iterable[str]) -> Iterator[str]:
    """One line per reason, with the command that installs a missing Python package."""
    for reason, count in sorted(Counter(reason.removeprefix("Skipped: ") for reason in reasons).items()):
        package = re.search(r"could not import '(\w+)'", reason)
        text = f"{package[1]} is not installed; pip install {package[1]}" if package else reason
        yield f"{count} {'test' if count == 1 else 'tests'} skipped: {text}"
