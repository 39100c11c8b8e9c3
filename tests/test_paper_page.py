"""docs/paper.md and docs/evidence.md are made from the records, and what they point to is there."""

import json
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ffcil.cli import app
from ffcil.report.analyse.statistics import Change

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
MADE = runpy.run_path(str(ROOT / "benchmarks" / "paper_page.py"))
CLAIMS: dict[str, Any] = MADE["CLAIMS"]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in MADE["PAGES"]}

ARROWS = {
    ("CIFAR-100", "icarl"): "-14.35 -6.84 +6.70 +6.28",
    ("CIFAR-100", "der"): "-2.57 -2.34 +0.41 +2.00",
    ("CIFAR-100", "memo"): "-2.91 -2.55 +0.58 +1.82",
    ("CIFAR-100", "tagfex"): "-2.94 -1.89 +0.34 +1.54",
    ("ImageNet-100", "icarl"): "-15.38 -15.10 +6.25 +6.66",
    ("ImageNet-100", "der"): "-1.22 -4.68 +1.51 +2.96",
    ("ImageNet-100", "memo"): "-2.42 -5.44 +0.43 +3.80",
    ("ImageNet-100", "tagfex"): "-2.17 -2.56 +0.62 +1.16",
    ("Cars", "mos"): "-3.30 -3.62 +2.07 +2.86",
    ("Cars", "moal"): "-20.79 -37.01 +10.43 +28.17",
    ("Cars", "cllora"): "-24.13 -40.09 +3.59 +14.46",
    ("Cars", "tuna"): "-6.33 -8.94 +4.53 +7.60",
    ("ImageNet-A", "mos"): "-2.89 -1.92 +1.61 +1.58",
    ("ImageNet-A", "moal"): "-3.11 -6.19 +0.39 +3.42",
    ("ImageNet-A", "cllora"): "-6.98 -7.31 +1.77 +3.76",
    ("ImageNet-A", "tuna"): "-3.48 -5.53 +2.26 +5.42",
}
"""Arrows of the paper's Table 1, as printed: drop of Ā and of A_T, recovery of Ā and of A_T."""


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_made_from_the_records(name: str) -> None:
    assert PAGES[name] == MADE["filled"](PAGES[name]), "run python benchmarks/paper_page.py"


def test_every_table_is_on_a_page() -> None:
    assert set(MADE["tables"]()) == {name for page in PAGES.values() for name in MADE["BLOCK"].findall(page)}


def test_the_figures_of_the_paper_give_its_own_arrows() -> None:
    claimed = {
        (line.data, line.method): [line.claimed["average"], line.claimed["last"]]
        for line in MADE["lines_of"](CLAIMS["effects"]["drop"])
    }
    for line in MADE["lines_of"](CLAIMS["effects"]["recovery"]):
        claimed[line.data, line.method] += [line.claimed["average"], line.claimed["last"]]
    assert {key: " ".join(f"{value:+.2f}" for value in values) for key, values in claimed.items()} == ARROWS


def test_a_difference_and_its_interval_are_those_of_the_records() -> None:
    """Free flow and CL-LoRA, from the files alone: the mean of three differences, -+ 4.303 deviations / sqrt 3."""

    def last(kind: str, seed: int) -> float:
        document = json.loads((RESULTS / "cars-vit-tiny" / f"cllora-{kind}-seed{seed}.run.json").read_bytes())
        return float(document["records"][-1]["accuracy"]["prototype"])

    differences = [last("org", seed) - last("equal", seed) for seed in (0, 1, 2)]
    mean = sum(differences) / 3
    half = 4.30265 * (sum((d - mean) ** 2 for d in differences) / 2 / 3) ** 0.5
    row = next(line for line in PAGES["paper.md"].splitlines() if "| Cars | CL-LoRA | -24.13 |" in line)
    assert f"{mean:+.2f} ({mean - half:+.2f} to {mean + half:+.2f})" in row


@pytest.mark.parametrize(
    ("claimed", "differences", "word"),
    [
        (4.0, [2.0, 2.1, 1.9, 2.0, 2.0], "holds here"),
        (-4.0, [-2.0, -2.1, -1.9, -2.0, -2.0], "holds here"),
        (4.0, [0.1, -0.1, 0.0, 0.1, -0.1], "does not hold here"),
        (4.0, [-2.0, -2.1, -1.9, -2.0, -2.0], "does not hold here"),
        (4.0, [0.0, 5.0, -3.0, 6.0, -2.0], "open"),  # contains 0 and half of the figure
        (0.1, [0.1, -0.1, 0.0, 0.1, -0.1], "open"),
        (4.0, [2.0, 2.1, 1.9], "open, leans towards it"),
        (-4.0, [0.1, -0.1, 0.0], "open, leans against it"),
        (4.0, [4.0], "open"),
    ],
)
def test_the_rule_of_the_verdict(claimed: float, differences: list[float], word: str) -> None:
    assert MADE["verdict"](claimed, Change(tuple(differences), "FF.org")) == word
    assert MADE["verdict"](-claimed, Change(tuple(-d for d in differences), "FF.org")) == word  # both directions alike


def test_no_records_is_not_a_verdict() -> None:
    assert MADE["verdict"](4.0, None) == "no records yet"


@pytest.mark.parametrize("name", PAGES)
def test_what_the_page_links_to_is_there(name: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[name]):
        file, _, anchor = target.partition("#")
        path = (ROOT / "docs" / file).resolve() if file else ROOT / "docs" / name
        assert path.exists(), target
        headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, target


def test_the_runs_that_a_page_repeats_are_published() -> None:
    files = re.findall(r"ffcil run (results/\S+\.run\.json)", PAGES["paper.md"])
    named = [file for file in files if "NAME" not in file]
    assert named
    assert all((ROOT / file).exists() for file in named)


def test_the_commands_are_accepted(tmp_path: Path) -> None:
    """One command for each recipe, study and form of options; the others differ in the method only."""
    commands = sorted(set(re.findall(r"^ffcil study .+$|(?<=`)ffcil study [^`]+", PAGES["paper.md"], re.MULTILINE)))
    forms = {re.sub(r"--methods \S+", "", command): command for command in commands}
    assert len(forms) >= 8
    for command in forms.values():
        arguments = [*shlex.split(command)[1:], "--dry-run", "--out", str(tmp_path / "study")]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, f"{command}\n{done.output}"
