"""The page in a browser: loaded from a file and operated with the mouse, on wide and narrow screens."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from browsing import Opened, needs_chromium
from browsing import browser as browser  # a fixture
from ffcil.report import Contents, load_runs, write_page
from invented_runs import SCHEDULES, random_hits, write_run, write_schedules
from test_hostile_folders import SCRIPT, hostile_study

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for method, setting, seed in itertools.product(("icarl", "der"), ("Equ.T", "FF.org", "FF.ours"), (0, 1)):
        hits = random_hits(setting, seed if method == "icarl" else seed + 5)
        write_run(folder / f"{method}-{setting}-{seed}", setting, seed, hits, method=method)
    write_run(folder / "late", "FF.ours", 2, random_hits("FF.ours", 2), done=False, steps=2)
    return write_page(load_runs(folder), folder / "report.html")


def open_page(browser: Any, path: Path, width: int, scheme: str) -> Opened:
    return Opened(browser, path.as_uri(), ".plot .main-svg", width, scheme)


@pytest.fixture(scope="module")
def wide(browser: Any, path: Path) -> Opened:
    """The page on a wide screen, which the tests operate one after another: opening it takes seconds."""
    return open_page(browser, path, 1280, "light")


@pytest.fixture(scope="module")
def narrow(browser: Any, path: Path) -> Opened:
    return open_page(browser, path, 390, "dark")


@pytest.mark.parametrize(("screen", "width", "scheme"), [("wide", 1280, "light"), ("narrow", 390, "dark")])
def test_page_loads_without_errors_or_further_requests(
    request: pytest.FixtureRequest, path: Path, screen: str, width: int, scheme: str
) -> None:
    opened = request.getfixturevalue(screen)
    page = opened.page
    assert opened.errors == []
    assert opened.requests == [path.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # only tables scroll sideways
    drawn = page.evaluate("[...document.querySelectorAll('.plot')].filter(p => p.offsetParent).map(p => !!p.data)")
    assert drawn
    assert all(drawn)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")


def column(page: Any, table: str, number: int) -> list[str]:
    return page.locator(f"{table} tbody tr:not(.more) > :nth-child({number})").evaluate_all(
        "cells => cells.map(cell => cell.dataset.value ?? cell.textContent.trim())"
    )


def test_tables_sort_in_both_directions(wide: Opened) -> None:
    page = wide.page
    for table, number in (("#main-table", 2), ("table.runs", 4)):
        values = column(page, table, number)
        known = sorted((float(v) for v in values if v), reverse=False)
        button = page.locator(f"{table} thead th:nth-child({number}) button")
        for expected in (known, known[::-1]):
            button.click()
            sorted_values = column(page, table, number)
            assert [float(v) for v in sorted_values if v] == expected
            assert sorted_values[len(expected) :] == [""] * (len(values) - len(expected))  # the unfinished run is last
    # The details of a run move with it.
    for body in page.locator("table.runs tbody").all():
        seeds, folder = body.locator("td").nth(1).inner_text(), body.locator("summary").inner_text()
        assert folder.split(",")[0].endswith(seeds) or folder.startswith("late")


def test_legend_entry_hides_its_lines(wide: Opened) -> None:
    page = wide.page
    plot = page.locator("#methods ~ details[open] .plot").first
    before = plot.evaluate("plot => plot._fullData.filter(trace => trace.visible === true).length")
    plot.locator(".legendtoggle").first.click()
    page.wait_for_function(
        "([plot, before]) => plot._fullData.filter(trace => trace.visible === true).length < before",
        arg=[plot.element_handle(), before],
    )


def test_opened_details_draw_their_figures(wide: Opened) -> None:
    page = wide.page
    details = page.locator("table.runs details").first
    assert not details.locator("pre").first.is_visible()
    details.locator("summary").click()
    assert details.get_by_text('"dataset": "glyphs"').is_visible()
    assert "ffcil run" in details.locator("pre").nth(1).inner_text()
    closed = page.locator("details.group:not([open])").first
    closed.locator("summary").first.click()
    page.locator("details.group").nth(1).locator(".plot .main-svg").first.wait_for()
    assert wide.errors == []


@pytest.fixture(scope="module")
def page_of_schedules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schedules")
    write_schedules(folder, lambda schedule, framework, seed: 5 + len(schedule))
    return write_page(load_runs(folder), folder / "report.html")


def test_lines_of_arrival_sensitivity_are_drawn(browser: Any, page_of_schedules: Path) -> None:
    """On a narrow screen, which the figure must not widen."""
    opened = open_page(browser, page_of_schedules, 390, "light")
    page = opened.page
    drawn = page.evaluate(
        "document.querySelector('#sensitivity ~ figure .plot').data.map(trace => [trace.name, trace.y])"
    )
    heights = [5.0 * (5 + len(schedule)) for schedule in SCHEDULES]
    assert [y for _, y in drawn] == [heights] * 6  # two permutations and their mean, for two frameworks
    assert [name for name, _ in drawn if name] == ["none: range 50.00", "flow: range 50.00"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert opened.errors == []
    page.close()


def test_narrow_screen_shows_one_metric_at_a_time(narrow: Opened) -> None:
    page = narrow.page
    table = page.locator("#main-table")
    shown = [table.locator(f"td.{metric}").first.is_visible() for metric in ("average", "last", "forgetting")]
    assert shown == [True, False, False]
    page.locator('.switch button[data-metric="last"]').first.click()
    shown = [table.locator(f"td.{metric}").first.is_visible() for metric in ("average", "last", "forgetting")]
    assert shown == [False, True, False]


def test_no_text_of_a_run_becomes_a_script(browser: Any, tmp_path: Path) -> None:
    """Titles, seeds, notes, commands and names of folders with markup: no script runs, and nothing is loaded."""
    contents = Contents.read(hostile_study(tmp_path / "runs"))
    path = write_page(contents, tmp_path / "report.html", title=SCRIPT)
    page, dialogs, requests, errors = browser.new_page(), [], [], []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_selector(".plot .main-svg")
    page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    page.wait_for_function("[...document.querySelectorAll('.plot')].every(plot => plot.data)")
    for plot in page.locator(".plot").all()[:6]:  # texts below the pointer are drawn, too
        plot.hover()
    assert (dialogs, errors, requests) == ([], [], [path.as_uri()])
    assert page.title() == SCRIPT
    assert page.locator("img, iframe, [onerror]").count() == 0
    assert page.locator("script:not([type])").count() == 2
    assert page.get_by_text("onerror=alert(1)").count() > 0  # it is shown, as text
    page.close()
