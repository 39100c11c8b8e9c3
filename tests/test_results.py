"""Pages of results are up to date."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_pages_are_made_from_the_records() -> None:
    made = runpy.run_path(str(ROOT / "benchmarks" / "results_page.py"))
    how = "run python benchmarks/results_page.py"
    assert (ROOT / "results" / "README.md").read_text(encoding="utf-8") == made["page"](), how
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme == made["with_headline"](readme), how


def test_no_result_contains_a_path_of_a_machine() -> None:
    for path in (ROOT / "results").rglob("*.json*"):
        text = path.read_text(encoding="utf-8")
        assert "/home/" not in text, path
        assert "/keep/" not in text, path
