"""Pictures of the page of `ffcil serve` for the docs: on a wide screen and on a phone, light and dark.

python benchmarks/screenshots.py --folder docs/images

A classifier of embedded characters is served, asked and taught in a headless Chromium (`pip install playwright`). It
writes serving-dark.png (wide, dark), serving-phone.png (phone, dark), serving-phone-light.png (phone, light) and
serving-page.png (wide, light, while a class is learned). `--only NAME ...` writes some of them.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from playwright.sync_api import sync_playwright

from ffcil.classifier.classifier import Classifier
from ffcil.config.resolve import resolve
from ffcil.data.glyphs import CHARACTERS, draw_glyphs
from ffcil.data.image_set import ImageSet

NAMES = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "A", "B", "C", "D")
"""Classes in the order of the embedded characters. The last of the digits is not known at first."""
EACH = 40
WIDE, PHONE = (1280, 1240), (390, 900)
PICTURES = {
    "serving-dark": (WIDE, "dark"),
    "serving-phone": (PHONE, "dark"),
    "serving-phone-light": (PHONE, "light"),
    "serving-page": (WIDE, "light"),
}


def characters(names: tuple[str, ...], count: int, seed: int) -> ImageSet:
    """Images of embedded characters, under their names."""
    rows = [CHARACTERS[NAMES.index(name)] for name in names]
    drawn = torch.from_numpy(draw_glyphs(rows, count, seed))
    return ImageSet(drawn, torch.arange(len(names)).repeat_interleave(count), names)


def write_photos(folder: Path, names: tuple[str, ...], count: int) -> list[Path]:
    """JPEG files, large as those of a camera."""
    folder.mkdir(parents=True)
    paths = []
    for number, pixels in enumerate(characters(names, count, seed=7).images):
        photo = Image.fromarray(pixels.permute(1, 2, 0).numpy()).resize((480, 480), Image.Resampling.BICUBIC)
        photo.save(content := BytesIO(), "JPEG", quality=90)
        (path := folder / f"photo-{number + 1}.jpg").write_bytes(content.getvalue())
        paths.append(path)
    return paths


def make_classifier(folder: Path) -> None:
    """A classifier with a history: three arrivals, known classes again, and a forgotten class."""
    classifier = Classifier(resolve("glyphs", {"method": "anyarrival", "image_size": 32}), "cpu")
    for names, seed in ((NAMES[:2], 0), (NAMES[2:5], 1), ((NAMES[0], "A", "B"), 2)):
        classifier.learn(characters(names, EACH, seed))
        classifier.save(folder)
    classifier.forget(["B"])
    classifier.save(folder)


def take(browser: Any, address: str, name: str, photos: list[Path], new: Path, token: str, out: Path) -> None:
    (width, height), scheme = PICTURES[name]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.goto(address)
    page.locator("#history li").first.wait_for()
    page.set_input_files("#photos input", photos)
    page.locator(".answer .name").nth(len(photos) - 1).wait_for()
    page.get_by_label("Token").fill(token)
    page.get_by_label("Token").blur()
    if name == "serving-page":
        page.set_input_files("#folder input", new)
        page.get_by_role("button", name="Learn", exact=True).click()
        page.get_by_text("Learning").wait_for()
    page.evaluate("scrollTo(0, 0)")
    picture = Image.open(BytesIO(page.screenshot()))
    picture.convert("RGB").quantize(256).save(out / f"{name}.png", optimize=True)  # a third of the size
    page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=list(PICTURES), default=list(PICTURES))
    options = parser.parse_args()
    token = "token-of-the-pictures"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_classifier(folder / "characters")
        (folder / "token").write_text(token)
        photos = write_photos(folder / "photos", (*NAMES[:5], "eight"), 1)
        write_photos(folder / "seven", ("seven",), 25)
        words = ["serve", folder / "characters", "--port", "0", "--token-file", folder / "token", "--device", "cpu"]
        server = subprocess.Popen([sys.executable, "-m", "ffcil", *words], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            address = re.search(r"http://\S+:\d+", server.stdout.readline())[0]  # type: ignore[index]
            with sync_playwright() as started:
                chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
                browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                for name in options.only:
                    take(browser, address, name, photos, folder / "seven", token, options.folder)
                browser.close()
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
