"""The fortnight of `fortnight.py` as a user lives it: folders of photos arrive, and `ffcil` commands are typed.

python benchmarks/walk.py --data cars.parquet --weights FILE.safetensors --folder walk --plot docs/images/history.png

Writes the photos of each day to `walk/day-01/CLASS/` and so on, runs the commands in that folder, and prints them with
what they answer, which docs/fortnight.md quotes. `--plot` draws the history of the classifier.
"""

from __future__ import annotations

import argparse
import csv
import os
import shlex
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch

from ffcil.data.own_images import TEST, TRAIN
from ffcil.data.sources import list_own
from fortnight import Day, plan

ASKED = 3
"""Test photos that are asked about on some days."""


def file_name(label: str) -> str:
    """A class as the name of a folder."""
    return label.replace("/", "-")


class Walk:
    """The folder of a walk, in which commands are run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.came: dict[int, str] = {}
        """The file that each photo came as."""

    def write(self, place: str, row: int, content: bytes) -> str:
        path = self.folder / place / f"{row:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return f"{place}/{row:05d}.jpg"

    def command(self, *words: str | Path, lines: int = 12) -> None:
        """Run `ffcil`, and print the command, its last lines and its time."""
        print(f"\n$ ffcil {shlex.join(map(str, words))}", flush=True)
        start = time.monotonic()
        environment = {**os.environ, "FFCIL_CACHE": str(self.folder / "cache"), "COLUMNS": "110"}
        done = subprocess.run(
            [sys.executable, "-m", "ffcil", *words], cwd=self.folder, env=environment, capture_output=True, text=True
        )
        print("\n".join(done.stdout.splitlines()[-lines:]))
        if done.returncode:
            raise SystemExit(done.stderr)
        print(f"# {time.monotonic() - start:.1f} s", flush=True)


def live(walk: Walk, days: list[Day], content: dict[int, bytes], names: tuple[str, ...], new: list[str]) -> None:
    """All days. `new` are the options of the first command."""
    for number, day in enumerate(days, 1):
        print(f"\n--- day {number}: {len(day.new)} new class(es), {len(day.arriving)} photos")
        place = f"day-{number:02d}"
        for row, label in day.arriving.items():
            walk.came[row] = walk.write(f"{place}/{file_name(names[label])}", row, content[row])
        walk.command("learn", "cars", f"{place}", *(new if number == 1 else ()), lines=1)
        if day.corrected:
            with (walk.folder / f"right-{number:02d}.csv").open("w", newline="", encoding="utf-8") as file:
                table = csv.writer(file)
                table.writerow(["path", "label"])
                table.writerows([walk.came[row], file_name(names[label])] for row, label in day.corrected.items())
            walk.command("correct", "cars", f"right-{number:02d}.csv")
        if number == 5:
            walk.command("suggest", "cars", place, "--labelled")
            walk.command("predict", "cars", "ask", "--false-alarms", "5%")
        if day.dropped is not None:
            walk.command("forget", "cars", file_name(names[day.dropped]))
            walk.command("undo", "cars", lines=1)
            walk.command("forget", "cars", file_name(names[day.dropped]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="Labelled photos with a split, 196 classes or more.")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--backbone", default="vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    parser.add_argument("--folder", type=Path, required=True, help="New folder for the photos and the classifier.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    listing = list_own(options.data)
    names = listing.class_names
    photos: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    labels = torch.from_numpy(listing.labels[listing.parts != -1])
    for label, encoded in zip(labels.tolist(), listing.encoded(), strict=True):
        photos[encoded.part].append((label, encoded.content))  # type: ignore[arg-type]
    train = torch.tensor([label for label, _ in photos[TRAIN]])
    days = plan(train, options.seed)
    walk = Walk(options.folder)
    dropped = next(day.dropped for day in days if day.dropped is not None)
    asked = [days[0].new[0], days[4].new[0], days[12].new[0]]  # known for days, new today, not known yet
    for row, (label, content) in enumerate(photos[TEST]):
        walk.write("gone" if label == dropped else f"test/{file_name(names[label])}", row, content)
        if label in asked and len(list((options.folder / "ask").glob("*"))) < ASKED * len(asked):
            walk.write("ask", row, content)
    new = ["--set", f"backbone={options.backbone}", "--set", f"weights={options.weights.resolve()}"]
    live(walk, days, {row: content for row, (_, content) in enumerate(photos[TRAIN])}, names, new)
    walk.command("test", "cars", "test", "--unknown", "gone", lines=6)
    plot = ["--plot", str(options.plot.resolve())] if options.plot else []
    walk.command("history", "cars", *plot, lines=40)


if __name__ == "__main__":
    main()
