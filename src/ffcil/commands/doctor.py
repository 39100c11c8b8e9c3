"""`ffcil doctor`: packages, devices and data of this machine, with advice on what is missing."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path
from typing import Any

import typer

from ffcil import __version__
from ffcil.commands.options import AsJson, Data, print_json, print_table
from ffcil.commands.packages import Package, check_packages


def doctor(as_json: AsJson = False, data: Data = None) -> None:
    """Check the installed packages, devices and data sets, and say how to get what is missing."""
    packages = check_packages()
    problems = [package.advice for package in packages if package.problem and package.extra is None]
    found = {**_describe_packages(packages), **({} if problems else _describe_machine(data))}
    found["advice"] = [*problems, *found.get("advice", [])]
    if as_json:
        print_json(found)
    elif problems:
        print("ffcil doctor: required packages are missing or cannot be used\n" + "\n".join(problems))
    else:
        _print_diagnosis(found)
    if problems:
        raise typer.Exit(1)


def _describe_packages(packages: list[Package]) -> dict[str, Any]:
    return {
        "ffcil": __version__,
        "python": platform.python_version(),
        "versions": {package.name: package.version for package in packages if package.extra is None},
        "optional": {
            f"{package.name} (ffcil[{package.extra}])": package.version for package in packages if package.extra
        },
    }


def _describe_machine(data: Path | None) -> dict[str, Any]:
    """Devices, folders and data sets. The required packages must be importable."""
    import torch

    from ffcil.data.cache import cache_folder
    from ffcil.data.catalogue import describe_sources
    from ffcil.data.sources import data_folder

    gpus = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    rows = describe_sources(data)
    advice = []
    if absent := [row["name"] for row in rows if row["missing"] and row["classes"]]:
        advice.append(f"Not found: {', '.join(absent)}; `ffcil data list` says how to get each data set.")
    if not gpus:
        reason = (
            f"torch is built for CUDA {torch.version.cuda} but finds no device: check the driver with nvidia-smi"
            if torch.version.cuda
            else "torch is built without CUDA: install a build with CUDA if this machine has a GPU"
        )
        advice.append(f"No GPU: runs use the CPU ({reason}).")
    free = _free_gib(cache_folder())
    if free < 1:
        advice.append(f"Only {free:.1f} GiB are free at {cache_folder()}: free some space, or set FFCIL_CACHE.")
    return {
        "devices": {
            "cpu_threads": torch.get_num_threads(),
            "cuda": gpus,
            "bfloat16": bool(gpus) and torch.cuda.is_bf16_supported(),
        },
        "cache": str(cache_folder()),
        "data": str(data or data_folder()),
        "data_found": {row["name"]: row["found"] for row in rows},
        "advice": advice,
    }


def _free_gib(folder: Path) -> float:
    """Free space at a folder that may not exist yet."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free / 2**30


def _print_diagnosis(found: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    versions = {"ffcil": found["ffcil"], "python": found["python"], **found["versions"]}
    devices = [*(found["devices"]["cuda"] or ["no GPU"]), f"CPU, {found['devices']['cpu_threads']} thread(s)"]
    rows = {
        "versions": [f"{name} {version}" for name, version in versions.items()],
        "optional": [f"{name} {version or 'not installed'}" for name, version in found["optional"].items()],
        "devices": devices,
        "folders": [f"cache {found['cache']}", f"data {found['data']}"],
        "data": [f"{name}: {'found' if ok else 'not found'}" for name, ok in found["data_found"].items()],
        "advice": [f"- {advice}" for advice in found["advice"]] or ["nothing to do"],
    }
    table = Table("", "", title="ffcil doctor", show_header=False, show_lines=True)
    for name, lines in rows.items():
        table.add_row(name, escape("\n".join(lines)))
    print_table(table)
