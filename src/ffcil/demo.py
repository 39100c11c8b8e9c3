"""`ffcil demo`: the paper's three settings on the embedded data set, then a table and a page."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import TaskID, TimeElapsedColumn

from ffcil.config import RunConfig
from ffcil.errors import InputError
from ffcil.progress import accuracies, bars
from ffcil.recipe import merge, resolve

SETTINGS: dict[str, dict[str, Any]] = {
    "Equ.T": {"arrivals": {"kind": "equal"}, "robust": False},
    "FF.org": {"arrivals": {"kind": "free-flow"}, "robust": False},
    "FF.ours": {"arrivals": {"kind": "free-flow"}, "robust": True},
}


def demo_configs(method: str, seeds: int, overrides: Mapping[str, Any]) -> dict[str, RunConfig]:
    """Configurations by name. The settings of a seed share class permutation, spectrum and initialisation."""
    fixed = {"method", "robust", "dataset", "class_seed", "arrival_seed", "train_seed"} & overrides.keys()
    if isinstance(overrides.get("arrivals"), Mapping):
        fixed |= {f"arrivals.{key}" for key in ("kind", "sizes", "trace") if key in overrides["arrivals"]}
    if fixed:
        raise InputError(f"The demo sets {sorted(fixed)[0]} itself: use --method or --seeds, or `ffcil run`.")
    return {
        f"{setting} seed {seed}": resolve(
            "glyphs",
            merge(
                merge({"method": method, "class_seed": seed, "arrival_seed": seed, "train_seed": seed}, overrides),
                fields,
            ),
        )
        for seed in range(seeds)
        for setting, fields in SETTINGS.items()
    }


def _execute(config: RunConfig, folder: Path) -> None:
    from ffcil.run import Run

    Run(config, folder, device="cpu", threads=1).execute()


class _Watch:
    """Follows runs by their records: bars in a terminal, a line a step elsewhere."""

    def __init__(self, console: Console, folders: Mapping[str, Path]) -> None:
        self.console, self.folders = console, folders
        self.seen = dict.fromkeys(folders, 0)
        self.bars = bars(console, TimeElapsedColumn())
        self.tasks: dict[str, TaskID] = {}

    def look(self) -> None:
        for name, folder in self.folders.items():
            records, schedule = folder / "records.jsonl", folder / "arrivals.json"
            if not records.exists() or not schedule.exists():
                continue
            steps = len(json.loads(schedule.read_text(encoding="utf-8"))["sizes"])
            whole = records.read_text(encoding="utf-8").split("\n")[:-1]
            for line in whole[self.seen[name] :]:
                self._tell(name, json.loads(line), steps)
            self.seen[name] = len(whole)

    def _tell(self, name: str, record: Mapping[str, Any], steps: int) -> None:
        note = f"step {record['step']}/{steps}, {record['seen_classes']} classes, {accuracies(record)}"
        if not self.console.is_terminal:
            self.console.print(f"{name}: {note}", highlight=False, soft_wrap=True, markup=False)
            return
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(name, total=steps, note=note)
        self.bars.update(self.tasks[name], completed=record["step"], note=note)


def _run_all(configs: Mapping[str, RunConfig], folders: Mapping[str, Path], jobs: int, console: Console) -> None:
    watch = _Watch(console, folders)
    # spawned, not forked: torch's threads do not survive a fork
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool, watch.bars:
        futures: list[Future[None]] = [pool.submit(_execute, configs[name], folders[name]) for name in configs]
        try:
            while not all(future.done() for future in futures):
                watch.look()
                if any(future.done() and future.exception() for future in futures):
                    break
                time.sleep(0.3)
            for future in futures:
                if future.done():
                    future.result()
            watch.look()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def run_demo(method: str, seeds: int, out: Path, overrides: Mapping[str, Any], jobs: int | None = None) -> None:
    """Run the settings on every seed, `jobs` at a time; write the table and the page. Started again, it continues."""
    from ffcil.data.sources import load_dataset
    from ffcil.methods import find_method
    from ffcil.report.page import write_page
    from ffcil.report.records import load_run
    from ffcil.report.tables import compare, terminal

    start = time.perf_counter()
    console = Console()
    find_method(method)
    configs = demo_configs(method, seeds, overrides)
    folders = {name: out / f"{name.replace(' ', '-')}-{config.identity()}" for name, config in configs.items()}
    console.print(
        f"{method} on glyphs: {' and '.join(SETTINGS)}, {seeds} seed(s) each, in {out}/\n"
        "Equ.T: equal steps; FF.org: free-flow steps, the original method; FF.ours: the same with the framework.",
        highlight=False,
        markup=False,
    )
    load_dataset("glyphs")  # drawn once, before the runs share it
    _run_all(configs, folders, jobs or os.cpu_count() or 1, console)
    runs = [load_run(folder) for folder in folders.values()]
    console.print(terminal(compare(runs)))
    page = out / "report.html"
    write_page(runs, page, title=f"ffcil demo: {runs[0].method_name} under free flow")
    console.print(
        f"Open {page.resolve().as_uri()}  ({time.perf_counter() - start:.0f} s)",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
