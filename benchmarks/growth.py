"""Time and memory of long, wide and large runs, and of their reports, as the numbers of steps, classes and images grow.

python benchmarks/growth.py --out results/growth.json --plot docs/images/growth.png
python benchmarks/growth.py --before OTHER_CHECKOUT --out results/growth.json
python benchmarks/growth.py --only report-1000-steps

Each case is a process of its own with at most 256 open files. Its peak is the largest resident memory of that process;
its CPU seconds, unlike its seconds, do not depend on what else the machine does.
`curve` has the seconds of the steps of a run, from one file of counts to the next. They include training, testing,
records and checkpoints. `--plot` draws it.
With `--before`, every case is measured with the code of another checkout first. Cases that are not measured keep what
the file says of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

OPEN_FILES = 256
LIMIT_SECONDS = 3600
IMAGES = 3
"""Training images of each class, unless a case says otherwise; there is one test image of each class."""
POINTS = 100
"""Largest number of points of a curve; each is a mean over as many steps as it takes."""

RUNS: dict[str, dict[str, Any]] = {
    "run-simplecil-3000-steps": {"method": "simplecil", "classes": 3000, "steps": 3000},
    "run-simplecil-10000-classes": {"method": "simplecil", "classes": 10_000, "steps": 100},
    "run-icarl-10000-classes": {"method": "icarl", "classes": 10_000, "steps": 100, "side": 8},
    "run-icarl-1000-steps": {"method": "icarl", "classes": 1000, "steps": 1000, "side": 8},
    "run-icarl-1000000-images": {"method": "icarl", "classes": 100, "steps": 10, "images": 10_000},
}
"""Real runs from start to end, each followed by the case of its report."""
TITLES = {
    "run-simplecil-3000-steps": "SimpleCIL,\n3,000 steps of one class",
    "run-simplecil-10000-classes": "SimpleCIL,\n100 steps of 100 classes",
    "run-icarl-10000-classes": "iCaRL,\n100 steps of 100 classes",
    "run-icarl-1000-steps": "iCaRL,\n1,000 steps of one class",
    "run-icarl-1000000-images": "iCaRL,\n10 steps of 100,000 images",
}
"""Of the panels of the plot."""
INVENTED: dict[str, dict[str, Any]] = {
    "report-1000-steps": {"sizes": [1] * 1000, "images": 10},
    "report-10000-classes": {"sizes": [50, 150] * 50, "images": 10},
}
"""Reports of run folders with invented counts: `images` test images of each class, 70 % of them right."""


def case_run(folder: Path, method: str, classes: int, steps: int, side: int = 32, images: int = IMAGES) -> None:
    """Train on `images` random images of each class, with a side of so many pixels, and test on one of each."""
    import torch

    from ffcil.config.resolve import resolve
    from ffcil.data.glyphs import GLYPHS_AUGMENTATION
    from ffcil.data.image_set import ImageSet
    from ffcil.data.sources import DataSet
    from ffcil.runs.run import Run

    generator = torch.Generator().manual_seed(0)
    names = tuple(f"class {k}" for k in range(classes))

    def draw(per_class: int) -> ImageSet:
        pixels = torch.randint(0, 256, (classes * per_class, 3, side, side), generator=generator, dtype=torch.uint8)
        return ImageSet(pixels, torch.arange(classes).repeat_interleave(per_class), names)

    once = {"epochs": 1}
    fields = {
        "method": method,
        "arrivals": {"kind": "equal", "classes": classes, "steps": steps},
        "memory": {"budget": classes},
        "train": {"batch": 128, "first": once, "later": once},
    }
    Run(resolve("glyphs", fields), folder, data=DataSet(draw(images), draw(1), GLYPHS_AUGMENTATION)).execute()


def curve(folder: Path) -> list[tuple[int, float]]:
    """Classes seen and mean seconds of a step, along a finished run."""
    steps = sorted((folder / "counts").iterdir(), key=lambda path: int(path.stem.partition("-")[2]))
    written = [path.stat().st_mtime for path in steps]
    seconds = [after - before for before, after in itertools.pairwise(written)]
    seen = list(itertools.accumulate(json.loads((folder / "arrivals.json").read_text())["sizes"]))[1:]
    width = math.ceil(len(seconds) / POINTS)
    return [
        (seen[min(k + width, len(seen)) - 1], round(statistics.fmean(seconds[k : k + width]), 4))
        for k in range(0, len(seconds), width)
    ]


def draw(cases: dict[str, Any], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(9, 5.6), layout="constrained")
    for place, (name, title) in enumerate(TITLES.items(), start=1):
        axes = figure.add_subplot(2, 3, place)
        classes, seconds = zip(*cases[name]["curve"], strict=True)
        axes.plot(classes, seconds, marker="." if len(classes) < 20 else None)
        axes.set(xlabel="classes seen", ylabel="seconds of a step", xlim=(0, None), ylim=(0, 1.1 * max(seconds)))
        axes.set_title(title, fontsize=10)
        axes.xaxis.set_major_locator(plt.MaxNLocator(5))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def write_invented(folder: Path, sizes: list[int], images: int) -> None:
    """Write the folder of a finished run whose counts are invented, in the form that runs write."""
    import numpy as np

    from ffcil.metrics import Confusion
    from ffcil.runs.folder import RunFolder

    files, generator, seen = RunFolder(folder), np.random.default_rng(0), 0
    (folder / "counts").mkdir(parents=True)
    seeds = {"class_seed": 0, "arrival_seed": 0, "train_seed": 0}
    files.write("config.json", {"dataset": "glyphs", "method": "icarl", "framework": "none", **seeds})
    files.write("arrivals.json", {"sizes": sizes, "kind": "given"})
    for step, size in enumerate(sizes, start=1):
        seen += size
        true = np.repeat(np.arange(seen), images)
        wrong = generator.integers(0, seen, len(true))
        counts = Confusion.count(true, np.where(generator.random(len(true)) < 0.7, true, wrong), seen)
        files.write_counts(step, {"linear": counts, "nearest-mean": counts})
        accuracy = {"linear": counts.accuracy(), "nearest-mean": counts.accuracy()}
        files.append_record({"step": step, "accuracy": accuracy, "seconds": {"train": 1.0}})
    files.finish({"scored": "linear", "title": "iCaRL"})


def case_report(folder: Path) -> None:
    from ffcil.report import Contents, write_report

    write_report(Contents.read(folder), folder / "report")


def child(case: str, folder: Path, source: Path) -> dict[str, Any]:
    """Run one case in a process of its own."""
    command = [sys.executable, __file__, "--child", case, "--folder", str(folder)]
    started = time.perf_counter()
    with tempfile.NamedTemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(source)},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES)),
            stderr=errors,
        )
        try:
            process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return {"ended": f"stopped after {LIMIT_SECONDS} s"}
        seconds = round(time.perf_counter() - started, 1)
        if process.returncode:
            lines = Path(errors.name).read_text().strip().splitlines()
            return {"ended": lines[-1][:200] if lines else f"status {process.returncode}", "seconds": seconds}
    used = json.loads((folder / "used.json").read_text())
    measured = {"seconds": seconds, "cpu_seconds": used["cpu_seconds"], "peak_mb": round(used["peak_kib"] / 2**10)}
    if case == "report":
        report = folder / "report"
        measured["page_mb"] = round((report / "report.html").stat().st_size / 1e6, 1)
        measured["figures_mb"] = round(sum(f.stat().st_size for f in (report / "figures").iterdir()) / 1e6, 1)
        shutil.rmtree(report)
    return measured


def peak_kib() -> int:
    """Largest resident memory of this process; `ru_maxrss` would include that of the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def measure(source: Path, wanted: list[str], place: Path) -> dict[str, Any]:
    """All wanted cases with the code in `source`."""
    measured: dict[str, Any] = {}
    for name in wanted:
        folder = place / name
        folder.mkdir()
        if name in RUNS:
            measured[name] = child(name, folder, source)
            if "ended" not in measured[name]:
                measured[name]["curve"] = curve(folder)
            print(name, measured[name], flush=True)
            name = f"report-of-{name}"
            if "ended" in measured[name.removeprefix("report-of-")]:
                continue
        else:
            write_invented(folder, **INVENTED[name])
        measured[name] = child("report", folder, source)
        print(name, measured[name], flush=True)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*RUNS, *INVENTED], action="append", help="Measure only this case.")
    parser.add_argument("--before", type=Path, help="Another checkout, which is measured as well.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path, help="Draw the curves of --out.")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        if options.child in RUNS:
            case_run(options.folder, **RUNS[options.child])
        else:
            case_report(options.folder)
        used = {"cpu_seconds": round(time.process_time(), 1), "peak_kib": peak_kib()}
        (options.folder / "used.json").write_text(json.dumps(used))
        return
    here = Path(__file__).resolve().parents[1]
    known = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    measured = {when: known[when] for when in ("before", "after") if when in known}
    for when, checkout in (("before", options.before), ("after", here)):
        if checkout:
            with tempfile.TemporaryDirectory() as place:
                cases = measure(checkout / "src", options.only or [*RUNS, *INVENTED], Path(place))
            commit = subprocess.check_output(["git", "-C", str(checkout), "rev-parse", "HEAD"], text=True).strip()
            before = measured.get(when, {}).get("cases", {})
            measured[when] = {"commit": commit, "cases": before | cases}
    if options.out:
        from result_file import write_result

        write_result(options.out, "cpu", {"open_files": OPEN_FILES, "cores": os.cpu_count(), **measured}, "glyphs")
    if options.plot:
        draw(measured["after"]["cases"], options.plot)


if __name__ == "__main__":
    main()
