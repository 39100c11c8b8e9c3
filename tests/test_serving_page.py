"""The page of the service in a browser: photos, teaching, history and undo, on wide and narrow screens."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from browsing import Opened, needs_chromium, playwright
from browsing import browser as browser  # a fixture
from ffcil.classifier.classifier import Classifier
from served import write_photos, write_table

for _module in ("fastapi", "uvicorn", "python_multipart", "httpx"):
    pytest.importorskip(_module)
pytestmark = needs_chromium

from test_serving import TOKEN, serving  # noqa: E402
from test_serving import model as model  # noqa: E402  (a fixture, as the next one)
from test_serving import saved as saved  # noqa: E402


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_photos(tmp_path_factory.mktemp("photos"), classes=5)


def open_page(browser: Any, address: str, width: int = 1280, scheme: str = "light") -> Opened:
    return Opened(browser, address, "#history li", width, scheme)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_photos_are_answered(browser: Any, model: Path, photos: list[Path], width: int, scheme: str) -> None:
    expected = Classifier.load(model, "cpu").answer(photos)
    with serving(model) as address:
        opened = open_page(browser, address, width, scheme)
        page = opened.page
        page.set_input_files("#photos input", photos)
        page.locator(".answer .name").nth(len(photos) - 1).wait_for()
        names = page.locator(".answer .name").all_inner_texts()
        assert names == ["unknown" if one.unknown else one.guesses[0].name for one in expected if one]
        bar = page.locator(".answer .track div").first
        share = float(page.locator(".answer .guess span + span").first.inner_text().split()[0]) / 100
        full = page.locator(".answer .track").first.bounding_box()["width"]
        assert bar.bounding_box()["width"] == pytest.approx(share * full, abs=1)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert opened.errors == []
        assert all(url.startswith((address, "blob:", "data:")) for url in opened.requests)
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (int(re.findall(r"\d+", background)[0]) > 128) == (scheme == "light")
        page.get_by_role("button", name="Clear").click()
        assert page.locator(".answer").count() == 0
        page.close()


def test_an_image_that_is_refused_says_why(browser: Any, model: Path, tmp_path: Path) -> None:
    (fake := tmp_path / "fake.png").write_text("no image")
    with serving(model) as address:
        page = open_page(browser, address).page
        page.set_input_files("#photos input", fake)
        page.get_by_text("fake.png is not an image").wait_for()
        page.close()


def test_a_class_is_taught_and_undone(browser: Any, model: Path, photos: list[Path], tmp_path: Path) -> None:
    """The page sends a folder, follows the learning, and goes back. What learns is a copy of a version made before."""
    (folder := tmp_path / "eel").mkdir()
    for photo in photos[12:]:
        shutil.copy(photo, folder)
    (folder / "notes.txt").write_text("no image")
    prepared = shutil.copytree(model, tmp_path / "prepared")
    classifier = Classifier.load(prepared, "cpu")
    classifier.learn(write_table(tmp_path / "table", photos[12:], "eel"))
    classifier.save(prepared)
    (program := tmp_path / "python").write_text(
        f"#!/bin/sh\nsleep 1\ncd {model}\ncp {prepared}/versions/000003.safetensors versions\n"
        "cp versions/000003.safetensors draft\nmv draft model.safetensors\n"
    )
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch, serving(model) as address:
        patch.setattr("ffcil.serving.change.sys.executable", str(program))
        opened = open_page(browser, address)
        page = opened.page
        learn, undo = (page.get_by_role("button", name=name, exact=True) for name in ("Learn", "Undo"))
        assert learn.is_disabled()
        assert undo.is_disabled()  # without the token
        page.set_input_files("#folder input", folder)
        page.get_by_text("3 images").wait_for()
        assert page.get_by_label("Name of the class").input_value() == "eel"
        page.get_by_label("Token").fill("wrong")
        learn.click()
        page.get_by_text("The token is missing or wrong").wait_for()
        assert [error for error in opened.errors if "401" not in error] == []
        opened.errors.clear()
        page.get_by_label("Token").fill(TOKEN)
        learn.click()
        page.get_by_text("Learning eel").wait_for()
        page.get_by_text("Learned eel from 3 images").wait_for()
        playwright.expect(page.locator("#classes span")).to_have_text(list(classifier.class_names))
        playwright.expect(page.locator("#history li.now")).to_contain_text("Version 3")
        undo.click()
        page.get_by_text("Version 2 answers again.").wait_for()
        playwright.expect(page.locator("#classes span")).to_have_count(4)
        page.get_by_role("button", name="Restore").click()
        page.get_by_text("Version 3 answers again.").wait_for()
        page.locator("#classes").get_by_text("eel").wait_for()
        assert opened.errors == []
        page.close()


def test_a_service_without_a_token_says_how_it_can_learn(browser: Any, model: Path) -> None:
    with serving(model, token=None) as address:
        page = open_page(browser, address).page
        page.get_by_text("--token-file FILE").wait_for()
        assert not page.locator("#learn").is_visible()
        assert not page.locator("#undo").is_visible()
        page.close()


def test_the_page_of_the_api_lists_all_paths(browser: Any, model: Path) -> None:
    with serving(model) as address:
        opened = open_page(browser, address, 390)
        opened.page.get_by_role("link", name="API").click()
        opened.page.locator("h2").nth(6).wait_for()
        assert sorted(opened.page.locator("h2").all_inner_texts())[0] == "GET/classes"
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
        assert opened.errors == []
        opened.page.close()
